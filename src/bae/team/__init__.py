"""A team that turns a goal into merged, tested code: a lead that schedules tasks, and workers that
carry them out, each a bae graph."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.team.edit_format import EditError
    from bae.team.events import Event, StoredEvent, broadcast
    from bae.team.git import GitError, Repository
    from bae.team.models import (
        AgentInfo,
        Attempt,
        Blocker,
        PlannedTask,
        Project,
        Task,
        TaskResult,
        TaskStatus,
        TeamError,
        TestCase,
        TestReport,
    )
    from bae.team.project import detect
    from bae.team.sandbox import Limits, Protection, SandboxError, protection
    from bae.team.store import Store, store_path
    from bae.team.workbench import Workbench
    from bae.team.worker import (
        BackendWorkerAgent,
        FrontendWorkerAgent,
        TestWorkerAgent,
        WorkerAgent,
        register_worker,
        worker_class,
        worker_kinds,
    )
    from bae.team.workspaces import WorkspaceError

__all__ = [
    "AgentInfo",
    "Attempt",
    "BackendWorkerAgent",
    "Blocker",
    "EditError",
    "Event",
    "FrontendWorkerAgent",
    "GitError",
    "Limits",
    "PlannedTask",
    "Project",
    "Protection",
    "Repository",
    "SandboxError",
    "Store",
    "StoredEvent",
    "Task",
    "TaskResult",
    "TaskStatus",
    "TeamError",
    "TestCase",
    "TestReport",
    "TestWorkerAgent",
    "Workbench",
    "WorkerAgent",
    "WorkspaceError",
    "broadcast",
    "detect",
    "protection",
    "register_worker",
    "store_path",
    "worker_class",
    "worker_kinds",
]

# A name is imported from its module when it is first asked for: most need the extra `team`.
_MODULES = {
    "edit_format": "EditError",
    "events": "Event StoredEvent broadcast",
    "git": "GitError Repository",
    "models": (
        "AgentInfo Attempt Blocker PlannedTask Project Task TaskResult TaskStatus TeamError "
        "TestCase TestReport"
    ),
    "project": "detect",
    "sandbox": "Limits Protection SandboxError protection",
    "store": "Store store_path",
    "workbench": "Workbench",
    "worker": (
        "BackendWorkerAgent FrontendWorkerAgent TestWorkerAgent WorkerAgent register_worker "
        "worker_class worker_kinds"
    ),
    "workspaces": "WorkspaceError",
}
_NAMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'bae.team' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"bae.team.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
