"""The gate of a parked run that `bae runs answer` means, and the answer that is given for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.cli.running.commands_to_copy import CommandLine
    from bae.exceptions import BaeError, GateError
    from bae.graph import Graph
    from bae.journal.store import StoredRun
    from bae.markers import OpenGate
    from bae.node import Node


def meant_by(
    graph: Graph[Any, Any],
    stored: StoredRun,
    gate: str | None,
    value: str | None,
    said: CommandLine,
) -> tuple[OpenGate, str | None]:
    """The gate that GATE and VALUE mean, and the value. Where one gate is open, a word alone that
    names none is the value for it."""
    from bae.cli.running.advice import advise_gate
    from bae.exceptions import GateError
    from bae.journal.gates import find_gate, open_gates

    found = [each for each in open_gates(stored) if each.address not in stored.answers]
    only = found[0] if len(found) == 1 else None
    if gate is not None and value is None and only is not None and not _is_name(gate, stored, only):
        gate, value = only.address, gate
    if gate is None:
        if only is None:
            raise _not_one(graph, stored, found, said)
        gate = only.address
    try:
        return find_gate(stored, gate), value
    except GateError as error:
        if error.code in ("bae-gate-unknown", "bae-gate-ambiguous") and found:
            raise _not_one(graph, stored, found, said, error) from None
        advise_gate(error, stored.info.run_id, said, over=stored.info.status == "ended")
        raise


def _is_name(word: str, stored: StoredRun, only: OpenGate) -> bool:
    """Whether a word names a gate of a run, or is nearly the name of the one that is open: an
    answer stands, so that nothing that was mistyped becomes one."""
    from difflib import get_close_matches

    from bae.journal.gates import all_gates

    names = {
        name
        for each, _ in all_gates(stored)
        for name in (each.address, each.place, each.field_name)
    }
    if word in names:
        return True
    of_open = [each.lower() for each in (only.address, only.place, only.field_name)]
    return bool(get_close_matches(word.lower(), of_open, n=1, cutoff=0.8))


def _not_one(
    graph: Graph[Any, Any],
    stored: StoredRun,
    found: Sequence[OpenGate],
    said: CommandLine,
    error: GateError | None = None,
) -> BaeError:
    """The error where it is not clear which gate is meant, with a command for each."""
    from collections import Counter

    from bae.cli.refusals import refused
    from bae.journal.gates import describe_status

    run_id = stored.info.run_id
    if not found:
        return refused(
            f"the run {run_id} waits for nobody: {describe_status(stored.info)}",
            fix="`bae runs list --status waiting` has those that do",
        )
    places = Counter(gate.place for gate in found)
    commands: list[str] = []
    for gate in found:
        name = gate.place if places[gate.place] == 1 else gate.address
        commands.append(said.answer_with(run_id, name, _example(graph, gate)))
    fix = "\n".join(commands)
    if error is not None:
        error.fix = fix
        return error
    listed = "\n  ".join(f"{gate.address}: {gate.question}" for gate in found)
    return refused(f"the run {run_id} waits for {len(found)} answers\n  {listed}", fix=fix)


def _example(graph: Graph[Any, Any], gate: OpenGate) -> str | None:
    from bae.cli.start.errors import example_of

    cls = _class_of(graph, gate)
    return "…" if cls is None else example_of(cls, gate.field_name)


def _class_of(graph: Graph[Any, Any], gate: OpenGate) -> type[Node] | None:
    """The class of the node that a gate is in; None where the graph has it no more."""
    from bae.exceptions import BaeError
    from bae.journal.decoder import graph_at

    try:
        around = graph_at(graph, gate.path)
    except BaeError:
        return None
    cls = next((each for each in around.plans if each.__name__ == gate.node_type.__name__), None)
    return cls if cls is not None and gate.field_name in cls.__pydantic_fields__ else None


def reply_to(
    graph: Graph[Any, Any],
    run_id: str,
    gate: OpenGate,
    value: str | None,
    said: CommandLine,
    *,
    ask: bool,
) -> Any:
    """The answer that is given for a gate, as the graph takes it."""
    from bae.cli.printing import err
    from bae.cli.refusals import refused
    from bae.cli.running.terminal_input import can_ask
    from bae.cli.start.errors import example_of
    from bae.cli.start.questions import ask_answer, is_secret
    from bae.cli.start.typed import Misfit, read, wanted
    from bae.cli.texts import in_lines
    from bae.exceptions import GateError

    cls = _class_of(graph, gate)
    if cls is None:
        return value  # the graph says what is wrong with that
    if value is not None:
        try:
            return read(cls, gate.field_name, value).given_to(cls, gate.field_name)
        except Misfit as misfit:
            shown = "what was given" if is_secret(cls, gate.field_name) else repr(value)
            raise GateError(
                f"{gate.place}: {shown} is no answer to {gate.question!r}: {misfit}",
                node_type=cls,
                field_name=gate.field_name,
                code="bae-gate-invalid",
                fix=f"answer with {wanted(cls.__pydantic_fields__[gate.field_name].annotation)}; "
                "the run still waits",
            ) from None
    if not (ask and can_ask()):
        example = example_of(cls, gate.field_name)
        line = said.answer_with(run_id, gate.place, example)
        raise refused(
            f"no VALUE was given for {gate.place}: {gate.question}",
            fix=line if example else f"{line}  at a terminal, which asks for it",
        )
    from rich.text import Text

    err().print(Text("? ", style="bold yellow").append(in_lines(gate.question, 4), style="bold"))
    return ask_answer(cls, gate.field_name).given_to(cls, gate.field_name)


async def store_answer(
    graph: Graph[Any, Any], run_id: str, gate: OpenGate, value: Any, file: str | None
) -> None:
    """Store an answer, for whoever goes on with the run."""
    from bae.cli.runs.meant import to_write

    async with to_write(file) as journal:
        await graph.answer(run_id, gate.address, value, journal=journal, go_on=False)


async def read_meant(file: str | None, run: str | None) -> StoredRun:
    """All there is of the run that is meant."""
    from bae.cli.runs.meant import run_meant, to_write

    async with to_write(file) as journal:
        return await journal.read(await run_meant(journal, run))
