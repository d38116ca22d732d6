"""A team that turns a goal into merged, tested code. A lead schedules tasks, and workers carry them
out. Each worker is a bae graph."""

from typing import TYPE_CHECKING

from bae.rooms import export_lazily

if TYPE_CHECKING:
    from bae.team.budgets import Spent, read_spent
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
        broadcast_activity,
        broadcast_agent_created,
        broadcast_agent_retired,
        broadcast_agent_status,
        broadcast_blocker_created,
        broadcast_blocker_resolved,
        broadcast_commit_created,
        broadcast_correction_attempt,
        broadcast_progress,
        broadcast_task_assigned,
        broadcast_task_blocked,
        broadcast_task_status,
        broadcast_task_unblocked,
        broadcast_test_result,
    )
    from bae.team.git import GitError, Repository
    from bae.team.job_endpoints import add_team_jobs
    from bae.team.jobs import TeamJobs
    from bae.team.known_programs import ClaudeCode, Codex
    from bae.team.lead import LeadAgent, TeamSummary
    from bae.team.models import (
        Action,
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
    from bae.team.planning import Planning, plan_tasks
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
        worker_kinds,
    )
    from bae.team.workspaces import WorkspaceError

__all__ = [
    "Action",
    "ActionRequested",
    "ActivityUpdate",
    "Address",
    "AgentCreated",
    "AgentInfo",
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
    "Planning",
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
    "broadcast_activity",
    "broadcast_agent_created",
    "broadcast_agent_retired",
    "broadcast_agent_status",
    "broadcast_blocker_created",
    "broadcast_blocker_resolved",
    "broadcast_commit_created",
    "broadcast_correction_attempt",
    "broadcast_progress",
    "broadcast_task_assigned",
    "broadcast_task_blocked",
    "broadcast_task_status",
    "broadcast_task_unblocked",
    "broadcast_test_result",
    "clean_branches",
    "diff_task",
    "find_delivery",
    "format_patch",
    "merge_work",
    "plan_dry_run",
    "plan_tasks",
    "protection",
    "read_spent",
    "read_task_log",
    "register_worker",
    "serving",
    "store_path",
    "worker_kinds",
]

# The first use of a name imports its module, because most modules need the extra `team`.
__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "team.budgets": "Spent read_spent",
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
            "TaskUnblocked TestResult WorkReviewed broadcast broadcast_activity "
            "broadcast_agent_created broadcast_agent_retired broadcast_agent_status "
            "broadcast_blocker_created broadcast_blocker_resolved broadcast_commit_created "
            "broadcast_correction_attempt broadcast_progress broadcast_task_assigned "
            "broadcast_task_blocked broadcast_task_status broadcast_task_unblocked "
            "broadcast_test_result"
        ),
        "team.git": "GitError Repository",
        "team.known_programs": "ClaudeCode Codex",
        "team.lead": "LeadAgent TeamSummary",
        "team.models": (
            "Action AgentInfo Blocker Finding FindingKind PlannedTask Project Request Review Task "
            "TaskAttempt TaskResult TaskStatus TeamError TestCase TestReport"
        ),
        "team.planning": "Planning plan_tasks",
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
            "register_worker worker_kinds"
        ),
        "team.workspaces": "WorkspaceError",
    },
    root="bae",
    former={
        "AgentPoolManager": ("team.pool", "LeadAgent(…, max_agents=…) starts the workers"),
        "TeamFeed": ("team.feed", "annotate bae.journal.Feed[StoredEvent]"),
        "read_spent_by_task": ("team.budgets", "call read_spent(store, task_id=…)"),
        "watch": (
            "cli.team_board",
            "`bae team watch` shows the work; bae.journal.subscribe(store.feed(project.id)) has "
            "its events",
        ),
        "worker_class": ("team.worker", "import the class, such as BackendWorkerAgent"),
        "detect": ("team.project", "`bae team init` detects the settings of a repository"),
    },
)
