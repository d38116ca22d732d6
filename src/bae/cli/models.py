"""Which language model a run asks. One that cannot be had is refused before anything is typed for
nothing; a run that is resumed without one being named says so where it is another than before."""

from __future__ import annotations

import logging
import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from bae.cli.exits import Misuse
from bae.cli.printing import note
from bae.exceptions import BaeError, BaeLMError, ProofError
from bae.lm.registry import VARIABLE, LazyLM, cached_lm, default_lm, default_name, name_error

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import StoredRun
    from bae.lm import LM
    from bae.usage import Usage

_log = logging.getLogger("bae.cli")


def prove(graph: Graph[Any, Any], module: str | None) -> None:
    """Refuse a graph that cannot run, with the command that says all there is to say about it."""
    try:
        graph.prove()
    except ProofError as error:
        error.fix = f"fix it; `{shlex.join(['bae', 'check', *([module] if module else [])])}` "
        error.fix += "lists all problems, warnings too"
        raise


def check_lm(graph: Graph[Any, Any], named: str | None, *, begins: bool = False) -> None:
    """Refuse an LM that cannot be had. A run that `begins` needs one where its graph does; one that
    is resumed may be past that."""
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
    with a note that says which it is where BAE_LM does not name it."""
    if named is not None:
        return cached_lm(named)
    found = default_name().name
    if not found:
        return default_lm(graph.needs_lm or "it is to be asked")
    if not quiet and not os.environ.get(VARIABLE, "").strip():
        note(f"using {found}: --lm names another")
    return cached_lm(found)


def lm_for(graph: Graph[Any, Any], stored: StoredRun, named: str | None) -> LM | str | None:
    """The LM for a run that is resumed: the one that is named, or one that is found when the run
    asks for it, with a note where another one has answered before."""
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
                    "the LM of this run so far was %s; continuing with %s, --lm chooses another",
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


def lm_named(error: BaeError, how: str) -> str:
    """What to do where there is no LM: name one, in the way of a command. What this machine lacks
    for each stays below it."""
    _, line_end, lacking = (error.fix or "").partition("\n")
    if not lacking:
        return error.fix or ""
    return f"name one {how}, or set BAE_LM; `bae lm list` says more{line_end}{lacking}"


def in_words_of_options(message: str) -> str:
    """What a program is told to write, as it is typed at a terminal."""
    return re.sub(r'\blm="([^"]+)"', r"--lm \1", message)
