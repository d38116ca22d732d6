"""`bae runs resume`, `bae runs fork` and `bae runs answer`: continue the runs of a journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text

from bae.cli.exits import refusal
from bae.cli.journals import file_to_read, find_run_id, stored_run, use
from bae.cli.learned import check_optimized, lm_with_learned
from bae.cli.lm import check_lm, lm_for
from bae.cli.loading import load
from bae.cli.options import (
    AsJSON,
    BudgetLimits,
    JournalFile,
    LMName,
    MoreIters,
    NewestRun,
    NewId,
    NoAsk,
    NoRun,
    OfModule,
    OneRun,
    Optimized,
    Quiet,
    SecretsOption,
    Sets,
    argument,
    budget_of,
    option,
)
from bae.cli.options import open_gates as gate_names
from bae.cli.outcome import CommandLine, advise_gate, short_name
from bae.cli.printing import err, note, out, print_json
from bae.cli.questions import ask_answer, can_ask
from bae.cli.replay import read_secrets
from bae.cli.run import RunCommandOptions, carry_out
from bae.cli.start import read_sets
from bae.cli.values import UnfitText, answer_field, describe_type, example_of, is_secret, read
from bae.cli.wording import in_lines
from bae.exceptions import BaeError, GateError, JournalError
from bae.journal.decoder import decode_run, graph_at
from bae.journal.gates import all_gates, describe_status, find_gate, open_gates
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.journal.stored_runs import StoredRun
    from bae.lm import LM
    from bae.markers import OpenGate
    from bae.node import Node


def resume(
    run: NewestRun = None,
    module: OfModule = None,
    journal: JournalFile = None,
    sets: SecretsOption = None,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MoreIters = None,
    budget: BudgetLimits = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
    no_ask: NoAsk = False,
) -> None:
    """Continue a run after Ctrl-C, a crash, a failure or an answer.

    Recorded work is not repeated. `--budget` includes the usage so far.
    """
    options = RunCommandOptions(budget_of(budget), as_json, quiet, not no_ask, resumes=True)
    graph, command_line = _load_checked(module, journal, lm, optimized)
    stored = stored_run(journal, run, write=True)
    _continue(graph, stored, command_line, sets or (), max_iters, options)


def fork(
    run: OneRun,
    at: Annotated[
        int,
        option("--at STEP", "The node to continue from; the start is 0.", min=0),
    ],
    module: OfModule = None,
    journal: JournalFile = None,
    sets: Sets = None,
    new_id: NewId = None,
    no_run: NoRun = False,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MoreIters = None,
    budget: BudgetLimits = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
    no_ask: NoAsk = False,
) -> None:
    """Copy a run up to one of its nodes, and continue the copy.

    `--set` changes fields of this node. The steps before the node are not repeated, and the
    original run does not change. With `--no-run`, the copy is not continued, and its id is printed.
    """
    options = RunCommandOptions(budget_of(budget), as_json, quiet, not no_ask, resumes=True)
    graph, command_line = _load_checked(module, journal, lm, optimized)

    async def make_fork(runs: Journal) -> StoredRun:
        run_id = await find_run_id(runs, run)
        changed: dict[str, Any] = {}
        if sets:
            stored = await runs.read(run_id)
            _, history = await decode_run(graph, stored.lines, files=stored.files, partial=True)
            step = history.step("", at)
            if step is not None and step.is_complete and step.node_type is not None:
                changed = read_sets(step.node_type, sets)
        try:
            fork_id = await graph.fork(run_id, at=at, journal=runs, new_id=new_id, changed=changed)
        except JournalError as error:
            if error.code == "bae-journal-secret" and error.fix:
                error.fix = "give it to the fork with --set FIELD=VALUE"
            elif error.code == "bae-fork-step" and error.fix:
                error.fix = error.fix.replace("give at= the number", "give --at the number")
            raise
        return await runs.read(fork_id)

    stored = use(journal, make_fork, write=True)
    info = stored.info
    if not no_run:
        if not quiet:
            note(f"{info.run_id} is forked from {info.parent} at step {at}")
        _continue(graph, stored, command_line, (), max_iters, options)
    elif as_json:
        print_json({"run_id": info.run_id, "parent": info.parent, "at": at})
    else:
        out().print(Text(info.run_id))
        if not quiet:
            note(f"resume it with: {command_line.resume(info.run_id)}")


def answer(
    run: NewestRun = None,
    gate: Annotated[
        str | None,
        argument(
            "GATE",
            "The gate: its field, such as `Refund.approved` or `approved`; for a tool call the id, "
            "such as `c3`; or the address, if several gates have the same name. Optional if one "
            "gate is open: `bae runs answer last yes`.",
            autocompletion=gate_names,
        ),
    ] = None,
    value: Annotated[
        str | None,
        argument(
            "VALUE",
            "The answer: JSON if that is valid for the field, otherwise text. About a tool call: "
            "yes, no, `no: REASON`, run (yes to all calls of the tool in this run), or "
            '`{"arguments": {…}}`. Default: asked for at a terminal.',
        ),
    ] = None,
    module: OfModule = None,
    journal: JournalFile = None,
    no_run: NoRun = False,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MoreIters = None,
    budget: BudgetLimits = None,
    as_json: AsJSON = False,
    quiet: Quiet = False,
    no_ask: NoAsk = False,
) -> None:
    """Answer a gate that a run waits for, and continue the run.

    The answer is validated before it is stored. A second answer to a gate is refused. With
    `--no-run`, the answer is stored, and the run is not continued.
    """
    limits = budget_of(budget)
    try:
        graph, command_line = _load_checked(module, journal, lm, optimized)
    except BaeError as error:
        error.add_note("no answer is stored: the run still waits for it")
        raise
    stored = stored_run(journal, run, write=True)
    run_id = stored.info.run_id
    open_gate, value = _find_gate(graph, stored, gate, value, command_line)
    reply = _read_answer(graph, run_id, open_gate, value, command_line, ask=not no_ask)
    if not no_run:
        model = _choose_lm(graph, stored, command_line, quiet=quiet)

        def continue_run(run_journal: Any, answerer: Any) -> Any:
            return graph.answer(
                run_id,
                open_gate.address,
                reply,
                model,
                max_iters,
                journal=run_journal,
                answer=answerer,
            )

        options = RunCommandOptions(
            limits, as_json, quiet, not no_ask, resumes=True, gate=open_gate.address
        )
        carry_out(graph, run_id, continue_run, command_line, options)
        return

    async def store(runs: Journal) -> None:
        await graph.answer(run_id, open_gate.address, reply, journal=runs, go_on=False)

    use(journal, store, write=True)
    if as_json:
        print_json({"run_id": run_id, "gate": open_gate.address, "answered": True})
    elif not quiet:
        note(f"{open_gate.place} is answered; resume with: {command_line.resume(run_id)}")


def _load_checked(
    module: str | None, journal: str | None, lm: str | None, optimized: str | None
) -> tuple[Graph[Any, Any], CommandLine]:
    """Load a run's graph, and check the LM and the optimized prompts that the command names. If one
    is missing, the error comes before the user types an answer."""
    graph = load(module, "-m").graph
    check_lm(graph, lm)
    check_optimized(graph, optimized)
    return graph, CommandLine(module, file_to_read(journal), lm, optimized)


def _continue(
    graph: Graph[Any, Any],
    stored: StoredRun,
    command_line: CommandLine,
    sets: Sequence[str],
    max_iters: int | None,
    options: RunCommandOptions,
) -> None:
    run_id = stored.info.run_id
    has_ended = stored.info.status == "ended"  # an ended run needs no secrets
    secrets = {} if has_ended and not sets else read_secrets(graph, stored, sets, ask=options.ask)
    model = _choose_lm(graph, stored, command_line, quiet=options.quiet)

    def continue_run(run_journal: Any, answerer: Any) -> Any:
        return graph.resume(
            run_id, model, max_iters, journal=run_journal, answer=answerer, given=secrets
        )

    carry_out(graph, run_id, continue_run, command_line, replace(options, ended_before=has_ended))


def _choose_lm(
    graph: Graph[Any, Any], stored: StoredRun, command_line: CommandLine, *, quiet: bool
) -> LM | str | None:
    return lm_with_learned(
        graph, lm_for(graph, stored, command_line.lm), command_line.optimized, quiet=quiet
    )


# --- gates --------------------------------------------------------------------------------------


def _find_gate(
    graph: Graph[Any, Any],
    stored: StoredRun,
    gate: str | None,
    value: str | None,
    command_line: CommandLine,
) -> tuple[OpenGate, str | None]:
    """Return the open gate and the value that the arguments GATE and VALUE mean. If only one gate
    is open, a single argument is the value, unless the argument resembles the name of a gate."""
    run_id = stored.info.run_id
    if stored.info.status == "ended":
        raise refusal(
            f"the run {run_id} has ended: it waits for no answer",
            fix=f"see its outcome: {command_line.show(run_id)}",
        )
    unanswered = [gate for gate in open_gates(stored) if gate.address not in stored.answers]
    if len(unanswered) == 1 and (
        gate is None or (value is None and not _resembles_name(gate, stored))
    ):
        gate, value = unanswered[0].address, gate
    names = Counter(map(short_name, unanswered))
    commands: list[str] = []
    for open_gate in unanswered:
        name = short_name(open_gate) if names[short_name(open_gate)] == 1 else open_gate.address
        class_and_field = _find_answer_field(graph, open_gate)
        example = "…" if class_and_field is None else example_of(*class_and_field)
        commands.append(command_line.answer_with(run_id, name, example))
    if gate is None:
        waits = f"no answer: {describe_status(stored.info)}"
        fix = "`bae runs list --status waiting` lists waiting runs"
        if unanswered:
            listed = "".join(
                f"\n  {open_gate.address}: {open_gate.question}" for open_gate in unanswered
            )
            waits, fix = f"{len(unanswered)} answers{listed}", "\n".join(commands)
        raise refusal(f"the run {run_id} waits for {waits}", fix=fix)
    try:
        return find_gate(stored, gate), value
    except GateError as error:
        if error.code in ("bae-gate-unknown", "bae-gate-ambiguous") and unanswered:
            error.fix = "\n".join(commands)
        else:
            advise_gate(error, run_id, command_line)
        raise


def _resembles_name(word: str, stored: StoredRun) -> bool:
    """Return whether a word resembles the name of a gate. A mistyped name must not become an
    answer, because an answer is final."""
    gates = [gate for gate, _ in all_gates(stored)]
    names = [name.lower() for gate in gates for name in gate.names]
    return word.lower() in names or bool(get_close_matches(word.lower(), names, n=1, cutoff=0.8))


def _find_answer_field(graph: Graph[Any, Any], gate: OpenGate) -> tuple[type[Node], str] | None:
    """Return the class and the field that validate the answer to a gate. Return None if the graph
    no longer has the gate."""
    cls = _find_class(graph, gate)
    plan = None if cls is None else plan_of(cls).fields[gate.field_name]
    if cls is None or plan is None or not plan.takes_answer(gate):
        return None
    tool = "" if gate.call is None else gate.call.name
    answer_type = plan.answer_type(tool, gate.parameter.count("("))
    return answer_field(replace(gate, node_type=cls, type=answer_type))


def _find_class(graph: Graph[Any, Any], gate: OpenGate) -> type[Node] | None:
    """Return the node class that has a gate, or None if the graph no longer has the gate."""
    try:
        gate_graph = graph_at(graph, gate.path)
    except BaeError:
        return None
    cls = next(
        (node for node in gate_graph.nodes if node.__name__ == gate.node_type.__name__), None
    )
    return cls if cls is not None and gate.field_name in cls.__pydantic_fields__ else None


def _read_answer(
    graph: Graph[Any, Any],
    run_id: str,
    gate: OpenGate,
    value: str | None,
    command_line: CommandLine,
    *,
    ask: bool,
) -> Any:
    """Return the answer to a gate, in the form that the graph accepts. Without `value`, ask for the
    answer at the terminal."""
    class_and_field = _find_answer_field(graph, gate)
    if class_and_field is None:
        return value  # the graph reports the mismatch
    cls, name = class_and_field
    if value is not None:
        try:
            return read(cls, name, value).to_input(cls, name)
        except UnfitText as misfit:
            answer_text = "the given value" if is_secret(cls, name) else repr(value)
            raise GateError(
                f"{gate.place}: {answer_text} is no answer to {gate.question!r}: {misfit}",
                node_type=cls,
                field_name=name,
                code="bae-gate-invalid",
                fix=f"answer with {describe_type(cls.__pydantic_fields__[name].annotation)}; "
                "the run still waits",
            ) from None
    if not (ask and can_ask()):
        example = example_of(cls, name)
        line = command_line.answer_with(run_id, short_name(gate), example)
        raise refusal(
            f"no VALUE was given for {gate.place}: {gate.question}",
            fix=line if example else f"{line}  at a terminal, which asks for it",
        )
    err().print(Text("? ", style="bold yellow").append(in_lines(gate.question, 4), style="bold"))
    return ask_answer(cls, name)
