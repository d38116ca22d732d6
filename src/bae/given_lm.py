"""`GivenLM`: the LM that a written body or a dependency function gets. Before the LM fills a node,
`GivenLM` resolves the node's fields that have a source, as the run does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import partial
from itertools import count
from time import time
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from bae.draft import complete, set_resolved_values, validate_values
from bae.exceptions import BaeError
from bae.failures import (
    invalid_choice_error,
    invalid_values_error,
    no_tools_error,
    step_limit_error,
    wrong_node_error,
)
from bae.language_model import RoutingLM, ask_lm, scene_around
from bae.node import Node
from bae.plan import FieldPlan, NodePlan, plan_of
from bae.records import NOTHING, ClassMet, LMAnswered
from bae.resolver import find_ahead, resolve
from bae.run import Waiting
from bae.secrets import is_near_secret, mask_values
from bae.sharing import Dataflow

if TYPE_CHECKING:
    from bae.language_model import LM, Scene
    from bae.markers import OpenGate
    from bae.prompts.messages import Prompt
    from bae.records import Asker, Found
    from bae.run import Run

N = TypeVar("N", bound=Node)
T = TypeVar("T")
Method = Literal["make", "decide", "choose_type", "fill"]


_asked_in: ContextVar[GivenLM | None] = ContextVar("bae_asked_in", default=None)
"""The `GivenLM` that is asking a question in this context."""


class AskedLM:
    """A question to a `GivenLM`. In a resumed or replayed run, `run.past` looks up the recorded
    answer. `run.writer` stores a new answer. The text of the question is made when `record` is
    first called. Runs without a journal rarely call it."""

    def __init__(
        self,
        spot: tuple[str, int, Asker],
        method: Method,
        question: Callable[[Scene], Prompt],
        types: Sequence[type[Node] | type[None]],
        about: Scene,
        numbers: dict[tuple[str, ...], set[int]],
    ) -> None:
        self._spot = spot
        self._method: Method = method
        self._question = question
        self.types = types
        self._about = about
        self._numbers = numbers
        self._record: LMAnswered | None = None
        self.text = ""

    def record(self, value: Any = None) -> LMAnswered:
        """Return the record of the question, with `value` as the answer. Equal questions from one
        place have different numbers."""
        if self._record is None:
            from hashlib import sha256

            prompt = self._question(self._about)
            self.text = prompt.text
            digest = sha256(f"{prompt.system}\n{self.text}".encode()).hexdigest()[:16]
            method, target = self._method, ""
            if method in ("make", "fill"):
                target = self.types[0].__name__
            used = self._numbers.setdefault((method, digest, target), set())
            number = next(n for n in count() if n not in used)
            used.add(number)
            self._record = LMAnswered(time(), *self._spot, method, digest, target, None, number)
        self._record.at, self._record.value = time(), value
        return self._record

    def free_number(self) -> None:
        """Release the number of a failed question. If the question is asked again, it gets the same
        number, and so is the same question for the journal."""
        if (record := self._record) is not None and record.number is not None:
            self._numbers[record.method, record.asked, record.target].discard(record.number)


class GivenLM:
    """Asks the LM of a run for a body or a function. In a run with a journal, it returns the
    recorded answer if the same body or function asked the same question before. All other
    attributes are the LM's own attributes."""

    def __init__(self, run: Run, step: int, asker: Asker, lm: Callable[[], LM | None]) -> None:
        self._run = run
        self._step = step
        self._asker = asker
        self._find = lm
        self._numbers: dict[tuple[str, ...], set[int]] = {}
        """The numbers that equal questions use, whether they were answered or are being asked."""
        self._asking = 0
        """The number of questions in progress."""
        self._streams = 0
        """The number of questions so far whose answers were streamed."""
        self._idle = asyncio.Event()
        """Set when no question is in progress."""
        self._gates: dict[str, OpenGate] = {}
        """The open gates of questions that wait for a person, by address."""

    @contextmanager
    def waited_for(self) -> Generator[None]:
        """Wrap the call of the body or function that uses this LM. If a question waits for a
        person, raise `Waiting` to stop the run, even if the code has caught that exception."""
        try:
            yield
        except Waiting:
            raise
        except Exception as error:
            if self._gates and Waiting.inside(error) is None:
                raise Waiting([*self._gates.values()]) from error
            raise
        if self._gates:
            raise Waiting([*self._gates.values()])

    async def make(self, node: Node, target: type[N], *, scene: Scene | None = None) -> N:
        """Have the LLM fill a `target` from the fields of `node`. First, resolve the fields of
        `target` that have a source."""
        return await self._fill("make", target, {}, plan_of(target).instruction, node, scene)

    async def decide(self, node: Node, *, scene: Scene | None = None) -> Node | None:
        """Have the LLM choose the successor of `node`, and fill it. Return None if the LLM chooses
        to end the run."""
        return await self._after_others(self._decide(node, scene))

    async def _decide(self, node: Node, scene: Scene | None) -> Node | None:
        plan = plan_of(type(node), strict=True)
        self._meet((type(node),))
        here = self._scene(plan, node, scene)
        question = partial(_choice_question, plan.offered, (), node, None, None)
        filled: Node | None = None
        plans = [plan_of(successor) for successor in plan.successors]
        is_last = self._is_last(node)
        if is_last and not plan.may_end:
            raise step_limit_error(self._run, *plan.successors)
        shows = self._run.read_context_setting(plan)
        alike = [
            plan for plan in plans if not is_last and self._run.read_context_setting(plan) == shows
        ]

        async def choose(lm: LM, about: Scene, _: AskedLM) -> type[Node] | type[None]:
            nonlocal filled
            if not isinstance(lm, RoutingLM):
                shown = mask_values(node, about.hidden)
                return await ask_lm(lm, "choose_type", about, [*plan.offered], shown)
            ahead = {plan.node: find_ahead(self._within(plan), plan) for plan in plans}
            recalled = {cls: answer for cls, answer in ahead.items() if answer is not None}
            fillable = [plan.node for plan in alike if plan.node in recalled]
            by_class = {cls: values for cls, (values, _) in recalled.items() if values}
            arguments = [node, plan.offered, fillable, *([by_class] if by_class else [])]
            if by_class:
                origins = {cls: self._run.origins(recalled[cls][1]) for cls in by_class}
                about = about.recalling(origins)
            chosen, filled = await ask_lm(lm, "route", about, *arguments)
            if filled is not None:
                values, records = recalled[type(filled)]
                target = plan_of(type(filled))
                for record in records:
                    self._within(target).writer.write(record)
                filled = _complete_node(target, filled, values, target.context)
            return chosen

        async def ask(lm: LM, about: Scene, asked: AskedLM) -> Node | None:
            at_once = not any(list_fields_to_resolve(plan, {}) or plan.tools for plan in plans)
            if len(alike) == len(plans) and at_once:
                return await ask_lm(lm, "decide", about, node)
            chosen = plan.offered[0]
            if len(plan.offered) > 1:  # record the choice by itself: the fill may fail
                chosen = await self._answer(
                    "choose_type", question, plan.offered, choose, here, is_part=True
                )
            if chosen not in plan.offered:
                raise invalid_choice_error(plan, chosen)
            if chosen is NoneType or filled is not None:
                return filled
            if is_last:
                raise step_limit_error(self._run, chosen)
            instruction = plan_of(chosen).instruction
            there = self._scene(plan_of(chosen, strict=True), node, scene)
            if about.unstorable is not None:
                there = there.storing(about.unstorable)
            return await self._ask_to_fill(lm, "make", chosen, {}, instruction, node, there, asked)

        return await self._answer("decide", question, plan.offered, ask, here)

    async def choose_type(
        self,
        types: Sequence[type[Node] | type[None]],
        context: Mapping[str, Any],
        *,
        scene: Scene | None = None,
    ) -> type[Node] | type[None]:
        """Have the LLM choose one of `types`, without filling it. To let the LLM end the run, put
        `type(None)` among them."""
        question = partial(_choice_question, types, (), None, context, None)
        trace = self._run.trace
        here = self._scene(plan_of(self._asker.node), trace[-1] if trace else None, scene)

        async def ask(lm: LM, about: Scene, _: AskedLM) -> type[Node] | type[None]:
            return await ask_lm(lm, "choose_type", about, types, context)

        return await self._answer("choose_type", question, tuple(types), ask, here)

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
        *,
        scene: Scene | None = None,
    ) -> N:
        """Have the LLM fill the plain fields of `target`. The fields in `resolved` get these
        values. All other fields with a source are resolved first."""
        return await self._fill("fill", target, resolved, instruction, source, scene)

    async def _fill(
        self,
        method: Literal["make", "fill"],
        target: type[N],
        given: Mapping[str, Any],
        instruction: str,
        previous: Node | None,
        scene: Scene | None,
    ) -> N:
        if previous is not None:
            self._meet((type(previous),))
        answering = self._answer(
            method,
            partial(_fill_question, target, given, instruction, previous),
            (target,),
            lambda lm, about, asked: self._ask_to_fill(
                lm, method, target, given, instruction, previous, about, asked
            ),
            self._scene(plan_of(target, strict=True), previous, scene),
        )
        return await self._after_others(answering)

    async def _after_others(self, answering: Awaitable[T]) -> T:
        """Wait for the answer to a question. If a person has to answer first, raise `Waiting`. Do
        so only when no other question is in progress, so that the tool calls of other questions are
        not cut off. The error has the gates of all questions that wait for a person."""
        # A tool of a question in progress asks this question, and waits for the answer.
        if _asked_in.get() is self:
            return await answering
        token = _asked_in.set(self)
        self._asking += 1
        try:
            return await answering
        except Waiting as waiting:
            self._gates |= {gate.address: gate for gate in waiting.gates}
            raised = waiting
        finally:
            _asked_in.reset(token)
            self._asking -= 1
            if not self._asking:
                self._idle.set()
        try:
            while self._asking:
                self._idle.clear()
                await self._idle.wait()
        except asyncio.CancelledError:  # the body no longer needs the answer: drop the gates
            for gate in raised.gates:
                self._gates.pop(gate.address, None)
            raise
        raised.gates = (*self._gates.values(),)
        raise raised

    async def _ask_to_fill(
        self,
        lm: LM,
        method: Literal["make", "fill"],
        target: type[N],
        given: Mapping[str, Any],
        instruction: str,
        previous: Node | None,
        about: Scene,
        asked: AskedLM,
    ) -> N:
        plan = plan_of(target, strict=True)
        if plan.tools is not None and plan.tools.name not in given:
            about = self._with_tools(lm, plan, asked, about)
        fields = list_fields_to_resolve(plan, given)
        if not fields:
            if method == "make":
                return await ask_lm(lm, "make", about, previous, target)
            return await ask_lm(lm, "fill", about, target, given, instruction, source=previous)
        records: list[Found] = []
        resolved_values = await self._resolve(plan, fields, given, records)
        if records:
            about = about.recalling({target: self._run.origins(records)})
        try:
            validate_values(target, resolved_values)  # fail before the model is asked
        except Exception as error:
            raise invalid_values_error(plan, error) from error
        resolved = {**given, **resolved_values}
        node = await ask_lm(lm, "fill", about, target, resolved, instruction, source=previous)
        if type(node) is not target:
            raise wrong_node_error(plan, node)
        return _complete_node(
            plan, node, {n: resolved[n] for n in plan.fields if n in resolved}, fields
        )

    def _with_tools(self, lm: LM, plan: NodePlan, asked: AskedLM, about: Scene) -> Scene:
        """Return the scene of a question that lets the LLM call tools before it answers."""
        from bae.toolbox import Toolbox

        if not isinstance(lm, RoutingLM):
            raise no_tools_error(lm, plan.node)
        question = asked.record()
        key = question.conversation(plan.name)
        box = Toolbox(self._run, plan, self._asker, self._step, key, self._within(plan))
        return about.offering(box)

    def _is_last(self, node: Node) -> bool:
        """Return whether the run has no step left for a node after this node."""
        run = self._run
        return self._step == run.max_iters == len(run.trace) and run.trace[-1] is node

    def _scene(self, plan: NodePlan, previous: Node | None, given: Scene | None) -> Scene:
        """Return the `Scene` of a question about a class: what the LM sees besides the previous
        node. A question that comes from another run keeps the scene of that run."""
        scene = given or scene_around.get()
        return self._run.scene_for(plan, previous) if scene is self._run.scene else scene

    async def _resolve(
        self,
        plan: NodePlan,
        fields: Sequence[FieldPlan],
        given: Mapping[str, Any],
        records: list[Found] | None = None,
    ) -> dict[str, Any]:
        """Resolve fields that have a source, at the step of the body or function that asks."""
        if self._run.flow is None:
            self._run.flow = Dataflow(self._run.options.dep_cache)
        return await resolve(self._within(plan), plan, fields, given, records)

    def _within(self, plan: NodePlan) -> Run:
        """Return a run that resolves values of a node at the step of the body or function that
        asks."""
        run = self._run
        within = run.inside(run.path)
        within.step = self._step
        if plan.node not in (run.plans or ()):
            within.writer = run.writer.outside(run.path, self._step, self._asker)
            within.past = run.past.outside()
        return within

    def _meet(self, classes: Iterable[type[Node] | type[None]]) -> None:
        """Record the classes of a question that are outside the graph and have a field with a
        secret, or a field whose function has a secret."""
        run = self._run
        for cls in classes:
            if cls is NoneType or cls in (run.plans or ()):
                continue
            if cls not in run.notes.outside_types:
                run.notes.outside_types.add(cls)
                if is_near_secret(cls):
                    record = ClassMet(time(), run.path, self._step, cls)
                    run.writer.write(record)

    async def _answer(
        self,
        method: Method,
        question: Callable[[Scene], Prompt],
        types: Sequence[type[Node] | type[None]],
        ask: Callable[[LM, Scene, AskedLM], Awaitable[Any]],
        about: Scene,
        *,
        is_part: bool = False,
    ) -> Any:
        """Return the recorded answer to a question. If there is none, ask the LM, and record the
        answer. With `is_part`, the question is a part of another question, whose stream then has
        the text."""
        past, writer = self._run.past, self._run.writer
        self._meet(types)
        spot = self._run.path, self._step, self._asker
        asked = AskedLM(spot, method, question, types, about, self._numbers)
        try:
            recorded = past.lm_answer(asked)
            if recorded is not NOTHING:
                return await self._add_unstored(recorded)
            await writer.ask(asked)
            asking = ask(cast("LM", self._find()), about.storing(writer.unstorable), asked)
            if self._run.is_streamed and not is_part:
                asking = self._stream(asking, types[0] if method in ("make", "fill") else None)
            value = await asking
            await writer.store_answer(asked, value)
        except BaseException as error:
            # A body may catch the error. A replay calls the body again, and raises the error again.
            if isinstance(error, BaeError) and self._asker.kind == "body":
                writer.write_failure(asked, error)
            asked.free_number()
            raise
        return value

    def _stream(self, asking: Awaitable[T], target: Any) -> Awaitable[T]:
        """Wait for the answer to a question, and record its text as it arrives."""
        from bae.answer_stream import inner_stream_for

        number, self._streams = self._streams, self._streams + 1
        stream = inner_stream_for(self._run, self._asker, self._step, number, target)
        return stream.follow(asking)

    async def _add_unstored(self, recorded: Any) -> Any:
        """Compute the values again that the journal does not store, and add them to a recorded
        answer."""
        if not isinstance(recorded, Node):
            return recorded
        plan, values = plan_of(type(recorded)), recorded.__dict__
        fields = list_fields_to_resolve(plan, values)
        if not fields:
            return recorded
        stored = {field.name: values[field.name] for field in plan.sourced if field.name in values}
        resolved = await self._resolve(plan, fields, values)
        return _complete_node(plan, recorded, {**stored, **resolved}, fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._find(), name)

    def __repr__(self) -> str:
        return repr(self._find())


def _fill_question(*arguments: Any) -> Prompt:
    from bae.prompts.questions import fill_question  # only a run with a journal needs the import

    return fill_question(*arguments)


def _choice_question(*arguments: Any) -> Prompt:
    from bae.prompts.questions import choice_question

    return choice_question(*arguments)


def list_fields_to_resolve(plan: NodePlan, given: Mapping[str, Any]) -> list[FieldPlan]:
    """Return the fields of a node to resolve before the LLM fills it, without the fields that may
    wait for a person. The run resolves those after the body has returned. If the run stopped inside
    the body instead, the body would be called twice."""
    return [f for f in plan.context if f.name not in given and not _may_wait(plan, f, given)]


def _may_wait(plan: NodePlan, field: FieldPlan, given: Mapping[str, Any]) -> bool:
    if field.may_wait:
        return True
    needed = [plan.fields[name] for name in field.waits_for if name not in given]
    return any(_may_wait(plan, other, given) for other in needed)


def _complete_node(
    plan: NodePlan, node: N, resolved: Mapping[str, Any], tried: Sequence[FieldPlan]
) -> N:
    """Add the resolved values to a node that the LLM has filled. If fields are missing and all
    their sources were tried, their sources have failed: the fields then get their defaults."""
    try:
        node = set_resolved_values(node, resolved)
        missing = {field.name for field in plan.sourced if field.name not in node.__dict__}
        if missing and missing <= {field.name for field in tried}:
            node = copy(node)
            complete(node, {})
        return node
    except Exception as error:
        raise invalid_values_error(plan, error) from error
