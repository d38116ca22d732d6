"""Replay: runs a recorded run again with its recorded values. Bodies and inner graphs run again,
and are compared with the recording. A replay calls no LM and no dependency, and asks no person."""

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
from bae.run_tree import find_call
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
    """Replay a run of a journal, as `Graph.replay` describes."""
    graph.prove()
    stored = await journal.read(run_id)
    turns = await turns_of(journal, graph, stored)
    _, past = await decode_run(graph, stored.lines, files=stored.files, given=given, turns=turns)
    # Observers are left out: they were called when the run was recorded.
    options = RunOptions(_NO_LM, _find_reached_limit(past), False, None, dep_cache)
    run = Run(options, run_id=run_id)
    run.turns = turns
    run.past = ReplayedPast(graph, past, ShapeView(stored.shape, stored.info.shape))
    run.writer = ReplayWriter(run.past)
    with visible(stored.files):
        return await run_graph(graph, cast("Node", past.run.start), run)


@dataclass(frozen=True, slots=True)
class Repeated:
    """A run that was replayed without a difference."""

    run_id: str
    outcome: Literal["ended", "waiting", "failed"]
    trace: tuple[str, ...]
    """The class names of the run's nodes."""
    waiting: tuple[str, ...] = ()
    """The places of the gates that the run waits for."""
    error: str = ""
    """The error with which the run failed."""


async def repeat(
    graph: Graph[Any, Any],
    stored: StoredRun,
    given: Mapping[str, Any] | None = None,
    earlier: Sequence[StoredRun] = (),
) -> Repeated:
    """Replay a stored run of any journal. `given` has the secrets, which the journal does not
    store. `earlier` has the earlier runs of the thread, if nodes of the run show earlier turns.
    Raises `ReplayError` if the replay differs from the recording. If the recorded run failed, the
    replay must fail with the same error."""
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
    """The past of a replayed run. It returns the recorded values, and raises `ReplayError` if the
    run differs from the recording."""

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
            for asked, sources in self.find_look_ups().items()
            if any(source.error is not None for source in sources)
        }
        """The keys of shared dependencies that failed before they returned a value. A shared
        dependency is called once for the whole run, or once for equal arguments."""
        self._prompts = _collect_prompts(past)

    # Comparing

    def begin(
        self, run: Run, graph: Graph[Any, Any], start: Node
    ) -> tuple[Node, bool, FindNext | None]:
        """Return the first node: `start`, or the node that a fork put in its place. Raises
        `ReplayError` if the system text of the graph has changed.

        Before the first step, give the run the values of its shared dependencies. Leave out the
        values of graphs, because graphs run again. Leave out dependencies that failed at first,
        because their outcome depends on the step.
        """
        stored_graph = self._shape.graph_at(run.path)
        if (
            stored_graph is not None
            and graph.needs_lm
            and stored_graph.get("system") != graph.system
        ):
            message = f"the system text of the graph {graph.name} has changed"
            raise _difference_error(
                message, stored_graph.get("system", "(bae's own)"), graph.system or "(bae's own)"
            )
        if not run.path and run.flow is not None:
            finished = {
                key: source
                for key, source in self.find_shared_sources().items()
                if key not in self._recovered and source.graph is None
            }
            self.use_recorded_sources(run.flow, finished)
        step = self._history.step(run.path, 0)
        forked = None if step is None else step.forked
        return start if forked is None else forked.node, False, self._find_forked_node

    def step_starter(self, run: Run, start_step: StartStep) -> StartStep:
        """Return the function that compares each node of a run with the recorded node."""

        def compare_step(now: float) -> None:
            node = run.trace[-1]
            recorded = self.find_recorded_node(run.path, run.step)
            if recorded is None:
                if self._history.following(run.path, run.step) is None:
                    raise self._node_error(run, None, node)
                raise self._early_end_error(f"{type(node).__name__}, step {run.step}")
            stored = _drop_unstored_fields(recorded, node) if type(recorded) is type(node) else node
            # Comparing the JSON is not enough: equal sets may have different JSON.
            if type(recorded) is not type(stored) or not (
                recorded == stored or self._encoder.node(recorded) == self._encoder.node(stored)
            ):
                raise self._node_error(run, recorded, stored)
            start_step(now)
            if self._recovered and run.flow is not None:
                run.flow.forget_failures()

        return compare_step

    def check_end(self, run: Run, ended: RunEnded) -> None:
        """Raise `ReplayError` if the run ends before the recorded run."""
        following = self.find_recorded_node(run.path, run.step)
        if ended.outcome == "ended" and following is not None:
            raise self._node_error(run, following, None)

    # Looking back

    def _find_forked_node(self, run: Run) -> Any:
        """Return the node that a fork put at the step, or `NOTHING`. Other nodes are not looked up
        here: bodies are called again, and `choice` and `fill` look up the LM's answers."""
        recorded = self._history.step(run.path, run.step)
        return NOTHING if recorded is None or recorded.forked is None else recorded.forked.node

    def choice(self, run: Run, plan: NodePlan, about: Scene) -> Any:
        """Return the class that the LM chose. Raises `ReplayError` if the class is not offered any
        more, or if the question has changed."""
        chosen = super().choice(run, plan, about)
        if chosen is NOTHING:
            raise self._missing_record_error(run, f"the choice after {plan.name}")
        if chosen not in plan.offered:
            was, offered = type_name(chosen), ", ".join(map(type_name, plan.offered))
            message = f"the LM chose {was} after {plan.name}, which now offers {offered}"
            raise _difference_error(f"{_describe_step(run)}: {message}", was, offered)
        asker = Asker("choice", plan.node)
        recorded = self._prompts.get((run.path, run.step, asker))
        if recorded is not None:
            texts = _choice_texts(run, plan, about, recorded.filled)
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
        """Return the node that the LM filled. Raises `ReplayError` if the question or a tool has
        changed."""
        step = self._history.step(run.path, run.step)
        if step is None or step.filled is None:
            raise self._missing_record_error(run, f"the fill of {plan.name}")
        node = step.filled.node
        if type(node) is not plan.node:
            raise self._node_error(run, node, plan.node)
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
        """Raise `ReplayError` if a tool has changed since the LM read its description. Tools that a
        function finds during the run are not compared, because a replay does not call the
        function."""
        if plan.tools is None:
            raise _difference_error(
                f"{plan.name} has no tools any more", loop.field_name, "(no field)"
            )
        field = plan.tools
        now = {tool_spec.name: tool_spec.as_json for tool_spec in field.tool_specs}
        # A redacted tool has no schema.
        for was in (tool for tool in loop.tools if "schema" in tool):
            name: str = was["name"]
            if now.get(name) != was and (name in now or not field.finds_tools):
                message = (
                    f"{plan.name}.{field.name}: the tool {name} differs from the recorded tool"
                )
                raise _difference_error(message, _indent(was), _indent(now.get(name)))
        recorded_names = {tool["name"] for tool in loop.tools}
        new = ", ".join(name for name in now if name not in recorded_names)
        if new:
            message = f"{plan.name}.{field.name} has tools that are not recorded: {new}"
            raise _difference_error(message, "", new)

    def value(
        self,
        place: Place,
        node_type: type[Node],
        early: bool = False,
        asked: Arguments | None = None,
    ) -> Any:
        """Return the recorded value of a source, or raise its recorded error. Return `NOTHING` for
        a gate that was waiting, and for a graph that ran at this place, because the graph runs
        again. If the graph ran for another field with the same value, return that value."""
        call, is_shared = find_call(node_type, place)
        key = call.key if call is not None and is_shared else None
        if call is not None and call.graph is not None:
            ran_here = str(place) in self._history.graphs
            shared = None if early or ran_here else self._history.shared.get(key)
            if asked is not None and not ran_here:
                shared = self._history.source(place)
            return NOTHING if shared is None or not is_done(shared) else shared.value
        value = super().value(place, node_type, early, asked)
        source = self._history.source(place)
        if asked is not None and source is not None:
            was = self._arguments(source)
            if not was.fits(asked):
                where = f"{place.node}.{place.field}{place.parameter}"
                message = (
                    f"{where}: the arguments of {source.by} differ from the recorded arguments"
                )
                raise _difference_error(message, repr(was), repr(asked))
        if early or value is not NOTHING:
            return value
        if key in self._recovered or key in self._history.failed_keys:
            value = self._find_outcome_at(key, place)
        elif source is not None and source.error is not None:
            raise _restore_error(source.error)
        elif source is not None and source.state == "waiting":
            return NOTHING  # so that the gate waits again
        if value is NOTHING or isinstance(value, Unstored):
            raise self._missing_value_error(place, call.name if call is not None else "the gate")
        return value

    def _missing_value_error(self, place: Place, by: str) -> ReplayError:
        how = self._describe_end()
        return ReplayError(
            f"{place.node}.{place.field}{place.parameter}: the recording has no value of {by} "
            "here: no journal stores it, or the run did not ask for it"
            f"{f' ({how})' if how else ''}",
            code="bae-replay-live",
            fix=f"give a stand-in: dep_cache={{{by}: …}}; or record the run again",
        )

    def value_outside(
        self, place: Place, asked: FieldPlan | Input, arguments: Arguments | None
    ) -> Any:
        """Return the result of a function for a class outside the graph. Return `NOTHING` for a
        graph, because it runs again."""
        result = super().value_outside(place, asked, arguments)
        if result is NOTHING and asked.call is not None and asked.call.graph is None:
            raise self._missing_value_error(place, asked.call.name)
        return result

    def items(self, place: Place, node_type: type[Node]) -> Mapping[int, Any]:
        """Return the values of the items of a map, by number. If the items are computed by graphs,
        return no values, because the graphs run again."""
        call, _ = find_call(node_type, place)
        is_graph = call is None or call.graph is not None
        return {} if is_graph else super().items(place, node_type)

    def complete_node(self, run: Run, node: Node, values: Mapping[str, Any]) -> Node:
        """Return a copy of a node with the values of its sources, and with the recorded values of
        its default factories."""
        step = self._history.step(run.path, len(run.trace))
        if step is not None and type(step.node) is type(node):
            recorded = step.node.__dict__
            values = {
                **{name: recorded[name] for name in step.factory_fields if name in recorded},
                **values,
            }
        return super().complete_node(run, node, values)

    def lm_answer(self, asked: AskedLM) -> Any:
        """Return the answer of an LM to a body or a dependency. If the question of a body failed,
        raise the recorded error."""
        question = asked.record()
        step = self._history.step(question.path, question.step - 1)
        if question.asker.kind == "body" and step is not None:
            for index, failed in enumerate(step.failed):
                if is_answer_to(failed, question):
                    raise _restore_error(step.failed.pop(index).error)
        answer = super().lm_answer(asked)
        if answer is NOTHING:
            return self._refuse_question(asked.record(), asked.text)
        if isinstance(answer, Node) and plan_of(type(answer)).tools is not None:
            key = question.conversation(type(answer).__name__)
            loop = self.tool_loop(question.path, question.step, question.asker, key)
            if loop is not None:
                self._compare_tools(plan_of(type(answer)), loop)
        return answer

    def _refuse_question(self, asked: LMAnswered, text: str) -> NoReturn:
        """Raise an error for a question to an LM that has no recorded answer."""
        unused = self._answers_to(asked)
        failure = self._failure_at(asked.path, asked.step)
        if not unused and failure is not None:
            raise failure
        call, recorded = _describe_call(asked), [*map(_describe_call, unused)]
        if any(
            _describe_call(answer) == call and isinstance(answer.value, Unstored)
            for answer in unused
        ):
            raise ReplayError(
                f"{asked.asker}: the answer of the LM to {call} is not in the recording: it was "
                "redacted, or is a secret",
                code="bae-replay-live",
                fix="record the run again",
            )
        if call in recorded:
            was = self._prompts.get((asked.path, asked.step, asked.asker._replace(item=None)))
            message = f"{asked.asker}: the question of {call} differs from the recorded question"
            raise _difference_error(
                message, was.asked if was else "(the text was not recorded)", text
            )
        answered = ", ".join(recorded)
        message = (
            f"{asked.asker}: asks the LM for {call}, "
            f"but the recording has {answered or 'no more answers'}"
        )
        raise _difference_error(message, answered or "(nothing)", call)

    def _find_outcome_at(self, key: Hashable, place: Place) -> Any:
        """Return the value of a shared dependency that failed in the run, as of the time when the
        run reached a node. If the last call before that time failed, raise its error."""
        step = self._history.step(place.path, place.step)
        until = (
            step.completing_record if step is not None and step.is_complete else self._history.count
        )
        before = [error for count, error in self._history.shared_calls[key] if count < until]
        if before and before[-1] is not None:
            raise _restore_error(before[-1])
        shared = self._history.shared.get(key)
        return NOTHING if shared is None else shared.value

    def _compare_prompt(self, run: Run, asker: Asker, text: str) -> None:
        recorded = self._prompts.get((run.path, run.step, asker))
        if recorded is not None and recorded.asked != text:
            message = f"{_describe_step(run)}: {asker}, the question to the LM has changed"
            raise _difference_error(message, recorded.asked, text)

    def _node_error(self, run: Run, was: Node | None, now: Node | type[Node] | None) -> ReplayError:
        """Return the error for a node that differs from the recorded node, or for a run that ends
        at another step."""
        place, recorded_name = _describe_step(run), type(was).__name__
        name = now.__name__ if isinstance(now, type) else type(now).__name__
        if now is None:
            message = f"{place}: the run continued to {recorded_name}, and now ends there"
        elif was is None:
            message = f"{place}: the run ended there, and now continues to {name}"
        else:
            message = f"{place} was a {recorded_name} and is a {name}"
            if recorded_name == name:
                message = f"{place}: {name} differs from the recorded node"
            if run.step:
                message += f", after {type(run.trace[run.step - 1]).__name__}"
        return _difference_error(message, self._describe_node(was), self._describe_node(now))

    def _describe_node(self, node: Node | type[Node] | None) -> str:
        if node is None:
            return "(end)"
        if isinstance(node, type):
            return f"{node.__name__}(…)"
        return json.dumps(json.loads(self._encoder.node(node)), indent=2, ensure_ascii=False)

    def _failure_at(self, path: str, step: int) -> BaeError | Waiting | None:
        """Return how the graph at `path` stopped at `step`: its error, or the gates that a
        conversation with tools waits for. Return None if the graph did not stop there, or if the
        error is not one of bae's errors."""
        graph = self._history.graphs.get(path)
        if graph is not None and graph.outcome == "waiting" and graph.end_step == step:
            return Waiting(graph.gates)
        if graph is None or graph.end_error is None or graph.end_step != step:
            return None
        error = _restore_error(graph.end_error)
        return error if isinstance(error, BaeError) else None

    def _missing_record_error(self, run: Run, what: str) -> BaeError | Waiting:
        return self._failure_at(run.path, run.step) or self._early_end_error(what)

    def _early_end_error(self, what: str) -> ReplayError:
        how = self._describe_end()
        message = f"the run is recorded as {how}" if how else "the run was interrupted before it"
        return ReplayError(
            f"the recording ends before {what}: {message}",
            code="bae-replay-ended",
            fix="resume the run with graph.resume, and replay it then",
        )

    def _describe_end(self) -> str:
        run = self._history.run
        if run.outcome in ("", "ended"):
            return ""
        error = f": {run.end_error}" if run.end_error is not None else ""
        return f"{run.outcome}{error}"


class ReplayWriter(Writer):
    """Keeps the records of a replay in memory, and checks where the run and its inner graphs
    end."""

    def __init__(self, past: ReplayedPast) -> None:
        super().__init__()
        self._past = past

    async def finish(self, run: Run, ended: RunEnded) -> None:
        """Record how the run ended, and check that the recorded run ended there."""
        await super().finish(run, ended)
        self._past.check_end(run, ended)


class _NoLM:
    """The LM of a replay. It raises an error instead of asking a model."""

    async def make(self, *_: Any, **__: Any) -> Any:
        raise ReplayError(
            "this code asks an LM, and a replay asks no LM",
            fix="ask the LM that bae hands to the body or the dependency: its answers are recorded",
        )

    decide = choose_type = fill = make


_NO_LM = cast("LM", _NoLM())


def _choice_texts(
    run: Run, plan: NodePlan, about: Scene, filled: tuple[str, ...] | None
) -> Iterator[str]:
    """Yield the prompts with which bae may have asked for a choice. `filled` has the names of the
    options that the LM could fill in the same answer. A journal of an older bae does not have these
    names. Then `filled` is None, and this yields the prompts for all combinations of options."""
    names = names_of(plan.offered)
    ahead = {cls: find_ahead(run, plan_of(cls)) for cls in plan.successors if plan_of(cls).context}
    answers = {cls: answer for cls, answer in ahead.items() if answer is not None}
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


def _collect_prompts(past: History) -> dict[tuple[str, int, Asker], Attempt]:
    """Return the first answer with a recorded prompt, by path, step and asker."""
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


def _drop_unstored_fields(recorded: Node, node: Node) -> Node:
    """Return `node` without the fields that the recorded node lacks because no journal stores
    them."""
    recorded_values = recorded.__dict__
    if recorded_values.keys() >= node.__dict__.keys():
        return node
    stored = copy(node)
    values = {n: v for n, v in node.__dict__.items() if n in recorded_values}
    hold(stored, values, node.__pydantic_extra__, node.__pydantic_fields_set__ & values.keys())
    return stored


def _find_reached_limit(past: History) -> int:
    """Return the limit on nodes (`max_iters`) at which the run, or a graph inside it, stopped.
    Return 0 if it stopped at no limit."""
    limit = max(
        (
            graph.end_step
            for graph in past.graphs.values()
            if isinstance(graph.end_error, RecordedError)
            and graph.end_error.type_name == LimitError.__name__
        ),
        default=0,
    )
    furthest = max((step.number + 1 for step in past.steps() if step.is_complete), default=0)
    return limit if limit >= furthest else 0


def _is_same_failure(error: BaseException, recorded: BaseException | None) -> bool:
    """Whether an error is the recorded error. In a run with secrets, messages are not recorded, and
    only the codes are compared."""
    if not isinstance(error, BaeError) or not isinstance(recorded, RecordedError):
        return False
    is_same = recorded.message == readable(error.message.partition("\n")[0])
    return recorded.code == error.code and (is_same or recorded.is_withheld)


def _restore_error(error: BaseException) -> BaseException:
    """Return a recorded error in a form that can be raised. A BaeError gets its recorded class,
    message and code. Any other error becomes an exception of a new class with the recorded name."""
    if not isinstance(error, RecordedError):
        return error
    if error.type_name == CallTimeout.__name__:
        return CallTimeout(error.message)
    kind = getattr(exceptions, error.type_name, None) or _find_error_class(error.type_name)
    if not isinstance(kind, type) or not issubclass(kind, BaeError):
        return type(error.type_name, (Exception,), {"__module__": "bae.replay"})(error.message)
    restored = kind.__new__(kind, error.message)  # a user's class may take other arguments
    BaeError.__init__(
        restored, error.message, fix="this is the recorded error; the replay asked nothing"
    )
    restored.code = error.code or restored.code
    return restored


def _find_error_class(name: str) -> type[BaeError] | None:
    """Return the loaded subclass of BaeError with this name, or None. The newest class wins."""
    classes = BaeError.__subclasses__()
    for cls in classes:
        classes += cls.__subclasses__()
    return next((cls for cls in reversed(classes) if cls.__name__ == name), None)


def _difference_error(message: str, was: str, now: str) -> ReplayError:
    texts = was.splitlines(), now.splitlines()
    return ReplayError(
        message,
        diff="\n".join(unified_diff(*texts, "recorded", "replayed", lineterm="", n=2)),
        fix="fix the code, or record the run again if the change is intended",
    )


def _indent(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, indent=2, ensure_ascii=False)


def _describe_step(run: Run) -> str:
    return f"{run.path}, step {run.step}" if run.path else f"step {run.step}"


def _describe_call(asked: LMAnswered) -> str:
    return f"{asked.method}({asked.target})" if asked.target else asked.method


def _names(trace: Any) -> tuple[str, ...]:
    return tuple(type(node).__name__ for node in trace)
