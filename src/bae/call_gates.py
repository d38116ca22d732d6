"""The gates of tool calls. A conversation with tools asks people about its calls, in the order of
the calls. When the run is resumed, it reads their stored answers."""

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
"""A question shows a call unchanged if the call has at most this many characters."""
_LONGEST_TEXT: Final = 80
"""How many characters of each text in a longer call a question shows."""
_LONGEST_LIST: Final = 20
"""How many items of each list in a longer call a question shows."""
_LONGEST_QUESTION: Final = 4000
"""How many characters of the model's question, or of a call, a person is shown."""


_GRANTED: Final = Approval(approve=True)
"""Stands for an answer if a person, asked about another call, approved all calls of the tool."""


class _UnfitAnswer(Exception):
    """Raised if a stored answer does not fit its gate."""


class Decision(NamedTuple):
    """What people have decided about a call."""

    arguments: Mapping[str, Any]
    """The arguments to make the call with."""
    is_over: bool = False
    """Whether the call must not be made. The decision then has the call's `result` or `error`."""
    result: Any = None
    error: str | None = None


class CallGates:
    """The questions to people in one conversation with tools."""

    def __init__(self, conversation: Conversation) -> None:
        self._run, self._plan = conversation.run, conversation.plan
        self._field, self._asker = conversation.field.name, conversation.asker
        self._step, self._question = conversation.step, conversation.question
        self._turns = asyncio.Lock()
        """Held by a call until its gate is open, so that gates open in the order of the calls."""
        self._granted: dict[str, asyncio.Event] = {}
        """For each tool, an event that is set when a person has approved all calls of the tool."""

    async def decide(
        self, call: CallPart, plan: ToolPlan | AskPlan, arguments: Mapping[str, Any], starts: int
    ) -> Decision:
        """Ask people about a call, if the call needs it, and return their decision. If the call was
        interrupted and a person must decide whether to repeat it, `starts` is how often the call
        has begun; otherwise it is 0. Raises `Waiting` if the run has no answerer."""
        await self._turns.acquire()
        turn = ExitStack()
        with turn:
            turn.callback(self._turns.release)
            try:
                return await self._decide(call, plan, arguments, starts, turn)
            except _UnfitAnswer as unfit:
                # The journal stored the answer unchecked, because only the run knows the tool.
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
        raw = cast("Mapping[str, Any]", call.arguments)
        if isinstance(plan, AskPlan):
            return await self._ask(call, plan, raw, turn)
        call = replace(call, arguments=plan.mask_secrets(raw))  # people see no secrets
        if starts:
            decision = await self._settle(call, raw, starts, turn)
            if decision is not None:
                return decision
        if plan.approval is None or not await plan.approval.holds_for(arguments):
            return Decision(raw)
        return await self._approve(call, plan, plan.approval, raw, turn)

    async def _ask(
        self, call: CallPart, plan: AskPlan, raw: Mapping[str, Any], turn: ExitStack
    ) -> Decision:
        ask = plan.ask
        gate = self._gate(call, ask.type, raw["question"][:_LONGEST_QUESTION])
        gate = replace(gate, context={})
        answer = await self._answer(gate, ask.timeout, plan.answers.validate_python, turn)
        if answer is LATE:
            return Decision(raw, True, error=f"no person answered within {ask.timeout:g} s")
        return Decision(raw, True, to_jsonable_python(answer))

    async def _settle(
        self, call: CallPart, raw: Mapping[str, Any], starts: int, turn: ExitStack
    ) -> Decision | None:
        """Ask a person about an interrupted call. Return None if the call is to be repeated."""
        described = _describe_call(call)
        question = f"{described} was interrupted, and it is unknown whether it ran. Call it again?"
        gate = self._gate(call, Interruption, question, f"(unfinished {starts})")
        answer: Interruption = await self._answer(gate, None, Interruption.model_validate, turn)
        if answer.repeat:
            return None
        if answer.outcome:
            return Decision(raw, True, answer.outcome)
        error = f"the program was interrupted, and a person chose not to repeat the call: {UNKNOWN}"
        return Decision(raw, True, error=error)

    async def _approve(
        self,
        call: CallPart,
        plan: ToolPlan,
        rule: ApprovalRule,
        raw: Mapping[str, Any],
        turn: ExitStack,
    ) -> Decision:
        question = (
            f"{rule.question} {_describe_call(call)}"
            if rule.question
            else f"Allow {_describe_call(call)}?"
        )
        gate = self._gate(call, Approval, question)
        if await self._is_granted(plan.name, gate):
            return Decision(raw)

        def check(answer: Any) -> None:
            approval = Approval.model_validate(answer)
            check_approval_scope(approval, self._thread)
            if approval.arguments is not None:
                plan.validate(plan.restore_secrets(approval.arguments, raw))

        def hide(answer: Approval) -> Approval:
            arguments = answer.arguments
            if arguments is None or not plan.secret_parameters:
                return answer
            return answer.model_copy(update={"arguments": plan.mask_secrets(arguments)})

        granted = self._granted.setdefault(plan.name, asyncio.Event())
        answer: Approval | Late = await self._answer(gate, rule.timeout, check, turn, granted, hide)
        if isinstance(answer, Late):
            return Decision(raw, True, error=f"no person approved it within {rule.timeout:g} s")
        if not answer.approve:
            reason = f": {answer.reason}" if answer.reason else ""
            return Decision(raw, True, error=f"a person refused this call{reason}")
        if answer.scope != "call":
            if f"{gate.address}{REVOKED}" in await self._run.writer.answers(self._run):
                return Decision(raw, True, error="a person has revoked the approval of this tool")
            granted.set()
            if not self._is_stored:
                self._run.notes.granted.add(self._tool_place(plan.name))
        if answer.arguments is None:
            return Decision(raw)
        changed: dict[str, Any] = to_jsonable_python(plan.restore_secrets(answer.arguments, raw))
        try:  # perhaps only the run knows the tool, and the arguments were stored unchecked
            plan.validate(changed)
        except ValidationError as error:
            message = (
                f"a person changed the arguments, which do not fit: {'; '.join(faults(error))}"
            )
            return Decision(raw, True, error=message)
        return Decision(changed)

    async def _is_granted(self, tool: str, gate: OpenGate) -> bool:
        """Return whether a person has approved all calls of the tool in this run or its thread, and
        has not revoked the approval. Return False if the call's own gate has an answer, because
        that answer takes precedence."""
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
        """Whether the node class is outside the graph. No journal can store its gates."""
        return self._plan.node not in (self._run.plans or ())

    @property
    def _thread(self) -> str | None:
        """The thread that a person may approve all calls for; None if there is no such thread."""
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
        """Return the answer to a gate as a value of the gate's type, or `LATE`. If `granted` is set
        before there is an answer, return `_GRANTED`. `hide` masks the secrets in an answer before
        the answer is stored."""
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
        stored = await self._stored_answer(gate)
        if stored is not NOTHING:
            return stored
        since, now = run.past.opened.get(gate.address), time()
        if timeout is not None:
            gate = replace(gate, deadline=(since or now) + timeout)
        if since is None:
            # Store the gate before a person is asked: a stored answer refers to a stored gate.
            await run.writer.store(GateOpened(now, run.path, self._step, gate))
        turn.close()
        answer = await self._first_of(answer_in_time(run.options.answer, gate, check), granted)
        if answer is not LATE and answer is not _GRANTED:
            value = form.validate_python(answer)
            masked = hide(value)
            first = await run.writer.settle_answer(run, gate, masked)
            return value if first is masked else first
        other = await self._stored_answer(gate)  # another process may have stored an answer
        return answer if other is NOTHING else other

    async def _stored_answer(self, gate: OpenGate) -> Any:
        """Return the gate's answer in the journal, or `NOTHING`."""
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
        """Wait for the answer. Return `_GRANTED` if a person approves all calls of the tool
        first."""
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
                tasks[0].exception()  # otherwise asyncio warns that nothing retrieved it
            if cancelled is not None:
                raise cancelled


def _describe_call(call: CallPart) -> str:
    """Return the text of a call for a question to a person. In a long call, each argument is cut by
    itself, so that a person sees the beginning of every argument."""
    arguments = dict(cast("Mapping[str, Any]", call.arguments))
    text = str(ToolCall(id=call.id, name=call.name, arguments=arguments))
    if len(text) <= _LONGEST_CALL:
        return text
    text = str(ToolCall(id=call.id, name=call.name, arguments=_shorten(arguments)))
    excess = len(text) - _LONGEST_QUESTION
    return text if excess <= 0 else f"{text[:_LONGEST_QUESTION]} … ({excess:,} more characters)"


def _shorten(value: Any) -> Any:
    """Cut the long texts and lists in a JSON value, and add the original size to each."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return f"{value[:_LONGEST_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value).items()
        return {_shorten(name): _shorten(part) for name, part in parts}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        more = [f"… ({len(items):,} items)"] if len(items) > _LONGEST_LIST else []
        return [*map(_shorten, items[:_LONGEST_LIST]), *more]
    return value
