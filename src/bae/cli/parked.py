"""The gate of a parked run that `bae runs answer` means, and the answer that is given for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bae.cli.commands_to_copy import Said
    from bae.graph import Graph
    from bae.journal.running.open_gates import GateLine
    from bae.journal.store import RunInfo, StoredRun


async def open_gate(
    file: str | None, run: str | None, wanted: str | None
) -> tuple[RunInfo, GateLine]:
    """The gate that is meant."""
    from bae.cli.refusals import refused
    from bae.journal.running.open_gates import find_gate, open_gates

    stored = await read_meant(file, run)
    if wanted is not None:
        return stored.info, find_gate(stored, wanted)
    found = [gate for gate in open_gates(stored) if gate.address not in stored.answers]
    if len(found) == 1:
        return stored.info, find_gate(stored, found[0].address)
    run_id = stored.info.run_id
    if not found:
        raise refused(
            f"the run {run_id} waits for nobody: it is {stored.info.status}",
            fix="`bae runs list --status waiting` has those that do",
        )
    listed = "\n  ".join(f"{gate.address}: {gate.question}" for gate in found)
    raise refused(
        f"the run {run_id} waits for {len(found)} answers\n  {listed}", fix="name the gate"
    )


def reply_to(
    graph: Graph[Any, Any], run_id: str, gate: GateLine, value: str | None, said: Said, *, ask: bool
) -> Any:
    """The answer that is given for a gate, as the graph takes it."""
    from bae.cli.printing import err
    from bae.cli.questions import ask_field
    from bae.cli.refusals import refused
    from bae.cli.start_errors import example_of
    from bae.cli.terminal_input import can_ask
    from bae.cli.typed import Misfit, read, wanted
    from bae.exceptions import GateError
    from bae.journal.coding.decoding import graph_at

    around = graph_at(graph, gate.path)
    cls = next((each for each in around.plans if each.__name__ == gate.node), None)
    if cls is None or gate.field not in cls.__pydantic_fields__:
        return value  # the graph says what is wrong with that
    if value is not None:
        try:
            return read(cls, gate.field, value).given_to(cls, gate.field)
        except Misfit as misfit:
            raise GateError(
                f"{gate.place}: {value!r} is no answer to {gate.question!r}: {misfit}",
                node_type=cls,
                field_name=gate.field,
                code="bae-gate-invalid",
                fix=f"answer with {wanted(cls.__pydantic_fields__[gate.field].annotation)}; the "
                "run still waits",
            ) from None
    if not (ask and can_ask()):
        raise refused(
            f"no VALUE was given for {gate.place}: {gate.question}",
            fix=said.answer_with(run_id, gate.place, example_of(cls, gate.field)),
        )
    from rich.text import Text

    err().print(Text("? ", style="bold yellow").append(gate.question, style="bold"))
    typed = None
    while typed is None:
        typed = ask_field(cls, gate.field)
    return typed.given_to(cls, gate.field)


async def store_answer(
    graph: Graph[Any, Any], run_id: str, gate: GateLine, value: Any, file: str | None
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
