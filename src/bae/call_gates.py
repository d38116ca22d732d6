"""The gates of tool calls. One conversation with tools asks people about its calls, in order, and
finds their answers when the run is resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import replace
from time import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from bae.approvals import (
    REVOKED,
    Approval,
    ApprovalRule,
    Interruption,
    check_approval_scope,
    load_answer,
)
from bae.exceptions import faults
from bae.gates import LATE, Late, answer_in_time, gate_error
from bae.markers import OpenGate
from bae.records import NOTHING, GateOpened
from bae.tasks import wait_despite_cancel
from bae.tool_plan import AskPlan
from bae.tools import UNKNOWN, ToolCall, call_key

if TYPE_CHECKING:
    from bae.prompts.messages import CallPart
    from bae.tool_conversation import Conversation
    from bae.tool_plan import ToolPlan

_LONGEST_CALL: Final = 300
"""How many characters a call may have to be shown unchanged in a question."""
_LONGEST_TEXT: Final = 80
"""How many characters of each text a question shows of a longer call."""
_LONGEST_LIST: Final = 20
"""How many items of each list a question shows of a longer call."""
_LONGEST_QUESTION: Final = 4000
"""How many characters of the model's question, or call, a person reads."""


_GRANTED: Final = Approval(approve=True)
"""The answer if another call was approved together with all calls of the tool."""


class _UnfitAnswer(Exception):
    """A stored answer does not fit the question."""


class Decision(NamedTuple):
    """The decision of people about a call: the arguments to make it with. If it `is_over`, its
    result or error."""

    arguments: Mapping[str, Any]
    is_over: bool = False
    result: Any = None
    error: str | None = None


class CallGates:
    """The questions to people in one conversation with tools."""

    def __init__(self, conversation: Conversation) -> None:
        self._run, self._plan = conversation.run, conversation.plan
        self._field, self._asker = conversation.field.name, conversation.asker
        self._step, self._question = conversation.step, conversation.question
        self._turns = asyncio.Lock()
        """Locked until a call has opened its gate: people see gates in the order of the calls."""
        self._granted: dict[str, asyncio.Event] = {}
        """By tool: set when a person has approved all of its calls."""

    async def decide(
        self, call: CallPart, plan: ToolPlan | AskPlan, arguments: Mapping[str, Any], starts: int
    ) -> Decision:
        """Ask people about a call, if that is needed. `starts` is how often it has begun without a
        result, if a person is to decide about it. Raises `Waiting` if nobody can be asked now."""
        await self._turns.acquire()
        turn = ExitStack()
        with turn:
            turn.callback(self._turns.release)
            try:
                return await self._decide(call, plan, arguments, starts, turn)
            except _UnfitAnswer as unfit:
                # Only the run knows such a tool, so nothing could check the answer earlier.
                message = f"a person's answer does not fit: {unfit}"
                return Decision(cast("Mapping[str, Any]", call.arguments), True, error=message)

    async def _decide(
        self,
        call: CallPart,
        plan: ToolPlan | AskPlan,
        arguments: Mapping[str, Any],
        starts: int,
        turn: ExitStack,
    ) -> Decision:
        given = cast("Mapping[str, Any]", call.arguments)
        if isinstance(plan, AskPlan):
            return await self._ask(call, plan, given, turn)
        call = replace(call, arguments=plan.mask_secrets(given))  # as people see it
        if starts:
            over = await self._settle(call, given, starts, turn)
            if over is not None:
                return over
        if plan.approval is None or not await plan.approval.holds_for(arguments):
            return Decision(given)
        return await self._approve(call, plan, plan.approval, given, turn)

    async def _ask(
        self, call: CallPart, plan: AskPlan, given: Mapping[str, Any], turn: ExitStack
    ) -> Decision:
        ask = plan.ask
        gate = self._gate(call, ask.type, given["question"][:_LONGEST_QUESTION])
        gate = replace(gate, context={})
        answer = await self._answer(gate, ask.timeout, plan.answers.validate_python, turn)
        if answer is LATE:
            return Decision(given, True, error=f"no person answered within {ask.timeout:g} s")
        return Decision(given, True, to_jsonable_python(answer))

    async def _settle(
        self, call: CallPart, given: Mapping[str, Any], starts: int, turn: ExitStack
    ) -> Decision | None:
        """A person's decision about a call that was interrupted; None to make it again."""
        shown = _describe_call(call)
        asked = f"{shown} was interrupted, and it is unknown whether it ran. Call it again?"
        gate = self._gate(call, Interruption, asked, f"(unfinished {starts})")
        answer: Interruption = await self._answer(gate, None, Interruption.model_validate, turn)
        if answer.repeat:
            return None
        if answer.outcome:
            return Decision(given, True, answer.outcome)
        error = f"the program was interrupted, and a person chose not to repeat the call: {UNKNOWN}"
        return Decision(given, True, error=error)

    async def _approve(
        self,
        call: CallPart,
        plan: ToolPlan,
        rule: ApprovalRule,
        given: Mapping[str, Any],
        turn: ExitStack,
    ) -> Decision:
        asked = (
            f"{rule.question} {_describe_call(call)}"
            if rule.question
            else f"Allow {_describe_call(call)}?"
        )
        gate = self._gate(call, Approval, asked)
        if await self._is_granted(plan.name, gate):
            return Decision(given)

        def check(answer: Any) -> None:
            approval = Approval.model_validate(answer)
            check_approval_scope(approval, self._thread)
            if approval.arguments is not None:
                plan.validate(plan.restore_secrets(approval.arguments, given))

        def hide(answer: Approval) -> Approval:
            arguments = answer.arguments
            if arguments is None or not plan.secret_parameters:
                return answer
            return answer.model_copy(update={"arguments": plan.mask_secrets(arguments)})

        granted = self._granted.setdefault(plan.name, asyncio.Event())
        answer: Approval | Late = await self._answer(gate, rule.timeout, check, turn, granted, hide)
        if isinstance(answer, Late):
            return Decision(given, True, error=f"no person approved it within {rule.timeout:g} s")
        if not answer.approve:
            reason = f": {answer.reason}" if answer.reason else ""
            return Decision(given, True, error=f"a person refused this call{reason}")
        if answer.scope != "call":
            if f"{gate.address}{REVOKED}" in await self._run.writer.answers(self._run):
                return Decision(given, True, error="a person has revoked the approval of this tool")
            granted.set()
            if not self._is_stored:
                self._run.notes.granted.add(self._tool_place(plan.name))
        if answer.arguments is None:
            return Decision(given)
        changed: dict[str, Any] = to_jsonable_python(plan.restore_secrets(answer.arguments, given))
        try:  # only the run may know the tool, so nothing could check them earlier
            plan.validate(changed)
        except ValidationError as error:
            message = (
                f"a person changed the arguments, which do not fit: {'; '.join(faults(error))}"
            )
            return Decision(given, True, error=message)
        return Decision(changed)

    async def _is_granted(self, tool: str, gate: OpenGate) -> bool:
        """Whether an approval of the tool holds in this run or its thread, and was not revoked. An
        answer about the call itself counts more."""
        place = self._tool_place(tool)
        if not self._is_stored:
            return place in self._run.notes.granted
        grants = await self._run.writer.grants(self._run)
        if not any(grant.place == place and not grant.revoked for grant in grants):
            return False
        return gate.address not in await self._run.writer.answers(self._run)

    def _tool_place(self, tool: str) -> str:
        return f"{self._plan.name}.{self._field}({tool})"

    @property
    def _is_outside(self) -> bool:
        """Whether the class is outside the graph, so that no journal can name the gate."""
        return self._plan.node not in (self._run.plans or ())

    @property
    def _thread(self) -> str | None:
        """The thread that an approval may hold for."""
        turn = self._run.outermost.options.turn
        return None if turn is None or not self._is_stored else turn.thread

    @property
    def _is_stored(self) -> bool:
        return self._run.writer.journal is not None and not self._is_outside

    def _gate(self, call: CallPart, type: Any, question: str, more: str = "") -> OpenGate:
        arguments = dict(cast("Mapping[str, Any]", call.arguments))
        return OpenGate(
            question,
            self._plan.node,
            self._field,
            type,
            arguments,
            path=self._run.path,
            step=self._step,
            parameter=f"({call.name})({call.id}){more}",
            key=call_key(self._asker, self._question, call.name, arguments),
            call=ToolCall(id=call.id, name=call.name, arguments=arguments),
        )

    async def _answer(
        self,
        gate: OpenGate,
        timeout: float | None,
        check: Callable[[Any], Any],
        turn: ExitStack,
        granted: asyncio.Event | None = None,
        hide: Callable[[Any], Any] = lambda answer: answer,
    ) -> Any:
        """The answer to a gate as a value of its type, or `LATE`. Once all calls of the tool are
        `granted`, it is an approval without an answer. `hide` masks the parts not to be stored."""
        run, form = self._run, TypeAdapter(gate.type)
        if self._is_outside:
            if run.options.answer is None:
                raise gate_error(
                    gate,
                    f"nobody can answer {gate.question!r} later, since {self._plan.name} is not a "
                    "node of the graph",
                    "pass answer=…, or make it a node of the graph",
                    "bae-gate-outside",
                )
            if timeout is not None:
                gate = replace(gate, deadline=time() + timeout)
            turn.close()
            answer = await self._first_of(answer_in_time(run.options.answer, gate, check), granted)
            return LATE if answer is LATE else form.validate_python(answer)
        known = await self._stored_answer(gate)
        if known is not NOTHING:
            return known
        since, now = run.past.opened.get(gate.address), time()
        if timeout is not None:
            gate = replace(gate, deadline=(since or now) + timeout)
        if since is None:
            # Store the gate before anyone is asked: an answer needs its gate and its call.
            await run.writer.store(GateOpened(now, run.path, self._step, gate))
        turn.close()
        answer = await self._first_of(answer_in_time(run.options.answer, gate, check), granted)
        if answer is not LATE and answer is not _GRANTED:
            own = form.validate_python(answer)
            kept = hide(own)
            settled = await run.writer.settle_answer(run, gate, kept)
            return own if settled is kept else settled
        first = await self._stored_answer(gate)  # of another process
        return answer if first is NOTHING else first

    async def _stored_answer(self, gate: OpenGate) -> Any:
        """The answer that a journal has for a gate, or `NOTHING`."""
        text = (await self._run.writer.answers(self._run)).get(gate.address)
        if text is None:
            return NOTHING
        try:
            return load_answer(gate, text)
        except ValidationError as error:
            raise _UnfitAnswer("; ".join(faults(error))) from error

    async def _first_of(
        self, asking: Coroutine[Any, Any, Any], granted: asyncio.Event | None
    ) -> Any:
        """The answer, or `_GRANTED` if the tool is approved for the whole run meanwhile."""
        if granted is None or self._run.options.answer is None:
            return await asking
        tasks = asyncio.ensure_future(asking), asyncio.ensure_future(granted.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].result() if tasks[0].done() else _GRANTED
        finally:
            for task in tasks:
                task.cancel()
            cancelled = await wait_despite_cancel(tasks)
            if not tasks[0].cancelled():
                tasks[0].exception()  # it is raised already, or came too late to matter
            if cancelled is not None:
                raise cancelled


def _describe_call(call: CallPart) -> str:
    """A call as people read it in a question. In a long call, each text is cut separately, so that
    no argument hides another."""
    arguments = dict(cast("Mapping[str, Any]", call.arguments))
    text = str(ToolCall(id=call.id, name=call.name, arguments=arguments))
    if len(text) <= _LONGEST_CALL:
        return text
    text = str(ToolCall(id=call.id, name=call.name, arguments=_short(arguments)))
    left = len(text) - _LONGEST_QUESTION
    return text if left <= 0 else f"{text[:_LONGEST_QUESTION]} … ({left:,} more characters)"


def _short(value: Any) -> Any:
    """JSON with its long texts and lists cut, each with its size."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value).items()
        return {_short(name): _short(each) for name, each in parts}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        more = [f"… ({len(items):,} items)"] if len(items) > _LONGEST_LIST else []
        return [*map(_short, items[:_LONGEST_LIST]), *more]
    return value
