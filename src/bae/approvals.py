"""Approvals of tool calls: the answers of people, approvals for a whole run or thread, and the
rules that say before which calls a person is asked."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from bae.exceptions import JournalError
from bae.markers import OpenGate
from bae.place import Place

if TYPE_CHECKING:
    from bae.rooms import Journal
    from bae.tools import Tool

WiderScope = Literal["run", "thread"]
"""The scope of an approval that covers more than one call."""
_WIDEST: Final = "thread"
_WIDER: Final[tuple[WiderScope, ...]] = ("run", _WIDEST)
REVOKED: Final = "(revoked)"
"""The suffix of a gate's address under which a journal stores that the gate's approval was
revoked."""
_NO: Final = re.compile(r"(?:no|n)(?:\s*[:,;]\s*|\s+)(.+)", re.IGNORECASE | re.DOTALL)


class Approval(BaseModel):
    """A person's answer to the question whether a tool may be called. bae also accepts `True` and
    `False`, and the words "yes", "no", "no: the reason", "run" and "thread".

    - `approve`: whether the call is made.
    - `arguments`: all arguments of the call, in place of the model's arguments.
    - `reason`: why the person refuses the call. The model reads the reason.
    - `scope`: which calls the approval covers. "call" is this call only. "run" is every call of the
      tool for the same field in this run. "thread" is every call of the tool for the same field in
      this thread.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    approve: bool
    arguments: dict[str, Any] | None = None
    reason: str = ""
    scope: Literal["call", "run", "thread"] = "call"

    @model_validator(mode="before")
    @classmethod
    def _read_short(cls, answer: Any) -> Any:
        if isinstance(answer, bool):
            return {"approve": answer}
        if isinstance(answer, str):
            return _read_words(answer)
        if isinstance(answer, Mapping):
            fields = dict(cast("Mapping[str, Any]", answer))
            return {"approve": True, **fields} if fields.get("arguments") is not None else fields
        return answer

    @model_validator(mode="after")
    def _check_refusal(self) -> Approval:
        if not self.approve and (self.arguments is not None or self.scope != "call"):
            raise PydanticCustomError(
                "answer", "a refusal has a reason, and neither arguments nor a scope"
            )
        return self


class Interruption(BaseModel):
    """A person's answer about an interrupted tool call: the call began, and its result is unknown.
    bae also accepts `True` and `False` for `repeat`, and a text for `outcome`.

    - `repeat`: whether to call the tool again.
    - `outcome`: the result that the model reads, if the call is not repeated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repeat: bool
    outcome: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read_short(cls, value: Any) -> Any:
        if isinstance(value, bool):
            return {"repeat": value}
        if isinstance(value, str) and value.strip():
            word = value.strip().lower()
            words = {"y": True, "yes": True, "repeat": True, "n": False, "no": False}
            return {"repeat": words[word]} if word in words else {"repeat": False, "outcome": value}
        return value

    @model_validator(mode="after")
    def _check_outcome(self) -> Interruption:
        if self.repeat and self.outcome:
            raise PydanticCustomError(
                "answer", "a call that is repeated has no outcome yet: give one of them"
            )
        return self


class Grant(NamedTuple):
    """An approval of all calls of a tool for a field, in a run or a thread.
    `journal.approvals(run_id)` returns these approvals.

    - `tool`: the name of the tool.
    - `place`: the field and the tool, such as `Reply.calls(refund)`.
    - `address`: the address of the gate where a person approved.
    - `revoked`: whether the approval was revoked.
    - `scope`: "run", or "thread" if the approval covers the other turns of the thread too.
    - `run_id`: the run that asked the person.
    """

    tool: str
    place: str
    address: str
    revoked: bool = False
    scope: WiderScope = "run"
    run_id: str = ""

    @property
    def holds_in_thread(self) -> bool:
        """Whether the approval covers the other turns of the thread too."""
        return self.scope == _WIDEST


def grants_in(answers: Mapping[str, str], run_id: str) -> list[Grant]:
    """Return the approvals of all calls of a tool, including revoked approvals. `answers` has the
    JSON of each answer of a run, by the address of its gate."""
    grants: list[Grant] = []
    for address, text in answers.items():
        place = Place.parse(address)
        if place is None or len(place.parameters) != 3 or address.endswith(REVOKED):
            continue
        value = json.loads(text)
        scope = _scope_of(value)
        if scope is not None:
            tool = place.parameters[0]
            where = f"{place.node}.{place.field}({tool})"
            is_revoked = f"{address}{REVOKED}" in answers
            grants.append(Grant(tool, where, address, is_revoked, scope, run_id))
    return grants


def _scope_of(value: Any) -> WiderScope | None:
    """Return the scope of an approval of more than one call; None for any other answer."""
    if not isinstance(value, dict):
        return None
    match cast("dict[str, Any]", value):
        case {"approve": True, "scope": scope} if scope in _WIDER:
            return scope
        case _:
            return None


async def revoke_grants(
    journal: Journal, given: Sequence[Grant], tool: str, whose: str, run_id: str | None = None
) -> list[Grant]:
    """Revoke the approvals among `given` that cover a tool, and return them. `tool` is the name of
    the tool, or the `place` of an approval. Raise `JournalError` if there is no such approval; the
    message begins with `whose`."""
    valid = [grant for grant in given if not grant.revoked]
    to_revoke = [grant for grant in valid if tool in (grant.tool, grant.place)]
    if not to_revoke:
        places = ", ".join(sorted({grant.place for grant in valid}))
        raise JournalError(
            f"{whose} has no yes for {tool} that could be revoked",
            run_id=run_id,
            code="bae-approval-unknown",
            fix=f"name one of {places}" if places else "there is none",
        )
    for grant in to_revoke:
        await journal.answer(grant.run_id, f"{grant.address}{REVOKED}", "true")
    return [grant._replace(revoked=True) for grant in to_revoke]


def for_run_alone(answers: Mapping[str, str]) -> dict[str, str]:
    """Return a run's answers for a copy of the run. Approvals for the thread become approvals for
    the run, because the copy belongs to another thread or to another journal."""
    limited = dict(answers)
    for address, text in answers.items():
        value = json.loads(text)
        if _scope_of(value) == _WIDEST:
            limited[address] = json.dumps({**value, "scope": "run"}, ensure_ascii=False)
    return limited


def check_approval_scope(answer: Any, thread: str | None) -> None:
    """Raise pydantic's ValidationError if the answer approves for a thread, but the run has no
    thread."""
    if isinstance(answer, Approval) and answer.scope == _WIDEST and thread is None:
        why = 'the run belongs to no thread that a yes could hold for: give "run"'
        detail: InitErrorDetails = {"type": PydanticCustomError("answer", why), "input": answer}
        raise ValidationError.from_exception_data("Approval", [detail])


def dump_answer(gate: OpenGate, value: Any) -> str:
    """Return the JSON that a journal stores for an answer about a tool call."""
    return TypeAdapter(gate.type).dump_json(value).decode()


def load_answer(gate: OpenGate, text: str) -> Any:
    """Read a stored answer about a tool call. Raises pydantic's ValidationError if the answer does
    not fit the gate."""
    return TypeAdapter(gate.type).validate_json(text)


# --- before which calls a person is asked --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """Says before which calls of a tool a person is asked, and with which question."""

    question: str = ""
    """The question before the text of the call; bae's own question if empty."""
    timeout: float | None = None
    """How many seconds the person has to answer; None for no limit."""
    predicate: Callable[..., bool | Awaitable[bool]] | None = None
    """Decides from the arguments of a call whether a person is asked. If None, a person is asked
    before every call."""
    takes: frozenset[str] | None = None
    """The arguments that the predicate takes; None if it takes all."""
    defaults: Mapping[str, Any] | None = None
    """The default values of the tool's parameters."""

    async def holds_for(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether a person is asked before a call with these arguments."""
        if self.predicate is None:
            return True
        values = {**(self.defaults or {}), **arguments}
        if self.takes is not None:
            values = {name: value for name, value in values.items() if name in self.takes}
        verdict = self.predicate(**values)
        return bool(await verdict if isinstance(verdict, Awaitable) else verdict)


def approval_rule(tool: Tool, defaults: Mapping[str, Any]) -> ApprovalRule | None:
    """Return the approval rule of a tool; None if its calls need no approval."""
    approve, timeout = tool.approve, tool.approve_timeout
    if isinstance(approve, str):
        return ApprovalRule(approve, timeout)
    if isinstance(approve, bool):
        return ApprovalRule("", timeout) if approve else None
    parameters = inspect.signature(approve).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    takes = None if takes_all else frozenset(parameter.name for parameter in parameters)
    return ApprovalRule("", timeout, approve, takes, defaults)


def _read_words(text: str) -> dict[str, Any]:
    word = text.strip()
    if word.lower() in ("y", "yes"):
        return {"approve": True}
    if word.lower() in ("n", "no"):
        return {"approve": False}
    if word.lower() in _WIDER:
        return {"approve": True, "scope": word.lower()}
    refusal = _NO.fullmatch(word)
    if refusal is not None:
        return {"approve": False, "reason": refusal[1]}
    raise PydanticCustomError(
        "answer",
        "answer yes, no, `no: the reason`, run for a yes to all calls of the tool in this run, "
        "thread for a yes that holds in later turns of the thread too, or "
        '{"arguments": {…}}, with all arguments, to change them',
    )
