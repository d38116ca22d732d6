"""`Toolbox`: the tools of a node while an LLM fills the node. For each round, it checks the calls,
asks people to approve calls that need it, runs the calls at the same time, and records them."""

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
class _CallToRun:
    """A call that is ready to run."""

    call: CallPart
    plan: ToolPlan
    arguments: dict[str, Any]
    """The validated arguments."""
    given: dict[str, Any]
    """The arguments from the LLM, or from the person who changed them, with secrets masked."""


@dataclass(slots=True)
class _CallToDecide:
    """A call that a person has to decide about before it runs, or that a person answers."""

    call: CallPart
    plan: ToolPlan | AskPlan
    arguments: dict[str, Any]


class Toolbox(OfferedTools):
    """The tools of a node while an LLM fills the node, and the calls that the LLM makes."""

    @cached_property
    def _gates(self) -> CallGates:
        return CallGates(self)

    @cached_property
    def _reusable(self) -> dict[str, ToolCall]:
        """The first successful call with each tool and arguments: see `key_of`."""
        return {key_of(call): call for call in reversed(self.calls) if call.error is None}

    async def run_calls(self, made: Round, may_call: bool = True) -> None:
        """Run the calls of a round at the same time, except calls that have a result already.
        Without `may_call`, refuse new calls. Raises `Waiting` if calls wait for a person."""
        if made.number >= self.marker.limit and self.marker.on_limit == "error" and may_call:
            raise self.over_limit()
        equal: dict[str, list[CallPart]] = {}  # the first call runs, the others reuse its result
        prepared = [self._prepare(n, call, may_call, equal) for n, call in enumerate(made.calls)]
        to_run = [call for call in prepared if isinstance(call, _CallToRun)]
        to_decide = [call for call in prepared if isinstance(call, _CallToDecide)]
        if not to_run and not to_decide:
            return
        hidden = await self._inputs.fill(
            (call.plan.name, Input(call.plan.call, call.plan.marker))
            for call in (*to_run, *to_decide)
            if isinstance(call.plan, ToolPlan)
        )
        gates: list[OpenGate] = []
        most = self.marker.at_once
        slots = Semaphore(most) if to_decide or len(to_run) > most else nullcontext()

        async def run(ready: _CallToRun) -> None:
            async with slots:
                # The start is recorded in the task that runs the call, when it has a slot: a call
                # without a slot has not begun, and spans of the tool are inside the call's span.
                id = ready.call.id
                self._began[id] = self._began.get(id, 0) + 1
                await self._store(ToolStarted, id, ready.call.name, ready.given)
                await self._run_call(ready, hidden[ready.plan.name])

        async def run_or_wait(ready: _CallToRun) -> None:
            try:
                await run(ready)
            except Waiting as waiting:
                gates.extend(waiting.gates)

        async def ask(undecided: _CallToDecide) -> None:
            try:
                approved = await self._ask_people(undecided)
                if approved is not None:
                    await run(approved)
            except Waiting as waiting:
                gates.extend(waiting.gates)

        # Each call has its own task, so that calls do not share context variables.
        work = [partial(run_or_wait, call) for call in to_run]
        await all_or_first_error([*work, *(partial(ask, call) for call in to_decide)])
        for first, *others in equal.values():
            if (same := self._results.get(first.id)) is not None:
                for other in others:  # with the final arguments, which a person may have changed
                    self._end(other, same.result, same.error, same.id, same.arguments)
        if gates:
            raise Waiting(gates)

    async def _ask_people(self, undecided: _CallToDecide) -> _CallToRun | None:
        """Ask people about a call. Return the call to run, with the arguments that people approved.
        If people refuse or answer the call, end it and return None."""
        call, plan = undecided.call, undecided.plan
        starts = self._began.get(call.id, 0)
        if not isinstance(plan, ToolPlan) or self._when_unfinished(plan, call) != "ask":
            starts = 0
        try:
            decided = await self._gates.decide(call, plan, undecided.arguments, starts)
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
        arguments = dict(decided.arguments)
        if not decided.is_over and isinstance(plan, ToolPlan):
            return _CallToRun(call, plan, plan.validate(arguments), plan.mask_secrets(arguments))
        self._results[call.id] = ended = ToolCall(
            id=call.id,
            name=call.name,
            arguments=plan.mask_secrets(arguments) if isinstance(plan, ToolPlan) else arguments,
            result=decided.result,
            error=decided.error,
        )
        await self.run.writer.store(self._make_end_record(ended))
        return None

    def _prepare(
        self, index: int, call: CallPart, may_call: bool, equal: dict[str, list[CallPart]]
    ) -> _CallToRun | _CallToDecide | None:
        """Return a call that is ready to run or to be decided. Return None if the call has ended,
        is ended here with an error or an earlier result, or reuses the result of a call in `equal`.
        `index` is the position of the call in its round."""
        if call.id in self._results:
            return None
        plan, most = self.tools.get(call.name), self.marker.max_calls
        if call.id in self._began:  # no bound refuses it now: the tool may have run
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
            if call.id in self._began:  # the parameters of the tool have changed
                self._end(call, error=f"the program failed or was interrupted: {UNKNOWN}")
                return None
            return self._refuse(call, f"wrong arguments: {'; '.join(faults(error))}")
        if isinstance(plan, AskPlan):
            return _CallToDecide(call, plan, arguments)
        if plan.tool.repeat == "reuse":
            key = key_of(call)
            if (same := self._reusable.get(key)) is not None:
                self._end(call, same.result, reused=same.id)
                return None
            equal.setdefault(key, []).append(call)
            if len(equal[key]) > 1:
                return None
        if plan.asks_person:
            return _CallToDecide(call, plan, arguments)
        return _CallToRun(call, plan, arguments, self.mask_arguments(call))

    def _when_unfinished(self, plan: ToolPlan | AskPlan | None, call: CallPart) -> WhenUnfinished:
        """Return what happens with a call that has begun and has no result.

        - A graph is called again, because its records say where it continues. It has no records if
          the class of the node is outside the run's graph.
        - A function with an `LM` parameter is called again if a person is asked in its conversation
          with the LLM. Then the function waited, and was not interrupted.
        - If the tool does not exist any more, the LLM reads that the call may have run.
        - For any other tool, `Tool(unfinished=…)` decides.
        """
        if not isinstance(plan, ToolPlan):
            return "tell" if plan is None else "ask"
        is_resumed = plan.call.graph is not None and self._is_recorded
        if plan.call.lm_parameters:
            past = self.run.past
            is_resumed = past.asks_person(self.run.path, self.step, self._asker_in(plan, call))
        return "repeat" if is_resumed else plan.tool.unfinished

    def _asker_in(self, plan: ToolPlan, call: CallPart) -> Asker:
        """Return the asker of the questions that a call asks an LLM."""
        # A journal knows only the classes of the run's graph.
        node = self.plan.node if self._is_recorded else self.asker.node
        item = call_number(self.question, call.id)
        return Asker("source", node, self.field.name, f"({plan.name})", item)

    @property
    def _is_recorded(self) -> bool:
        """Whether work inside a tool has records of its own. It has none if the class of the node
        is outside the graph."""
        return self._within.writer is self.run.writer

    def _refuse(self, call: CallPart, text: str) -> None:
        self._wrong.add(call.id)
        self._end(call, error=text)

    async def _run_call(self, ready: _CallToRun, hidden: Mapping[str, Any]) -> None:
        call, plan, run = ready.call, ready.plan, self._within
        started, result, error = perf_counter(), None, None
        used: list[Usage] = []
        asker = self._asker_in(plan, call)
        # The task of this call has its own context.
        reporter.set(report_on_loop(partial(self._report, call.id)))
        meter_in_force.set((used.append, partial(self.run.watch, asker, step=self.step)))
        try:
            value = await self._call(ready, hidden, asker)
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
            tool_error = _find_tool_error(raised)
            if tool_error is None:
                raise self._make_failure(plan, call, raised) from raised
            error = text_of(tool_error) or f"{plan.name} failed"
        except CancelledError as raised:
            if cancellations():
                raise
            # Nobody cancelled the task: the tool itself raised the error.
            raise self._make_failure(plan, call, raised) from raised
        finally:
            if used:
                usage = Usage.total(used)
                at = time(), self.run.path, self.step
                self.run.writer.write(LMUsed(*at, asker, usage))
        self._results[call.id] = ended = ToolCall(
            id=call.id,
            name=call.name,
            arguments=ready.given,
            result=result,
            error=error,
            seconds=perf_counter() - started,
        )
        if plan.tool.repeat == "reuse" and error is None:
            self._reusable.setdefault(key_of(ended), ended)
        await self.run.writer.store(self._make_end_record(ended))

    def _as_json(self, value: Any, run: Run) -> Any:
        """Return a result as JSON, and have the writer store the files in it."""
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

    async def _call(self, ready: _CallToRun, hidden: Mapping[str, Any], asker: Asker) -> Any:
        plan, run = ready.plan, self._within
        call, arguments = plan.call, {**hidden, **ready.arguments}
        # The calls inside a graph must not share a key, so a graph has none.
        call_in_progress.set("" if call.graph is not None else self.idempotency_key(ready.call))
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
        if id not in self._results:  # after a timeout, the thread of a call may still report
            self._write(ToolReported, id, text, done, total)

    def _make_failure(self, plan: ToolPlan, call: CallPart, raised: BaseException) -> BaseException:
        if isinstance(raised, BudgetError | GateError | HintError | JournalError | RecallError):
            return raised  # the tool itself has not failed; a dependency raises these errors too
        if isinstance(raised, ToolServerError):
            raised.path = raised.path or f"{self.plan.name}.{self.field.name} <- {plan.name}"
            return raised
        arguments = json.dumps(self.mask_arguments(call), ensure_ascii=False)[:200]
        text = f"{plan.name} raised {describe(raised)}, called with {arguments}"
        fix = f"fix {plan.name}, or raise ToolError where the LM is to read it"
        if plan.tool.unfinished == "tell":
            fix += f'; to have it called again on resume: Tool({plan.name}, unfinished="repeat")'
        if isinstance(raised, BaeError) and plan.call.graph is not None:
            text = f"in the graph {plan.name}, called with {arguments}, {raised.message}"
            fix = raised.fix or fix
        code, cause = ToolCallError.code, raised
        if isinstance(raised, _NoJSONError):
            text = (
                f"{plan.name} returned {raised}, which JSON cannot express, called with {arguments}"
            )
            fix = f"have {plan.name} return text, numbers, lists, dataclasses or Pydantic models"
            code, cause = "bae-tool-result", raised.__cause__
        failed = self.error(text, fix, code=code, cause=cause)
        failed.path, failed.call_id = getattr(raised, "path", None), call.id
        return failed


def _find_tool_error(raised: BaseException) -> ToolError | None:
    """Return the `ToolError` that a body or dependency in a tool's graph raised; None if it raised
    another error."""
    while isinstance(raised, NodeError | DepError) and raised.cause is not None:
        raised = raised.cause
    return raised if isinstance(raised, ToolError) else None


class _NoJSONError(Exception):
    """A tool has returned a value that JSON cannot express. The message is the name of its type."""


def _as_json(value: Any, run: Run) -> Any:
    """Return a result as JSON, with masks in place of secrets."""
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
    """Return the tools for filling a node; None if `resolved` has the calls already. Raises an
    error outside a run, where nothing can run the tools."""
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
        fix="run a graph that fills the node, or ask the LM that a body or a dependency gets in a "
        "parameter annotated LM",
    )
