"""The LMs that an optimisation asks, whatever they were given as: the one to optimise for, the
teacher, and the judges, whose calls go through the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from bae.lm.extras import load_dspy

if TYPE_CHECKING:
    from bae.evals.judge import Judge
    from bae.language_model import LM
    from bae.lm.backend import Backend
    from bae.node import Node
    from bae.optimizer.calls import CallLog
    from bae.optimizer.metrics import Metric


def backend_of(lm: LM | str | Any, why: str) -> Backend:
    """The backend of whatever stands for an LM: one of bae, its name, a `dspy.LM`, or None."""
    from bae.lm.policies.policy import as_backend
    from bae.lm.registry import cached_lm, default_lm

    if lm is None:
        lm = default_lm(why)
    elif isinstance(lm, str):
        lm = cached_lm(lm)
    elif isinstance(lm, load_dspy("optimize_node").BaseLM):
        from bae.lm.dspy_backend import DSPyBackend

        lm = DSPyBackend(lm)
    return as_backend(lm)


def student_for(cls: type[Node], lm: LM | str | Any) -> LM | str | Any:
    """What a run asks for a node class: the LM that is pinned to it, or else `lm`, that of the
    run. What is learnt for the class is learnt for this one."""
    from bae.plan import plan_of

    pinned = plan_of(cls).lm
    return lm if pinned is None else pinned


def named(backend: Backend) -> str:
    """What an artefact says of a model."""
    return backend.model or repr(backend)


def logged(metric: Metric | Judge | None, calls: CallLog, note: Callable[[str], None]) -> Any:
    """The metric, with its judges asked through the log. Where one gives no verdict, or refuses to
    look at an answer, that counts 0, a `note` says so, and another life of the optimisation asks
    it again."""
    from bae.evals.judge import Judge

    def through(each: Any) -> Any:
        if not isinstance(each, Judge):
            return each
        asked = calls.around(backend_of(each.lm, "it is to judge"), hopeful=True)
        return each.asking(asked, note)

    if isinstance(metric, Mapping):
        given = cast("Mapping[type[Node], Any]", metric)
        return {cls: through(each) for cls, each in given.items()}
    return through(metric)
