"""Replay: a recorded run is run again with every recorded value, and nothing is called outside.
Bodies and graphs inside are run again and compared with the recording."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from difflib import unified_diff
from itertools import chain, combinations
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, cast

from bae import exceptions
from bae.assignable import type_name
from bae.draft import hold
from bae.exceptions import BaeError, CallTimeout, LimitError, ReplayError
from bae.files import visible
from bae.history import History
from bae.journal.decoder import decode_run, read_history
from bae.journal.earlier_turns import turns_of
from bae.journal.export import RecordedRuns
from bae.journal.lines import Encoder
from bae.journal.past import RecordedPast, is_answer_to, is_done
from bae.journal.shape import ShapeView
from bae.node import Node
from bae.place import Place
from bae.plan import plan_of
from bae.prompts.questions import choice_question, fill_question, names_of
from bae.records import NOTHING, Asker, RecordedError, RunEnded, Unstored
from bae.resolver import find_ahead
from bae.result import GraphResult
from bae.run import Run, RunOptions, Waiting
from bae.run_tree import call_behind
from bae.runner import run_graph
from bae.unicode import readable
from bae.writer import Writer

if TYPE_CHECKING:
    from bae.arguments import Arguments
    from bae.calls import Input
    from bae.given_lm import AskedLM
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.journal.stored_runs import StoredRun
    from bae.language_model import LM, Scene
    from bae.past import FindNext
    from bae.plan import FieldPlan, NodePlan
    from bae.records import LMAnswered
    from bae.usage import Attempt
    from bae.work import ToolLoop
    from bae.writer import StartStep

T = TypeVar("T", bound=Node)


async def replay(
    graph: Graph[Any, T],
    run_id: str,
    journal: Journal,
    dep_cache: dict[Any, Any] | None,
    given: Mapping[str, Any] | None,
) -> GraphResult[T]:
    """Run a recorded run again."""
    graph.prove()
    stored = await journal.read(run_id)
    turns = await turns_of(journal, graph, stored)
    _, past = await decode_run(graph, stored.lines, files=stored.files, given=given, turns=turns)
    # Without the current observers: they were called with these records when the run happened.
    options = RunOptions(_NO_LM, _limit_reached(past), False, None, dep_cache)
    run = Run(options, run_id=run_id)
    run.turns = turns
    run.past = ReplayedPast(graph, past, ShapeView(stored.shape, stored.info.shape))
    run.writer = ReplayWriter(run.past)
    with visible(stored.files):
        return await run_graph(graph, cast("Node", past.run.start), run)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A run that was replayed without a difference: the classes of its nodes, and its outcome, with
    the gates that it waits for, or the error that it failed with."""

    run_id: str
    outcome: Literal["ended", "waiting", "failed"]
    trace: tuple[str, ...]
    waiting: tuple[str, ...] = ()
    error: str = ""


async def repeat(
    graph: Graph[Any, Any],
    stored: StoredRun,
    given: Mapping[str, Any] | None = None,
    earlier: Sequence[StoredRun] = (),
) -> Repeated:
    """Replay a run from any journal. `given` has the secrets that no journal stores, and `earlier`
    the runs of the turns that it shows. Raises `ReplayError` for a difference; a recorded failure
    that happens again is no difference."""
    info = stored.info
    journal = RecordedRuns([*earlier, stored], info.run_id)
    try:
        result = await graph.replay(info.run_id, journal=journal, given=given)
    except ReplayError:
        raise
    except BaeError as error:
        recorded = read_history(stored).run.end_error
        if info.status != "failed" or not _is_same_failure(error, recorded):
            raise
        return Repeated(info.run_id, "failed", _names(error.trace or ()), error=info.error)
    waiting = tuple(gate.place for gate in result.waiting)
    return Repeated(info.run_id, "waiting" if waiting else "ended", _names(result.trace), waiting)


class ReplayedPast(RecordedPast):
    """The past of a run that is replayed. It has every value, and raises `ReplayError` for a
    difference from the recording."""

    def __init__(self, graph: Graph[Any, Any], past: History, shape: ShapeView) -> None:
        super().__init__(graph, past)
        self._shape = shape
        self._encoder = Encoder(graph, secrets=True, prompts=False)
        self._recovered = {
            key
            for key, calls in past.shared_calls.items()
            if key in past.shared and any(error is not None for _, error in calls)
        } | {
            asked
            for asked, sources in self._look_ups().items()
            if any(source.error is not None for source in sources)
        }
        """Dependencies that are called once in the whole run, or once for equal arguments, and that
        failed before they had a value."""
        self._prompts = _prompts(past)

    # Comparing

    def begin(
        self, run: Run, graph: Graph[Any, Any], start: Node
    ) -> tuple[Node, bool, FindNext | None]:
        """The first node: as it was given, or as a fork has it there. Graphs are run again. For a
        function that failed at first, the outcome is looked up for each node."""
        drawn = self._shape.graph_at(run.path)
        if drawn is not None and graph.needs_lm and drawn.get("system") != graph.system:
            message = f"the system text of the graph {graph.name} differs from the recorded one"
            raise _differs(
                message, drawn.get("system", "(bae's own)"), graph.system or "(bae's own)"
            )
        if not run.path and run.flow is not None:
            known = {
                key: source
                for key, source in self._shared_sources().items()
                if key not in self._recovered and source.graph is None
            }
            self._take_known(run.flow, known)
        step = self._history.step(run.path, 0)
        forked = None if step is None else step.forked
        return start if forked is None else forked.node, False, self._forked_node

    def step_starter(self, run: Run, start_step: StartStep) -> StartStep:
        """The function that compares each node of a run with the recorded one."""

        def compare_step(now: float) -> None:
            node = run.trace[-1]
            recorded = self._recorded_node(run.path, run.step)
            if recorded is None:
                if self._history.following(run.path, run.step) is None:
                    raise self._other_node(run, None, node)
                raise self._end_before(f"{type(node).__name__}, step {run.step}")
            known = _as_far_as(recorded, node) if type(recorded) is type(node) else node
            # Not only by the text: a set is written in another order each time.
            if type(recorded) is not type(known) or not (
                recorded == known or self._encoder.node(recorded) == self._encoder.node(known)
            ):
                raise self._other_node(run, recorded, known)
            start_step(now)
            if self._recovered and run.flow is not None:
                run.flow.forget_failures()

        return compare_step

    def check_end(self, run: Run, ended: RunEnded) -> None:
        """Check that the run does not end before the recording does."""
        following = self._recorded_node(run.path, run.step)
        if ended.outcome == "ended" and following is not None:
            raise self._other_node(run, following, None)

    # Looking back

    def _forked_node(self, run: Run) -> Any:
        """The node that a fork has put at the step, otherwise `NOTHING`: bodies are called, and
        the LM's nodes are looked up by `choice` and `fill`."""
        recorded = self._history.step(run.path, run.step)
        return NOTHING if recorded is None or recorded.forked is None else recorded.forked.node

    def choice(self, run: Run, plan: NodePlan, about: Scene) -> Any:
        """The class that the LM chose, if it is still offered."""
        chosen = super().choice(run, plan, about)
        if chosen is NOTHING:
            raise self._nothing_more(run, f"the choice after {plan.name}")
        if chosen not in plan.offered:
            was, offered = type_name(chosen), ", ".join(map(type_name, plan.offered))
            message = f"the LM chose {was} after {plan.name}, which now offers {offered}"
            raise _differs(f"{_at(run)}: {message}", was, offered)
        asker = Asker("choice", plan.node)
        recorded = self._prompts.get((run.path, run.step, asker))
        if recorded is not None:
            texts = _choices(run, plan, about, recorded.filled)
            likeliest = next(texts)
            if all(recorded.asked != text for text in chain([likeliest], texts)):
                self._compare_prompt(run, asker, likeliest)
        return chosen

    def fill(
        self,
        run: Run,
        plan: NodePlan,
        previous: Node | None,
        resolved: Mapping[str, Any],
        about: Scene,
    ) -> Any:
        """The node that the LM filled, if the question would still be the same."""
        step = self._history.step(run.path, run.step)
        if step is None or step.filled is None:
            raise self._nothing_more(run, f"the fill of {plan.name}")
        node = step.filled.node
        if type(node) is not plan.node:
            raise self._other_node(run, node, plan.node)
        asker = Asker("fill", plan.node)
        recorded = self._prompts.get((run.path, run.step, asker))
        if recorded is not None and recorded.filled is None:
            about = about.recalling(None)  # older prompts show a recalled value twice
        question = fill_question(plan.node, resolved, plan.instruction, previous, about)
        self._compare_prompt(run, asker, question.text)
        if step.fill is not None and step.fill.loop is not None:
            self._compare_tools(plan, step.fill.loop)
        return node

    def _compare_tools(self, plan: NodePlan, loop: ToolLoop) -> None:
        """Raise an error if a tool has changed since the LM read its description. Tools that are
        only known in a run are not compared: nothing is called."""
        if plan.tools is None:
            raise _differs(f"{plan.name} has no tools any more", loop.field_name, "(no field)")
        field = plan.tools
        now = {tool_spec.name: tool_spec.as_json for tool_spec in field.tool_specs}
        for was in (tool for tool in loop.tools if "schema" in tool):  # it may be redacted
            name: str = was["name"]
            if now.get(name) != was and (name in now or not field.finds_tools):
                message = f"{plan.name}.{field.name}: the tool {name} is not what the LM was told"
                raise _differs(message, _indent(was), _indent(now.get(name)))
        known = {tool["name"] for tool in loop.tools}
        new = ", ".join(name for name in now if name not in known)
        if new:
            message = f"{plan.name}.{field.name} has tools that the LM was not told of: {new}"
            raise _differs(message, "", new)

    def value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """The recorded value of a source; a recorded error is raised. Graphs are run again, unless
        they run for another field."""
        call, is_shared = call_behind(node_type, place)
        key = call.key if call is not None and is_shared else None
        if call is not None and call.graph is not None:
            ran_here = str(place) in self._history.graphs
            shared = None if early or ran_here else self._history.shared.get(key)
            if asked is not None and not ran_here:
                shared = self._history.source(place)
            return NOTHING if shared is None or not is_done(shared) else shared.value
        known = super().value(place, node_type, early, asked)
        source = self._history.source(place)
        if asked is not None and source is not None:
            was = self._arguments(source)
            if not was.fits(asked):
                where = f"{place.node}.{place.field}{place.parameter}"
                message = f"{where}: {source.by} is called with other arguments than were recorded"
                raise _differs(message, repr(was), repr(asked))
        if early or known is not NOTHING:
            return known
        if key in self._recovered or key in self._history.failed_keys:
            known = self._outcome_then(key, place)
        elif source is not None and source.error is not None:
            raise _raised_again(source.error)
        elif source is not None and source.state == "waiting":
            return NOTHING  # so that it waits again
        if known is NOTHING or isinstance(known, Unstored):
            raise self._no_value(place, call.name if call is not None else "the gate")
        return known

    def _no_value(self, place: Place, by: str) -> ReplayError:
        how = self._how_it_ended()
        return ReplayError(
            f"{place.node}.{place.field}{place.parameter}: the recording has no value of {by} "
            "here: no journal holds it, or the run did not ask for it"
            f"{f' ({how})' if how else ''}",
            code="bae-replay-live",
            fix=f"give a stand-in: dep_cache={{{by}: …}}; or record the run again",
        )

    def value_outside(
        self, place: Place, asked: FieldPlan | Input, arguments: Arguments | None
    ) -> Any:
        """The result of a function for a class outside the graph. Graphs are run again."""
        known = super().value_outside(place, asked, arguments)
        if known is NOTHING and asked.call is not None and asked.call.graph is None:
            raise self._no_value(place, asked.call.name)
        return known

    def items(self, place: Place, node_type: type[Node]) -> Mapping[int, Any]:
        """The values of the items of a map; empty if graphs are run for them again."""
        call, _ = call_behind(node_type, place)
        is_graph = call is None or call.graph is not None
        return {} if is_graph else super().items(place, node_type)

    def complete_node(self, run: Run, node: Node, values: Mapping[str, Any]) -> Node:
        """A copy of a node with the values of its sources, and the defaults that it had."""
        step = self._history.step(run.path, len(run.trace))
        if step is not None and type(step.node) is type(node):
            held = step.node.__dict__
            values = {**{name: held[name] for name in step.made if name in held}, **values}
        return super().complete_node(run, node, values)

    def lm_answer(self, asked: AskedLM) -> Any:
        """The answer of an LM to a body or a dependency. If a question of a body failed, the error
        is raised again."""
        question = asked.record()
        step = self._history.step(question.path, question.step - 1)
        if question.asker.kind == "body" and step is not None:
            for index, failed in enumerate(step.failed):
                if is_answer_to(failed, question):
                    raise _raised_again(step.failed.pop(index).error)
        known = super().lm_answer(asked)
        if known is NOTHING:
            return self._refuse_question(asked.record(), asked.text)
        if isinstance(known, Node) and plan_of(type(known)).tools is not None:
            key = question.conversation(type(known).__name__)
            loop = self.tool_loop(question.path, question.step, question.asker, key)
            if loop is not None:
                self._compare_tools(plan_of(type(known)), loop)
        return known

    def _refuse_question(self, asked: LMAnswered, text: str) -> NoReturn:
        """Raise an error for a question to an LM that is not recorded."""
        left = self._answers_to(asked)
        failure = self._failure_at(asked.path, asked.step)
        if not left and failure is not None:
            raise failure
        wanted, recorded = _call(asked), [*map(_call, left)]
        if any(_call(each) == wanted and isinstance(each.value, Unstored) for each in left):
            raise ReplayError(
                f"{asked.asker}: the answer of the LM to {wanted} is not in the recording: it was "
                "redacted, or is a secret",
                code="bae-replay-live",
                fix="record the run again",
            )
        if wanted in recorded:
            was = self._prompts.get((asked.path, asked.step, asked.asker._replace(item=None)))
            message = f"{asked.asker}: {wanted} asks the LM something other than was recorded"
            raise _differs(message, was.asked if was else "(the text was not recorded)", text)
        answered = ", ".join(recorded)
        message = (
            f"{asked.asker}: asks the LM for {wanted}; recorded is {answered or 'nothing more'}"
        )
        raise _differs(message, answered or "(nothing)", wanted)

    def _outcome_then(self, key: Hashable, place: Place) -> Any:
        """The value of a dependency that has failed at some time, if it had one when the run
        reached a node; otherwise the error is raised."""
        step = self._history.step(place.path, place.step)
        until = step.whole_count if step is not None and step.whole else self._history.count
        before = [error for count, error in self._history.shared_calls[key] if count < until]
        if before and before[-1] is not None:
            raise _raised_again(before[-1])
        shared = self._history.shared.get(key)
        return NOTHING if shared is None else shared.value

    def _compare_prompt(self, run: Run, asker: Asker, text: str) -> None:
        recorded = self._prompts.get((run.path, run.step, asker))
        if recorded is not None and recorded.asked != text:
            message = f"{_at(run)}: {asker}, the question to the LM differs from the recorded one"
            raise _differs(message, recorded.asked, text)

    def _other_node(self, run: Run, was: Node | None, now: Node | type[Node] | None) -> ReplayError:
        """The error for a step with a node other than recorded, or for another end of the run."""
        place, then = _at(run), type(was).__name__
        name = now.__name__ if isinstance(now, type) else type(now).__name__
        if now is None:
            message = f"{place}: the run continued to {then}, and now ends there"
        elif was is None:
            message = f"{place}: the run ended there, and now continues to {name}"
        else:
            message = f"{place} was a {then} and is a {name}"
            if then == name:
                message = f"{place}: {name} is not as it was"
            if run.step:
                message += f", after {type(run.trace[run.step - 1]).__name__}"
        return _differs(message, self._describe_node(was), self._describe_node(now))

    def _describe_node(self, node: Node | type[Node] | None) -> str:
        if node is None:
            return "(end)"
        if isinstance(node, type):
            return f"{node.__name__}(…)"
        return json.dumps(json.loads(self._encoder.node(node)), indent=2, ensure_ascii=False)

    def _failure_at(self, path: str, step: int) -> BaeError | Waiting | None:
        """The error of the run, or of a graph inside it, at this point, or the gates that it waits
        for in a conversation with tools; None for an error that is not bae's own."""
        graph = self._history.graphs.get(path)
        if graph is not None and graph.outcome == "waiting" and graph.end_step == step:
            return Waiting(graph.gates)
        if graph is None or graph.end_error is None or graph.end_step != step:
            return None
        error = _raised_again(graph.end_error)
        return error if isinstance(error, BaeError) else None

    def _nothing_more(self, run: Run, what: str) -> BaeError | Waiting:
        return self._failure_at(run.path, run.step) or self._end_before(what)

    def _end_before(self, what: str) -> ReplayError:
        how = self._how_it_ended()
        message = f"the run is recorded as {how}" if how else "the run was interrupted before it"
        return ReplayError(
            f"the recording ends before {what}: {message}",
            code="bae-replay-ended",
            fix="resume the run with graph.resume, and replay it then",
        )

    def _how_it_ended(self) -> str:
        run = self._history.run
        if run.outcome in ("", "ended"):
            return ""
        error = f": {run.end_error}" if run.end_error is not None else ""
        return f"{run.outcome}{error}"


class ReplayWriter(Writer):
    """Keeps the records of a replay, and checks how the run and the graphs inside it end."""

    def __init__(self, past: ReplayedPast) -> None:
        super().__init__()
        self._past = past

    async def finish(self, run: Run, ended: RunEnded) -> None:
        """Record how the run ended."""
        await super().finish(run, ended)
        self._past.check_end(run, ended)


class _NoLM:
    """Stands in place of a run's LM: a replay asks none."""

    async def make(self, *_: Any, **__: Any) -> Any:
        raise ReplayError(
            "an LM would be asked, and a replay asks none",
            fix="ask the LM that bae hands to the body or the dependency: its answers are recorded",
        )

    decide = choose_type = fill = make


_NO_LM = cast("LM", _NoLM())


def _choices(
    run: Run, plan: NodePlan, about: Scene, filled: tuple[str, ...] | None
) -> Iterator[str]:
    """The texts that may have asked for a choice: with the options that came `filled`. A journal of
    an older bae does not record these; then any combination is possible."""
    names = names_of(plan.offered)
    ahead = {cls: find_ahead(run, plan_of(cls)) for cls in plan.successors if plan_of(cls).context}
    answers = {cls: each for cls, each in ahead.items() if each is not None}
    resolved = {cls: values for cls, (values, _) in answers.items()}
    able = [
        cls
        for name, cls in names.items()
        if cls is not NoneType
        and ahead.get(cls, ()) is not None
        and (filled is None or name in filled)
    ]
    sets: Iterable[Sequence[type[Node]]] = [able]
    if filled is None:
        sets = chain.from_iterable(combinations(able, n) for n in range(len(able), -1, -1))
    else:
        about = about.recalling(
            {cls: run.origins(records) for cls, (_, records) in answers.items()}
        )
    for fillable in sets:
        prompt = choice_question(plan.offered, fillable, run.trace[-1], None, resolved, about)
        yield prompt.text


def _prompts(past: History) -> dict[tuple[str, int, Asker], Attempt]:
    """The first answer to each asker with a recorded prompt."""
    attempts: dict[tuple[str, int, Asker], Attempt] = {}
    for step in past.steps():
        for question in step.questions:
            for judged in question.answers:
                spot, attempt = (judged.path, judged.step, judged.asker), judged.attempt
                if question.loop is not None:
                    attempt = replace(attempt, asked=question.loop.asked)
                if attempt.asked:
                    attempts.setdefault(spot, attempt)
    return attempts


def _as_far_as(recorded: Node, node: Node) -> Node:
    """A node without the fields that no journal has of the recorded node."""
    held = recorded.__dict__
    if held.keys() >= node.__dict__.keys():
        return node
    known = copy(node)
    values = {n: v for n, v in node.__dict__.items() if n in held}
    hold(known, values, node.__pydantic_extra__, node.__pydantic_fields_set__ & values.keys())
    return known


def _limit_reached(past: History) -> int:
    """The bound on nodes that the run, or a graph inside it, has reached in the end; 0 if it has
    reached none."""
    limit = max(
        (
            graph.end_step
            for graph in past.graphs.values()
            if isinstance(graph.end_error, RecordedError)
            and graph.end_error.type_name == LimitError.__name__
        ),
        default=0,
    )
    furthest = max((step.number + 1 for step in past.steps() if step.whole), default=0)
    return limit if limit >= furthest else 0


def _is_same_failure(error: BaseException, recorded: BaseException | None) -> bool:
    """Whether an error is the recorded one. A journal has no messages of a run with secrets."""
    if not isinstance(error, BaeError) or not isinstance(recorded, RecordedError):
        return False
    is_same = recorded.message == readable(error.message.partition("\n")[0])
    return recorded.code == error.code and (is_same or recorded.is_withheld)


def _raised_again(error: BaseException) -> BaseException:
    """The error of a run or a dependency, to be raised again: one of bae's own errors unchanged,
    any other as an error of the same name."""
    if not isinstance(error, RecordedError):
        return error
    if error.type_name == CallTimeout.__name__:
        return CallTimeout(error.message)
    kind = getattr(exceptions, error.type_name, None) or _find_error_class(error.type_name)
    if not isinstance(kind, type) or not issubclass(kind, BaeError):
        return type(error.type_name, (Exception,), {"__module__": "bae.replay"})(error.message)
    raised = kind.__new__(kind, error.message)  # a user's class may take other arguments
    BaeError.__init__(raised, error.message, fix="it is as recorded: nothing was asked")
    raised.code = error.code or raised.code
    return raised


def _find_error_class(name: str) -> type[BaeError] | None:
    """The class of the program with that name, among the loaded classes; the newest wins."""
    classes = BaeError.__subclasses__()
    for cls in classes:
        classes += cls.__subclasses__()
    return next((cls for cls in reversed(classes) if cls.__name__ == name), None)


def _differs(message: str, was: str, now: str) -> ReplayError:
    texts = was.splitlines(), now.splitlines()
    return ReplayError(
        message,
        diff="\n".join(unified_diff(*texts, "recorded", "replayed", lineterm="", n=2)),
        fix="fix the code; or, where the change is meant, record the run again",
    )


def _indent(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, indent=2, ensure_ascii=False)


def _at(run: Run) -> str:
    return f"{run.path}, step {run.step}" if run.path else f"step {run.step}"


def _call(asked: LMAnswered) -> str:
    return f"{asked.method}({asked.target})" if asked.target else asked.method


def _names(trace: Any) -> tuple[str, ...]:
    return tuple(type(node).__name__ for node in trace)
