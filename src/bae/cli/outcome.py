"""Prints the outcome of a run. The result goes to stdout, as text or JSON. The usage goes to
stderr. If the run is not over, the command that continues it goes to stderr too."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal

from rich.text import Text

from bae.assignable import type_name
from bae.cli import exits
from bae.cli.journals import default
from bae.cli.lm import rewrite_lm_fix
from bae.cli.printing import as_data, err, error_data, iso, note, out, print_hanging, print_json
from bae.cli.questions import describe_deadline
from bae.cli.values import answer_field, describe_type, example_of, fields_of, print_node
from bae.cli.wording import count, in_lines
from bae.exceptions import BaeError, BudgetError, GateError, LimitError, ProofError
from bae.place import Place
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.history import History
    from bae.journal.stored_runs import ParkedGate
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.result import GraphResult
    from bae.secrets import Copies
    from bae.tools import ToolCall


@dataclass(slots=True)
class RunOutcome:
    """The outcome of a run for a command, also if the run failed or is not over."""

    graph: str
    run_id: str
    kind: Literal["ended", "waiting", "failed", "cancelled", "running"] = "failed"
    code: int = exits.DONE
    seconds: float = 0.0
    begun: bool = False
    """Whether the run has begun."""
    trace: Sequence[Node] = ()
    """The nodes of the run so far."""
    at: str = ""
    """The name of the last node that the run reached. Empty before the first node."""
    usage: Usage = field(default_factory=Usage)
    """The usage of the run, including its usage before a resume."""
    result: Node | None = None
    copies: Copies | None = None
    """The fields that may hold copies of secrets."""
    waiting: tuple[OpenGate, ...] = ()
    error: BaseException | None = None
    kept: bool = False
    """Whether the journal has the run, so that it can be resumed."""

    def take_history(self, history: History) -> None:
        """Set the fields about the progress of the run from its history."""
        self.begun, self.usage = True, history.usage
        steps = [step for step in history.run.trace if step.is_complete]
        self.trace = [step.node for step in steps if step.node is not None]
        newest = history.run.newest
        if newest is None:
            return
        before, chosen = newest.before, newest.choice and newest.choice.chosen
        early = not newest.is_complete and newest.given is None and newest.fill is None
        if early and before is not None and before.is_open:
            self.at = before.name  # `newest` has only prefetched dependencies
        else:
            self.at = newest.name if chosen in (None, NoneType) else chosen.__name__

    def take_result(self, result: GraphResult[Any]) -> None:
        """Set the fields about the outcome of the run from its result."""
        self.trace, self.usage, self.waiting = result.trace, result.usage, result.waiting
        if result.waiting:
            self.kind, self.code = "waiting", exits.WAITING
        elif result.unfinished:  # another process owns the run, and continues it
            self.kind, self.code = "running", exits.ELSEWHERE
        else:
            self.kind, self.code, self.result = "ended", exits.DONE, result.result


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The arguments of a command line. Its methods return other commands with the same arguments,
    which the user can copy."""

    module: str | None
    """The argument MODULE. With None, pyproject.toml names the graph."""
    journal: str | None
    """The journal, or None without a journal."""
    lm: str | None = None
    """The value of --lm. With None, the commands use the default LM."""
    optimized: str | None = None
    """The value of --optimized: a directory of learned prompts."""

    def resume(self, run_id: str, *more: str) -> str:
        """Return the command that resumes a run."""
        return self._line("runs resume", [short_id(run_id)], *more)

    def answer(self, run_id: str, gate: OpenGate, *, among: int = 1) -> str:
        """Return the command that answers a gate, with an example answer. `among` is the number of
        open gates with the same name."""
        name = short_name(gate) if among == 1 else gate.address
        return self.answer_with(run_id, name, example_of(*answer_field(gate)))

    def answer_with(self, run_id: str, gate: str | None, value: str | None) -> str:
        """Return the command that answers `gate` with `value`. Without `value`, the command asks
        the user. Without `gate`, it answers the only open gate."""
        words = [word for word in (gate, value) if word is not None]
        return self._line("runs answer", [short_id(run_id), *words])

    def show(self, run_id: str) -> str:
        """Return the command that shows a run."""
        return CommandLine(None, self.journal)._line("runs show", [short_id(run_id)])

    def chat(self, thread: str) -> str:
        """Return the command that continues a conversation."""
        arguments = [] if self.module is None else [self.module]
        option = [f"--thread={thread}"] if thread.startswith("-") else ["--thread", thread]
        return replace(self, module=None)._line("chat", arguments, *option)

    def _line(self, command: str, given: list[str], *more: str) -> str:
        # After `--`, an argument may begin with a hyphen. No option may follow `--`.
        last = ["--", *given] if any(word.startswith("-") for word in given) else []
        line = ["bae", *command.split(), *([] if last else given), *more]
        options = {"--lm": self.lm, "--optimized": self.optimized, "-m": self.module}
        if self.journal is not None and Path(self.journal) != Path(default()):
            options["-j"] = self.journal
        for option, value in options.items():
            line += [option, value] if value is not None else []
        return shlex.join([*line, *last])


def short_name(gate: OpenGate | ParkedGate) -> str:
    """Return the short name of a gate on the command line: its field, or the id of the tool call
    that waits for approval."""
    place = Place.parse(gate.place)
    calls = [] if place is None else place.parameters[1:2]
    return calls[0] if calls else gate.place


def short_id(run_id: str) -> str:
    """Return the beginning of a random run id. An id that the user chose is not cut."""
    return run_id[:8] if re.fullmatch("[0-9a-f]{24}", run_id) else run_id


def print_outcome(
    outcome: RunOutcome, command_line: CommandLine, summary: Text, *, as_json: bool, quiet: bool
) -> None:
    """Print the outcome of a run, without its error. The caller raises the error."""
    if as_json:
        print_json(_as_data(outcome))
    if not quiet and outcome.begun and outcome.error is None and err().is_terminal:
        err().print()  # between the progress and the outcome
    if outcome.result is not None and not as_json:
        print_node(outcome.result, out(), outcome.copies)
    elif outcome.kind == "waiting":
        _print_waiting(outcome, command_line)
    elif outcome.kind == "cancelled":
        _print_cancelled(outcome, command_line)
    elif outcome.kind == "running" and outcome.error is None:  # an error would name the owner
        note(f"another process has the run {outcome.run_id}, and continues it")
    if not quiet and outcome.begun and outcome.kind in ("ended", "waiting"):
        err().print(summary)


def _as_data(outcome: RunOutcome) -> dict[str, Any]:
    result, usage = outcome.result, outcome.usage
    spent = ("calls", "input_tokens", "output_tokens", "cost")
    return {
        "run_id": outcome.run_id,
        "outcome": outcome.kind,
        "graph": outcome.graph,
        "result": result
        and {"type": type(result).__name__, "fields": fields_of(result, outcome.copies)},
        "trace": [type(node).__name__ for node in outcome.trace],
        "seconds": round(outcome.seconds, 3),
        "usage": {name: getattr(usage, name) for name in spent},
        "waiting": [
            {
                "gate": gate.address,
                "place": gate.place,
                "question": gate.question,
                "type": type_name(gate.type),
                "call": None if gate.call is None else call_data(gate.call),
                "deadline": None if gate.deadline is None else iso(gate.deadline),
            }
            for gate in outcome.waiting
        ],
        "error": error_data(outcome.error),
    }


def call_data(call: ToolCall) -> dict[str, Any]:
    """Return a tool call that waits for approval as JSON."""
    return {"id": call.id, "name": call.name, "arguments": call.arguments}


def parked_data(gates: Sequence[ParkedGate], opened: Sequence[OpenGate]) -> list[dict[str, Any]]:
    """Return the questions that a stored run waits for, as JSON.

    `opened` has the same gates with their tool calls. If a gate is not in `opened`, its tool call
    is None. The types of answers are missing, because the commands that call this function do not
    load the graph.
    """
    calls = {gate.address: gate.call for gate in opened}
    questions: list[dict[str, Any]] = []
    for gate in gates:
        call = calls.get(gate.address)
        about = {"gate": gate.address, "call": None if call is None else call_data(call)}
        questions.append(as_data(gate) | about)
    return questions


def _print_waiting(outcome: RunOutcome, command_line: CommandLine) -> None:
    console = err()
    console.print(Text(f"the run {outcome.run_id} waits for an answer", style="yellow"))
    names = Counter(map(short_name, outcome.waiting))
    for gate in outcome.waiting:
        line = Text("  ").append(in_lines(gate.question, 6), style="bold")
        line.append(
            f"  {gate.place}: {describe_type(gate.type)}{describe_deadline(gate)}", style="dim"
        )
        console.print(line, soft_wrap=True)
        if command_line.journal is not None:
            command = command_line.answer(outcome.run_id, gate, among=names[short_name(gate)])
            print_hanging(console, Text(f"  answer with: {command}"), 4)
    if command_line.journal is None:
        note(
            "no journal is kept, so the run cannot be resumed: run the graph at a terminal, which "
            "asks, or with a journal"
        )


def _print_cancelled(outcome: RunOutcome, command_line: CommandLine) -> None:
    console = err()
    codes = {exits.TERMINATED: "terminated", exits.HUNG_UP: "hung up"}
    line = Text(codes.get(outcome.code, "interrupted"), style="bold yellow")
    if outcome.at:
        line.append(f" after {outcome.seconds:.1f} s, at {outcome.at}")
        line.append(
            _describe_path([type(node).__name__ for node in outcome.trace], outcome.at), style="dim"
        )
    else:
        line.append(" before the first node")
    if outcome.usage.calls:
        line.append(f", {count(outcome.usage.calls, 'LM call')}")
    console.print(line, soft_wrap=True)
    if outcome.kept:
        print_hanging(console, Text(f"resume with: {command_line.resume(outcome.run_id)}"), 2)
    elif command_line.journal is None:
        note("no journal is kept, so the run cannot be resumed")
    else:
        note("the journal has nothing of the run yet: run it again")


def _describe_path(done: list[str], at: str) -> str:
    """Describe the nodes before the node `at`, as ` (after Day -> Walk)`. Return an empty text if
    there are none."""
    before = done[:-1] if done and done[-1] == at else done
    if not before:
        return ""
    shown_nodes = [*before[:2], "…", *before[-2:]] if len(before) > 5 else before
    return f" (after {' -> '.join(shown_nodes)})"


# --- the next command -----------------------------------------------------------------------------


def advise(
    error: BaeError, run_id: str, command_line: CommandLine, *, kept: bool, answered: bool = False
) -> None:
    """Rewrite the fix of an error for the command line. For example, it names `--max-iters 20` in
    place of `max_iters=20`.

    `kept` says that the journal has the run, so it can be resumed. `answered` says that the journal
    has the answer of `bae runs answer`.
    """
    resume = command_line.resume(run_id)
    error.trace_note = ""  # it names the attribute `trace`, which a user at a terminal cannot read
    match error:
        case ProofError():
            error.fix = "fix it, or keep no journal of the run: --no-journal"
            return
        case BudgetError():
            if error.code == "bae-budget-cost-unknown":
                return
            more = f"{error.limit}={error.bound * 2 or 1:g}"
            again = command_line.resume(run_id, "--budget", more)
            error.fix = again if kept else f"allow it more with --budget {more}"
            return
        case LimitError() if error.limit == "max_iters":
            more = f"{error.bound * 2:g}"
            again = (
                command_line.resume(run_id, "--max-iters", more) if kept else f"--max-iters {more}"
            )
            way_out = "; or give the loop a way out" if error.looped else ""
            error.fix = f"{again}  (0 is no bound){way_out}"
            return
        case _:
            pass
    other = replace(command_line, module="MODULE").resume(run_id)
    fixes = {
        "bae-lm-missing": rewrite_lm_fix(error, "with --lm, as --lm local"),
        "bae-run-exists": f"give another --run-id, or resume that one: {resume}",
        "bae-journal-secret": f"resume the run at a terminal, which asks for it: {resume}",
        "bae-run-owned": "leave it to the process that has it, or end that one and try again",
        "bae-run-graph": f"name the module of the graph that it was begun with: {other}",
    }
    if error.code in fixes:
        error.fix = fixes[error.code]
    elif isinstance(error, GateError):
        advise_gate(error, run_id, command_line)
    elif kept:
        stored = "the answer is stored, and " if answered else ""
        error.add_note(f"{stored}progress is saved; after fixing it, resume with: {resume}")


def advise_gate(error: GateError, run_id: str, command_line: CommandLine) -> None:
    """Rewrite the fix of an error about a gate for the command line."""
    if error.code == "bae-gate-answered":
        error.fix = f"resume the run: {command_line.resume(run_id)}"
    elif error.code == "bae-gate-timeout" and error.fix:
        error.fix += f": {command_line.resume(run_id)}"
