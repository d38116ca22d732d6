"""`Toolbox`: the tools of a node while an LM fills it. It checks the calls of each round, has
people approve them where needed, runs them at the same time, and records them."""

from __future__ import annotations

import json
from asyncio import CancelledError, Semaphore
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bae.call_gates import CallGates
from bae.calls import Input
from bae.exceptions import (
    BaeError,
    BaeLMError,
    BudgetError,
    CallTimeout,
    DepError,
    GateError,
    HintError,
    JournalError,
    NodeError,
    RecallError,
    ToolCallError,
    ToolServerError,
    describe,
    faults,
    text_of,
)
from bae.files import File, collect_files, in_use
from bae.invoke import call_within_bounds
from bae.plan import plan_of
from bae.prompts.messages import CallPart
from bae.records import Asker, LMUsed, ToolReported, ToolStarted
from bae.run import Waiting
from bae.sources.tools import tools_of
from bae.tasks import all_or_first_error, cancellations
from bae.tool_conversation import key_of
from bae.tool_inputs import call_for_model
from bae.tool_offer import OfferedTools
from bae.tool_plan import AskPlan, ToolPlan
from bae.tools import (
    UNKNOWN,
    ToolCall,
    ToolError,
    ToolInterrupted,
    WhenUnfinished,
    call_in_progress,
    report_on_loop,
    reporter,
)
from bae.unicode import readable, readable_json
from bae.usage import Usage, meter_in_force
from bae.work import call_number

if TYPE_CHECKING:
    from bae.language_model import Scene
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.run import Run
    from bae.tool_conversation import Round


@dataclass(slots=True)
class _Todo:
    """A call to make: its validated arguments, and the arguments as `given` by the LM, or by a
    person who changed them."""

    call: CallPart
    plan: ToolPlan
    arguments: dict[str, Any]
    given: dict[str, Any]


@dataclass(slots=True)
class _Asked:
    """A call that a person must decide about first."""

    call: CallPart
    plan: ToolPlan | AskPlan
    arguments: dict[str, Any]


class Toolbox(OfferedTools):
    """The tools of a node while an LM fills it, and the calls that the LM makes."""

    @cached_property
    def _gates(self) -> CallGates:
        return CallGates(self)

    @cached_property
    def _reusable(self) -> dict[str, ToolCall]:
        """The first call with a result, by tool and arguments."""
        return {key_of(call): call for call in reversed(self.calls) if call.error is None}

    async def run_calls(self, made: Round, may_call: bool = True) -> None:
        """Run the calls of a round that have no result, at the same time."""
        if made.number >= self.marker.limit and self.marker.on_limit == "error" and may_call:
            raise self.over_limit()
        equal: dict[str, list[CallPart]] = {}  # the first is made, the others reuse its result
        prepared = [self._prepare(n, call, may_call, equal) for n, call in enumerate(made.calls)]
        todo = [each for each in prepared if isinstance(each, _Todo)]
        asked = [each for each in prepared if isinstance(each, _Asked)]
        if not todo and not asked:
            return
        hidden = await self._inputs.fill(
            (each.plan.name, Input(each.plan.call, each.plan.marker))
            for each in (*todo, *asked)
            if isinstance(each.plan, ToolPlan)
        )
        gates: list[OpenGate] = []
        most = self.marker.at_once
        running = Semaphore(most) if asked or len(todo) > most else nullcontext()

        async def run(each: _Todo) -> None:
            async with running:
                # In the task that runs the call: a call that still waits for its turn has not
                # begun, and spans of the tool itself are inside the span of the call.
                id = each.call.id
                self._began[id] = self._began.get(id, 0) + 1
                await self._store(ToolStarted, id, each.call.name, each.given)
                await self._run_call(each, hidden[each.plan.name])

        async def make(each: _Todo) -> None:
            try:
                await run(each)
            except Waiting as waiting:
                gates.extend(waiting.gates)

        async def ask(each: _Asked) -> None:
            try:
                approved = await self._ask_people(each)
                if approved is not None:
                    await run(approved)
            except Waiting as waiting:
                gates.extend(waiting.gates)

        # A task for each call, so that no call sees the context variables of another.
        work = [partial(make, each) for each in todo]
        await all_or_first_error([*work, *(partial(ask, each) for each in asked)])
        for first, *others in equal.values():
            if (same := self._results.get(first.id)) is not None:
                for other in others:  # with the final arguments, which a person may have changed
                    self._end(other, same.result, same.error, same.id, same.arguments)
        if gates:
            raise Waiting(gates)

    async def _ask_people(self, asked: _Asked) -> _Todo | None:
        """The call as people want it made; None if it ends without being made."""
        call, plan = asked.call, asked.plan
        starts = self._began.get(call.id, 0)
        if not isinstance(plan, ToolPlan) or self._when_unfinished(plan, call) != "ask":
            starts = 0
        try:
            decided = await self._gates.decide(call, plan, asked.arguments, starts)
        except (BaeError, Waiting):
            raise
        except (Exception, CancelledError) as raised:
            if isinstance(raised, CancelledError) and cancellations():
                raise
            raise self.error(
                f"the function in Tool({plan.name}, approve=…) raised {describe(raised)}",
                "fix it; the call was not made",
                code="bae-tool-approve",
                cause=raised,
            ) from raised
        given = dict(decided.arguments)
        if not decided.is_over and isinstance(plan, ToolPlan):
            return _Todo(call, plan, plan.validate(given), plan.mask_secrets(given))
        self._results[call.id] = made = ToolCall(
            id=call.id,
            name=call.name,
            arguments=plan.mask_secrets(given) if isinstance(plan, ToolPlan) else given,
            result=decided.result,
            error=decided.error,
        )
        await self.run.writer.store(self._end_record(made))
        return None

    def _prepare(
        self, index: int, call: CallPart, may_call: bool, equal: dict[str, list[CallPart]]
    ) -> _Todo | _Asked | None:
        """The call, ready to be made; None if it has a result without that. `index` is its position
        among the calls of its round."""
        if call.id in self._results:
            return None
        plan, most = self.tools.get(call.name), self.marker.max_calls
        if call.id in self._began:  # bounds may have changed since; the call may have run
            if call.id in self._lost or self._when_unfinished(plan, call) == "tell":
                self._end(call, error=f"the program failed or was interrupted: {UNKNOWN}")
                return None
        elif not may_call:
            return self._refuse(call, "no tool can be called any more: answer now")
        elif index >= most:
            return self._refuse(call, f"one message may have at most {most} calls: call it again")
        elif call.id in self._lost:
            error = "the program was interrupted before this call, and lost its arguments: call it"
            self._end(call, error=f"{error} again")
            return None
        if plan is None:
            names = ", ".join(self.tools) or "none"
            return self._refuse(call, f"there is no tool {call.name}; there are: {names}")
        if not isinstance(call.arguments, Mapping):
            return self._refuse(call, "the arguments are no JSON object")
        try:
            arguments = plan.validate(call.arguments)
        except ValidationError as error:
            if call.id in self._began:  # with the parameters that the tool had then
                self._end(call, error=f"the program failed or was interrupted: {UNKNOWN}")
                return None
            return self._refuse(call, f"wrong arguments: {'; '.join(faults(error))}")
        if isinstance(plan, AskPlan):
            return _Asked(call, plan, arguments)
        if plan.tool.repeat == "reuse":
            key = key_of(call)
            if (same := self._reusable.get(key)) is not None:
                self._end(call, same.result, reused=same.id)
                return None
            equal.setdefault(key, []).append(call)
            if len(equal[key]) > 1:
                return None
        if plan.asks_person:
            return _Asked(call, plan, arguments)
        return _Todo(call, plan, arguments, self.shown_arguments(call))

    def _when_unfinished(self, plan: ToolPlan | AskPlan | None, call: CallPart) -> WhenUnfinished:
        """What happens with a call that had begun and has no result. The graph of a tool has
        records of its own, unless only the body or function that asks the LM knows the graph. A
        function that has an LM ask a person was not interrupted. Nothing is known of a tool that no
        longer exists."""
        if not isinstance(plan, ToolPlan):
            return "tell" if plan is None else "ask"
        is_resumed = plan.call.graph is not None and self._is_recorded
        if plan.call.lm_parameters:
            past = self.run.past
            is_resumed = past.asks_person(self.run.path, self.step, self._asker_in(plan, call))
        return "repeat" if is_resumed else plan.tool.unfinished

    def _asker_in(self, plan: ToolPlan, call: CallPart) -> Asker:
        """The asker of questions to the LM inside a call."""
        # A journal knows only the classes of its graph.
        node = self.plan.node if self._is_recorded else self.asker.node
        item = call_number(self.question, call.id)
        return Asker("source", node, self.field.name, f"({plan.name})", item)

    @property
    def _is_recorded(self) -> bool:
        """Whether work inside a tool has records of its own: not if the node is of a class outside
        the graph."""
        return self._within.writer is self.run.writer

    def _refuse(self, call: CallPart, text: str) -> None:
        self._wrong.add(call.id)
        self._end(call, error=text)

    async def _run_call(self, todo: _Todo, hidden: Mapping[str, Any]) -> None:
        call, plan, run = todo.call, todo.plan, self._within
        started, result, error = perf_counter(), None, None
        used: list[Usage] = []
        asker = self._asker_in(plan, call)
        # The task of this call has its own context.
        reporter.set(report_on_loop(partial(self._report, call.id)))
        meter_in_force.set((used.append, partial(self.run.watch, asker, step=self.step)))
        try:
            value = await self._call(todo, hidden, asker)
            result = self._as_json(value, run)
        except ToolError as raised:
            error = text_of(raised) or f"{plan.name} failed"
        except ToolInterrupted as raised:
            error = f"{text_of(raised) or 'the call was interrupted'}: {UNKNOWN}"
        except CallTimeout as raised:
            error = f"{text_of(raised)}: {UNKNOWN}"
        except Waiting:
            raise
        except Exception as raised:
            told = _for_the_model(raised)
            if told is None:
                raise self._end_failed(plan, call, raised) from raised
            error = text_of(told) or f"{plan.name} failed"
        except CancelledError as raised:
            if cancellations():
                raise
            # The tool raised it by itself: an ordinary failure.
            raise self._end_failed(plan, call, raised) from raised
        finally:
            if used:
                usage = Usage.total(used)
                at = time(), self.run.path, self.step
                self.run.writer.write(LMUsed(*at, asker, usage))
        self._results[call.id] = made = ToolCall(
            id=call.id,
            name=call.name,
            arguments=todo.given,
            result=result,
            error=error,
            seconds=perf_counter() - started,
        )
        if plan.tool.repeat == "reuse" and error is None:
            self._reusable.setdefault(key_of(made), made)
        await self.run.writer.store(self._end_record(made))

    def _as_json(self, value: Any, run: Run) -> Any:
        """A result as JSON. Its files are stored beside it."""
        if not in_use():
            return _as_json(value, run)
        with collect_files() as collected_files:
            result = _as_json(value, run)
        files = [
            collected_file
            for collected_file in collected_files.values()
            if isinstance(collected_file, File)
        ]
        self.files.update((file.hash, file) for file in files)
        self.run.writer.keep_files(files)
        return result

    async def _call(self, todo: _Todo, hidden: Mapping[str, Any], asker: Asker) -> Any:
        plan, run = todo.plan, self._within
        call, arguments = plan.call, {**hidden, **todo.arguments}
        # A graph makes many calls inside, which must not share a key.
        call_in_progress.set("" if call.graph is not None else self.idempotency_key(todo.call))
        if call.graph is not None:
            from bae.runner import run_inside

            place = self._inputs.place(plan.name)._replace(item=asker.item)
            return await run_inside(call, plan.marker, str(place), run, (), arguments)
        if call.lm_parameters:
            from bae.given_lm import GivenLM

            lm = None
            if run.lm is not None:
                lm = GivenLM(run, self.step, asker, lambda: run.lm)
            arguments |= dict.fromkeys(call.lm_parameters, lm)
        once = partial(call_for_model, call, plan.tool.inline, arguments, run)
        is_error, value = await call_within_bounds(call, plan.marker, once, run, late_is_final=True)
        if is_error:
            raise value
        return value

    # Records and errors.

    def _report(self, id: str, text: str, done: float | None, total: float | None) -> None:
        if id not in self._results:  # a thread that took too long may still report
            self._write(ToolReported, id, text, done, total)

    def _end_failed(self, plan: ToolPlan, call: CallPart, raised: BaseException) -> BaseException:
        if isinstance(raised, BudgetError | GateError | HintError | JournalError | RecallError):
            return raised  # as in a dependency: the tool itself has not failed
        if isinstance(raised, ToolServerError):
            raised.path = raised.path or f"{self.plan.name}.{self.field.name} <- {plan.name}"
            return raised
        given = json.dumps(self.shown_arguments(call), ensure_ascii=False)[:200]
        text = f"{plan.name} raised {describe(raised)}, called with {given}"
        fix = f"fix {plan.name}, or raise ToolError where the LM is to read it"
        if plan.tool.unfinished == "tell":
            fix += f'; to have it called again on resume: Tool({plan.name}, unfinished="repeat")'
        if isinstance(raised, BaeError) and plan.call.graph is not None:
            text = f"in the graph {plan.name}, called with {given}, {raised.message}"
            fix = raised.fix or fix
        code, cause = ToolCallError.code, raised
        if isinstance(raised, _NoJSONError):
            text = f"{plan.name} returned {raised}, which JSON cannot express, called with {given}"
            fix = f"have {plan.name} return text, numbers, lists, dataclasses or Pydantic models"
            code, cause = "bae-tool-result", raised.__cause__
        failed = self.error(text, fix, code=code, cause=cause)
        failed.path, failed.call_id = getattr(raised, "path", None), call.id
        return failed


def _for_the_model(raised: BaseException) -> ToolError | None:
    """The error for the model that a body or a dependency in the graph of a tool raised."""
    while isinstance(raised, NodeError | DepError) and raised.cause is not None:
        raised = raised.cause
    return raised if isinstance(raised, ToolError) else None


class _NoJSONError(Exception):
    """A tool has returned a value that JSON cannot express; the text is the type."""


def _as_json(value: Any, run: Run) -> Any:
    """A result as JSON, with masks in place of secrets."""
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        return readable(value, 0)
    from bae.prompts.values import as_json

    try:
        dumped = as_json({"result": value}, "a result", run.scene.hidden)
    except BaeLMError as error:
        raise _NoJSONError(type(value).__qualname__) from error.cause
    return readable_json(dumped["result"])


def toolbox_of(target: type[Node], resolved: Mapping[str, Any], scene: Scene) -> Toolbox | None:
    """The tools for filling a node; None if the calls are given. Raises an error if nothing can run
    the tools."""
    box = scene.toolbox
    if box is not None and box.plan.node is target:
        return box
    name = tools_of(plan_of(target)).name
    if name in resolved:
        return None
    raise ToolCallError(
        f"{target.__name__}.{name}: an LM that is asked outside a run has no tools to call",
        code="bae-tools-outside",
        node_type=target,
        field_name=name,
        fix="run a graph that fills the node, or ask the LM of a body or a dependency, which is "
        "given by annotating a parameter LM",
    )
