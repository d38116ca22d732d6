"""A team that turns a goal into merged, tested code: a lead that schedules tasks, and workers that
carry them out, each a bae graph."""

from typing import TYPE_CHECKING

from bae.rooms import export_lazily

if TYPE_CHECKING:
    from bae.cli.team_board import watch
    from bae.team.budgets import Spent, read_spent, read_spent_by_task
    from bae.team.delivery import (
        Delivery,
        ProvedTask,
        clean_branches,
        diff_task,
        find_delivery,
        format_patch,
        merge_work,
    )
    from bae.team.edit_format import EditError
    from bae.team.endpoints import ServedTeam, add_teams
    from bae.team.events import (
        ActionRequested,
        ActivityUpdate,
        AgentCreated,
        AgentRetired,
        AgentStatusChanged,
        BlockerCreated,
        BlockerResolved,
        Broadcaster,
        CommitCreated,
        CorrectionAttempt,
        Event,
        PlanChanged,
        ProgressUpdate,
        StoredEvent,
        TaskAssigned,
        TaskBlocked,
        TaskStatusChanged,
        TaskUnblocked,
        TestResult,
        WorkReviewed,
        broadcast,
    )
    from bae.team.feed import TeamFeed
    from bae.team.git import GitError, Repository
    from bae.team.job_endpoints import add_team_jobs
    from bae.team.jobs import TeamJobs
    from bae.team.known_programs import ClaudeCode, Codex
    from bae.team.lead import LeadAgent, TeamSummary
    from bae.team.models import (
        AgentInfo,
        Blocker,
        Finding,
        FindingKind,
        PlannedTask,
        Project,
        Request,
        Review,
        Task,
        TaskAttempt,
        TaskResult,
        TaskStatus,
        TeamError,
        TestCase,
        TestReport,
    )
    from bae.team.planning import plan_tasks
    from bae.team.pool import AgentPoolManager
    from bae.team.programs import CodingProgram, ProgramEvent
    from bae.team.sandbox import Limits, Protection, SandboxError, protection
    from bae.team.schedule import DryRun, plan_dry_run
    from bae.team.store import Store, store_path
    from bae.team.task_log import LogEntry, TaskLog, read_task_log
    from bae.team.team_run import add_request
    from bae.team.team_server import Address, serving
    from bae.team.workbench import Workbench
    from bae.team.worker import (
        BackendWorkerAgent,
        DocsWorkerAgent,
        FrontendWorkerAgent,
        TestWorkerAgent,
        WorkerAgent,
        register_worker,
        worker_class,
        worker_kinds,
    )
    from bae.team.workspaces import WorkspaceError

__all__ = [
    "ActionRequested",
    "ActivityUpdate",
    "Address",
    "AgentCreated",
    "AgentInfo",
    "AgentPoolManager",
    "AgentRetired",
    "AgentStatusChanged",
    "BackendWorkerAgent",
    "Blocker",
    "BlockerCreated",
    "BlockerResolved",
    "Broadcaster",
    "ClaudeCode",
    "Codex",
    "CodingProgram",
    "CommitCreated",
    "CorrectionAttempt",
    "Delivery",
    "DocsWorkerAgent",
    "DryRun",
    "EditError",
    "Event",
    "Finding",
    "FindingKind",
    "FrontendWorkerAgent",
    "GitError",
    "LeadAgent",
    "Limits",
    "LogEntry",
    "PlanChanged",
    "PlannedTask",
    "ProgramEvent",
    "ProgressUpdate",
    "Project",
    "Protection",
    "ProvedTask",
    "Repository",
    "Request",
    "Review",
    "SandboxError",
    "ServedTeam",
    "Spent",
    "Store",
    "StoredEvent",
    "Task",
    "TaskAssigned",
    "TaskAttempt",
    "TaskBlocked",
    "TaskLog",
    "TaskResult",
    "TaskStatus",
    "TaskStatusChanged",
    "TaskUnblocked",
    "TeamError",
    "TeamFeed",
    "TeamJobs",
    "TeamSummary",
    "TestCase",
    "TestReport",
    "TestResult",
    "TestWorkerAgent",
    "WorkReviewed",
    "Workbench",
    "WorkerAgent",
    "WorkspaceError",
    "add_request",
    "add_team_jobs",
    "add_teams",
    "broadcast",
    "clean_branches",
    "diff_task",
    "find_delivery",
    "format_patch",
    "merge_work",
    "plan_dry_run",
    "plan_tasks",
    "protection",
    "read_spent",
    "read_spent_by_task",
    "read_task_log",
    "register_worker",
    "serving",
    "store_path",
    "watch",
    "worker_class",
    "worker_kinds",
]

# A name is imported from its module when it is first asked for: most need the extra `team`.
__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "cli.team_board": "watch",
        "team.budgets": "Spent read_spent read_spent_by_task",
        "team.delivery": (
            "Delivery ProvedTask clean_branches diff_task find_delivery format_patch merge_work"
        ),
        "team.edit_format": "EditError",
        "team.endpoints": "ServedTeam add_teams",
        "team.job_endpoints": "add_team_jobs",
        "team.jobs": "TeamJobs",
        "team.events": (
            "ActionRequested ActivityUpdate AgentCreated AgentRetired AgentStatusChanged "
            "BlockerCreated BlockerResolved Broadcaster CommitCreated CorrectionAttempt Event "
            "PlanChanged ProgressUpdate StoredEvent TaskAssigned TaskBlocked TaskStatusChanged "
            "TaskUnblocked TestResult WorkReviewed broadcast"
        ),
        "team.feed": "TeamFeed",
        "team.git": "GitError Repository",
        "team.known_programs": "ClaudeCode Codex",
        "team.lead": "LeadAgent TeamSummary",
        "team.models": (
            "AgentInfo TaskAttempt Blocker Finding FindingKind PlannedTask Project Request Review "
            "Task TaskResult TaskStatus TeamError TestCase TestReport"
        ),
        "team.planning": "plan_tasks",
        "team.pool": "AgentPoolManager",
        "team.programs": "CodingProgram ProgramEvent",
        "team.sandbox": "Limits Protection SandboxError protection",
        "team.schedule": "DryRun plan_dry_run",
        "team.team_server": "Address serving",
        "team.store": "Store store_path",
        "team.task_log": "LogEntry TaskLog read_task_log",
        "team.team_run": "add_request",
        "team.workbench": "Workbench",
        "team.worker": (
            "BackendWorkerAgent DocsWorkerAgent FrontendWorkerAgent TestWorkerAgent WorkerAgent "
            "register_worker worker_class worker_kinds"
        ),
        "team.workspaces": "WorkspaceError",
    },
    root="bae",
    former={
        "detect": ("team.project", "`bae team init` detects the settings of a repository"),
        **{
            name: ("team.events", f"call broadcast(ws_manager, {event}(…))")
            for name, event in {
                "broadcast_activity": "ActivityUpdate",
                "broadcast_agent_created": "AgentCreated",
                "broadcast_agent_retired": "AgentRetired",
                "broadcast_agent_status": "AgentStatusChanged",
                "broadcast_blocker_created": "BlockerCreated",
                "broadcast_blocker_resolved": "BlockerResolved",
                "broadcast_commit_created": "CommitCreated",
                "broadcast_correction_attempt": "CorrectionAttempt",
                "broadcast_progress": "ProgressUpdate",
                "broadcast_task_assigned": "TaskAssigned",
                "broadcast_task_blocked": "TaskBlocked",
                "broadcast_task_status": "TaskStatusChanged",
                "broadcast_task_unblocked": "TaskUnblocked",
                "broadcast_test_result": "TestResult.of",
            }.items()
        },
    },
)
