"""Which language model a run is carried out with. One that cannot be had is refused before somebody
types something for nothing; and a run that goes on without one being named says so where it is
another than before. `run.py` and `resuming.py` ask."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from bae.cli.refusals import Misuse
from bae.cli.running.advice import lm_named
from bae.exceptions import BaeLMError
from bae.lm.registry import VARIABLE, LazyLM, cached_lm, default_lm, default_name, name_error

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import StoredRun
    from bae.lm import LM
    from bae.usage import Usage

_log = logging.getLogger("bae.cli")


def check_lm(graph: Graph[Any, Any], named: str | None, *, begins: bool = False) -> None:
    """Refuse an LM that cannot be had. A run that `begins` needs one where its graph does; one that
    goes on may be past that."""
    if named is not None:
        wrong = name_error(named)
        if wrong is not None:
            raise Misuse(wrong.message, code="bae-lm-unknown-name", fix=wrong.fix)
        cached_lm(named)
    elif begins and graph.needs_lm and not default_name().name:
        try:
            default_lm(graph.needs_lm)
        except BaeLMError as error:
            if error.code == "bae-lm-missing":
                error.fix = lm_named(error, "with --lm, as --lm local")
            raise


def made_lm(graph: Graph[Any, Any], named: str | None, *, quiet: bool = False) -> LM:
    """The LM of a name that `check_lm` has passed; without one, that of runs which are given none,
    and where nobody has named that either a note says which it is."""
    if named is not None:
        return cached_lm(named)
    found = default_name().name
    if not found:
        return default_lm(graph.needs_lm or "it is to be asked")
    if not quiet and not os.environ.get(VARIABLE, "").strip():
        from bae.cli.printing import note

        note(f"using {found}: --lm names another")
    return cached_lm(found)


def lm_for(graph: Graph[Any, Any], stored: StoredRun, named: str | None) -> LM | str | None:
    """The LM for a run that goes on: the one that is named, or one that is found when the run asks
    for it, and that says so where another one has answered before."""
    if named is not None or os.environ.get(VARIABLE, "").strip() or not graph.needs_lm:
        return named
    from bae.journal.decoder import read_history

    return _FoundAgain(graph.needs_lm, read_history(stored).usage)


class _FoundAgain(LazyLM):
    """The LM that this machine offers, for a run that has used `before` until now."""

    def __init__(self, why: str, before: Usage) -> None:
        super().__init__(why)
        self._before = before

    def find(self) -> LM:
        """Look for the LM. Raises where this machine has none."""
        name = default_name().name if self._before.calls else ""
        if name:
            found = cached_lm(name)
            model = str(getattr(found, "model", ""))
            if not has_answered(model, self._before.models):
                _log.warning(
                    "the LM of this run so far was %s; going on with %s, --lm chooses another",
                    ", ".join(self._before.models) or "one without a name, such as a script",
                    f"{name} ({model})" if model else name,
                )
                return found
        return super().find()


def has_answered(model: str, models: tuple[str, ...]) -> bool:
    """Whether a model is among those that have answered, which may call themselves by more than the
    name that they are asked for by: `sonnet`, `openai:gpt-5-mini`."""
    last = model.rpartition(":")[2].lower()
    return bool(last) and any(last in each.lower() for each in models)
