"""How a run came out, told: the result on stdout, or as JSON; on stderr what it took, and what to
do where it is not over. `running.py` hands the outcome over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bae.cli import exits
from bae.cli.printing import err, note, out, print_json

if TYPE_CHECKING:
    from bae.cli.commands_to_copy import Said
    from bae.graph import Graph
    from bae.journal.records import Record
    from bae.lm.usage import Usage
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.observers import ObservedRun
    from bae.result import GraphResult


class Seen:
    """What was seen of a run while it went on: that is all there is of one that was interrupted."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.begun = False
        self._records: list[Record] = []
        self._run: ObservedRun | None = None

    def observe(self, run: ObservedRun, record: Record) -> None:
        """Take a record in."""
        if run.run_id != self.run_id:  # a run that somebody's code started on its own
            return
        from bae.journal.records import TextArrived

        if run is not self._run:  # it begins, or goes on with what was before
            self._run, self._records, self.begun = run, [*run.past], True
        if not isinstance(record, TextArrived):
            self._records.append(record)

    @property
    def trace(self) -> list[Node]:
        """The nodes that were reached."""
        from bae.journal.records import RunForked, StepStarted

        nodes: dict[int, Node] = {}
        for record in self._records:
            if isinstance(record, StepStarted | RunForked) and not record.path:
                nodes[record.step] = record.node
        return [nodes[step] for step in sorted(nodes)]

    @property
    def usage(self) -> Usage:
        """What the LM calls used."""
        from bae.journal.of_run import RunJournal

        return RunJournal([*self._records]).usage()


@dataclass(slots=True)
class Outcome:
    """How a run came out."""

    graph: Graph[Any, Any]
    run_id: str
    kind: Literal["ended", "waiting", "failed", "cancelled", "running"]
    seen: Seen
    seconds: float = 0.0
    result: GraphResult[Any] | None = None
    error: Exception | None = None
    code: int = exits.DONE
    """The exit code."""
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


def tell(outcome: Outcome, said: Said, *, as_json: bool, quiet: bool) -> None:
    """Print how a run came out. What it failed with is raised by whoever called this."""
    if as_json:
        print_json(as_data(outcome))
    if not quiet and outcome.seen.begun and outcome.error is None and err().is_terminal:
        err().print()  # between what was shown of the run and how it came out
    match outcome.kind:
        case "ended" if not as_json and outcome.result is not None:
            from bae.cli.results import show

            show(outcome.result.result, out())
        case "waiting":
            _tell_waiting(outcome, said)
        case "cancelled":
            _tell_cancelled(outcome, said)
        case "running":
            note(f"the run {outcome.run_id} is under way elsewhere, which goes on with it")
        case _:
            pass
    if not quiet and outcome.seen.begun and outcome.kind in ("ended", "waiting"):
        err().print(outcome.summary)


def as_data(outcome: Outcome) -> dict[str, Any]:
    """How a run came out, for JSON."""
    from bae.cli.results import fields_of

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


def error_data(error: Exception | None) -> dict[str, Any] | None:
    """An error, for JSON."""
    from bae.exceptions import BaeError, describe

    if error is None:
        return None
    if not isinstance(error, BaeError):
        return {"code": None, "message": describe(error), "fix": None, "path": None}
    return {"code": error.code, "message": error.message, "fix": error.fix, "path": error.path}


def refused_data(error: Exception) -> dict[str, Any]:
    """A command that came to nothing before there was a run, for JSON."""
    return {
        "run_id": None,
        "outcome": "failed",
        "graph": None,
        "result": None,
        "trace": [],
        "seconds": 0.0,
        "usage": {"calls": 0, "input_tokens": 0, "output_tokens": 0, "cost": 0.0},
        "waiting": [],
        "error": error_data(error),
    }


def _gate_data(gate: OpenGate) -> dict[str, Any]:
    from bae.assignable import type_name

    return {
        "gate": gate.address,
        "place": gate.place,
        "question": gate.question,
        "type": type_name(gate.type),
        "deadline": gate.deadline,
    }


def _tell_waiting(outcome: Outcome, said: Said) -> None:
    from rich.text import Text

    from bae.cli.gates import until
    from bae.cli.questions import printable
    from bae.cli.typed import wanted

    console = err()
    if outcome.result is not None and not outcome.waiting:
        note(f"all gates of the run are answered; go on with: {said.resume(outcome.run_id)}")
        return
    console.print(Text(f"the run {outcome.run_id} waits for an answer", style="yellow"))
    places = Counter(gate.place for gate in outcome.waiting)
    for gate in outcome.waiting:
        line = Text("  ").append(printable(gate.question), style="bold")
        line.append(f"  {gate.place}: {wanted(gate.type)}{until(gate)}", style="dim")
        console.print(line, soft_wrap=True)
        if said.journal is not None:
            command = said.answer(outcome.run_id, gate, among=places[gate.place])
            console.print(Text(f"  answer with: {command}"), soft_wrap=True)
    if said.journal is None:
        note(
            "no journal is kept, so nobody can go on with it: run it at a terminal, which asks, or "
            "with a journal"
        )


def _tell_cancelled(outcome: Outcome, said: Said) -> None:
    from rich.text import Text

    console = err()
    how = "interrupted" if outcome.code != exits.TERMINATED else "terminated"
    done = [type(node).__name__ for node in outcome.trace]
    line = Text(how, style="bold yellow")
    if done:
        shown = [*done[:2], "…", *done[-2:]] if len(done) > 5 else done
        line.append(f" after {outcome.seconds:.1f} s, at {' -> '.join(shown)}")
    else:
        line.append(" before the first node")
    calls = outcome.usage.calls
    if calls:
        line.append(f", {calls} LM {'call' if calls == 1 else 'calls'}")
    console.print(line, soft_wrap=True)
    if said.journal is not None and outcome.seen.begun:
        command = said.resume(outcome.run_id)
        console.print(Text(f"resume with: {command}"), soft_wrap=True)
    elif said.journal is None:
        note("no journal is kept, so it cannot be resumed")
