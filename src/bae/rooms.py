"""Lazy imports. The core gets functions of bae's other packages from this module, and packages use
it to export names. A module is imported when one of its names is first used. So `import bae` is
fast, and a run loads only the packages that it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bae.engine.engine import Engine as Engine
    from bae.exceptions import Problem
    from bae.graph import Graph
    from bae.journal.gates import answer_gate as answer_gate
    from bae.journal.inbox import tell_run as tell_run
    from bae.journal.replay import replay as replay
    from bae.journal.resume import begin_or_resume as begin_or_resume
    from bae.journal.resume import continue_if_answered as continue_if_answered
    from bae.journal.resume import fork as fork
    from bae.journal.resume import recover as recover
    from bae.journal.resume import resume as resume
    from bae.journal.run_checks import check_names as check_names
    from bae.journal.run_checks import check_thread as check_thread
    from bae.journal.run_writer import JournalWriter as JournalWriter
    from bae.journal.store import Journal as Journal
    from bae.journal.stored_runs import RunInfo as RunInfo
    from bae.journal.stored_thread import StoredThread as StoredThread
    from bae.journal.submit import dispatch as dispatch
    from bae.journal.submit import submit as submit
    from bae.journal.submit import wait_for_result as wait_for_result
    from bae.lm.policies.budget import Budget as Budget
    from bae.lm.registry import LazyLM as LazyLM
    from bae.lm.registry import advice_for as advice_for
    from bae.lm.registry import cached_lm as cached_lm
    from bae.lm.registry import find_default_lm as find_default_lm
    from bae.lm.registry import name_error as name_error
    from bae.lm.registry import no_lm_takes as no_lm_takes
    from bae.pictures import to_mermaid as to_mermaid
    from bae.pictures import to_svg as to_svg


_GONE: Final = {
    "bae.dspy_backend.API_RETRY_EXCEPTIONS": (
        "catch bae.BaeLMError; its `retryable` says whether to ask again"
    ),
    "bae.lm.validate_plain_fields": (
        "build the node: `target(**resolved, **answer)` validates what a model answered, and "
        "raises pydantic's ValidationError, which a run raises as FillError"
    ),
}
"""Advice for public names of bae 3.0 that no longer exist."""


LAST_VERSION: Final = "0.1"
"""The last version of bae that still has the `former` names of packages."""


def export_lazily(
    package: str,
    modules: Mapping[str, str],
    root: str = "",
    former: Mapping[str, tuple[str, str]] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package that imports its names on first use.

    `modules` maps a module to the names that the package exports from it, separated by spaces. The
    modules belong to the package `root`; by default, to `package`. `former` maps a name that was
    public to its module, relative to `bae`, and to advice for users. Such a name can still be
    imported, with a DeprecationWarning that has the advice. If the object was renamed, its new name
    follows the module, as in `usage:report_usage`.
    """
    origins = {name: module for module, names in modules.items() for name in names.split()}
    namespace = vars(sys.modules[package])

    def import_name(name: str) -> Any:
        if former and name in former:
            return _import_former(package, name, *former[name])
        if name not in origins:
            if (instead := _GONE.get(f"{package}.{name}")) is not None:
                # `from … import` replaces the text of an AttributeError, but not of an ImportError.
                raise ImportError(f"{package}.{name} of bae 3.0 is gone: {instead}", name=package)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{root or package}.{origins[name]}"), name)
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*namespace, *origins})

    return import_name, list_names


def _import_former(package: str, name: str, module: str, instead: str) -> Any:
    """Return the value of a name that was public, with a warning at the line that imports it."""
    import warnings
    from importlib import import_module

    warnings.warn(
        f"{package}.{name} is not public any more, and bae {LAST_VERSION} is the last version that "
        f"has it: {instead}",
        DeprecationWarning,
        stacklevel=3,
    )
    module, _, renamed = module.partition(":")
    return getattr(import_module(f"bae.{module}"), renamed or name)


__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "journal.gates": "answer_gate",
        "journal.inbox": "tell_run",
        "journal.replay": "replay",
        "journal.resume": "begin_or_resume continue_if_answered fork recover resume",
        "journal.run_writer": "JournalWriter",
        "journal.run_checks": "check_names check_thread",
        "journal.store": "Journal",
        "journal.stored_thread": "StoredThread",
        "journal.submit": "dispatch submit wait_for_result",
        "lm.registry": "LazyLM advice_for cached_lm find_default_lm name_error no_lm_takes",
        "pictures": "to_mermaid to_svg",
    },
    root="bae",
)


def journal_problems(graph: Graph[Any, Any]) -> tuple[list[Problem], list[Problem]]:
    """Return the problems of a graph that appear only with a journal: the errors, and the notes on
    values that are not stored."""
    from bae.journal.storability import notes, unkeepable

    return unkeepable(graph), notes(graph)
