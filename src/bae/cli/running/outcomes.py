"""How a run came out, told: the result on stdout, or as JSON; on stderr what it took, and what to
do where it is not over. `carrying.py` hands the outcome over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bae.cli import exits
from bae.cli.printing import err, error_data, note, out, print_hanging, print_json

if TYPE_CHECKING:
    from bae.cli.running.commands_to_copy import CommandLine
    from bae.cli.running.seen import Seen
    from bae.graph import Graph
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.result import GraphResult
    from bae.usage import Usage


@dataclass(slots=True)
class Outcome:
    """How a run came out."""

    graph: Graph[Any, Any]
    run_id: str
    kind: Literal["ended", "waiting", "failed", "cancelled", "running"]
    seen: Seen
    seconds: float = 0.0
    result: GraphResult[Any] | None = None
    error: BaseException | None = None
    code: int = exits.DONE
    """The exit code."""
    kept: bool = False
    """Of a run that did not come to its end: whether the journal has it."""
    answered: bool = False
    """Whether the journal has the answer that it went on with."""
    summary: Any = field(default=None)
    """What the display says at the end."""

    @property
    def trace(self) -> list[Node]:
        """The nodes of the run, as far as it came."""
        return self.result.trace if self.result is not None else self.seen.trace

    @property
    def usage(self) -> Usage:
        """What the run used, before it was resumed too."""
        return self.result.usage if self.result is not None else self.seen.usage

    @property
    def waiting(self) -> tuple[OpenGate, ...]:
        """The gates that it waits for."""
        return self.result.waiting if self.result is not None else ()


def tell(outcome: Outcome, said: CommandLine, *, as_json: bool, quiet: bool) -> None:
    """Print how a run came out. What it failed with is raised by whoever called this."""
    if as_json:
        print_json(as_data(outcome))
    if not quiet and outcome.seen.begun and outcome.error is None and err().is_terminal:
        err().print()  # between what was shown of the run and how it came out
    match outcome.kind:
        case "ended" if not as_json and outcome.result is not None:
            from bae.cli.running.results import show

            show(outcome.result.result, out())
        case "waiting":
            _tell_waiting(outcome, said)
        case "cancelled":
            _tell_cancelled(outcome, said)
        case "running" if outcome.error is None:  # which says so itself
            note(f"the run {outcome.run_id} is under way elsewhere, which goes on with it")
        case _:
            pass
    if not quiet and outcome.seen.begun and outcome.kind in ("ended", "waiting"):
        err().print(outcome.summary)


def as_data(outcome: Outcome) -> dict[str, Any]:
    """How a run came out, for JSON."""
    from bae.cli.running.results import fields_of

    last = outcome.result.result if outcome.kind == "ended" and outcome.result else None
    usage = outcome.usage
    return {
        "run_id": outcome.run_id,
        "outcome": outcome.kind,
        "graph": outcome.graph.name,
        "result": last and {"type": type(last).__name__, "fields": fields_of(last)},
        "trace": [type(node).__name__ for node in outcome.trace],
        "seconds": round(outcome.seconds, 3),
        "usage": {
            "calls": usage.calls,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost": usage.cost,
        },
        "waiting": [_gate_data(gate) for gate in outcome.waiting],
        "error": error_data(outcome.error),
    }


def _gate_data(gate: OpenGate) -> dict[str, Any]:
    from bae.assignable import type_name
    from bae.cli.story import iso

    return {
        "gate": gate.address,
        "place": gate.place,
        "question": gate.question,
        "type": type_name(gate.type),
        "deadline": None if gate.deadline is None else iso(gate.deadline),
    }


def _tell_waiting(outcome: Outcome, said: CommandLine) -> None:
    from rich.text import Text

    from bae.cli.running.gates import until
    from bae.cli.start.typed import wanted
    from bae.cli.texts import in_lines

    console = err()
    if outcome.result is not None and not outcome.waiting:
        note(f"all gates of the run are answered; go on with: {said.resume(outcome.run_id)}")
        return
    console.print(Text(f"the run {outcome.run_id} waits for an answer", style="yellow"))
    places = Counter(gate.place for gate in outcome.waiting)
    for gate in outcome.waiting:
        line = Text("  ").append(in_lines(gate.question, 6), style="bold")
        line.append(f"  {gate.place}: {wanted(gate.type)}{until(gate)}", style="dim")
        console.print(line, soft_wrap=True)
        if said.journal is not None:
            command = said.answer(outcome.run_id, gate, among=places[gate.place])
            print_hanging(console, Text(f"  answer with: {command}"), 4)
    if said.journal is None:
        note(
            "no journal is kept, so nobody can go on with it: run it at a terminal, which asks, or "
            "with a journal"
        )


def _way(done: list[str], at: str) -> str:
    """The nodes that led to the one a run was at; nothing where that was the first."""
    before = done[:-1] if done and done[-1] == at else done
    if not before:
        return ""
    shown = [*before[:2], "…", *before[-2:]] if len(before) > 5 else before
    return f" (after {' -> '.join(shown)})"


def _tell_cancelled(outcome: Outcome, said: CommandLine) -> None:
    from rich.text import Text

    console = err()
    how = {exits.TERMINATED: "terminated", exits.HUNG_UP: "hung up"}.get(
        outcome.code, "interrupted"
    )
    at = outcome.seen.at
    line = Text(how, style="bold yellow")
    if at:
        line.append(f" after {outcome.seconds:.1f} s, at {at}")
        line.append(_way([type(node).__name__ for node in outcome.trace], at), style="dim")
    else:
        line.append(" before the first node")
    calls = outcome.usage.calls
    if calls:
        line.append(f", {calls} LM {'call' if calls == 1 else 'calls'}")
    console.print(line, soft_wrap=True)
    if outcome.kept:
        command = said.resume(outcome.run_id)
        print_hanging(console, Text(f"resume with: {command}"), 2)
    elif said.journal is None:
        note("no journal is kept, so it cannot be resumed")
    else:
        note("nothing of it is in the journal yet: run it anew")
