"""Approvals: people's answers about tool calls, approvals that hold for a whole run or thread, and
the rules for when a person is asked."""

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
"""How far an approval holds beyond its own call."""
_WIDEST: Final = "thread"
_WIDER: Final[tuple[WiderScope, ...]] = ("run", _WIDEST)
REVOKED: Final = "(revoked)"
"""Follows the address of a gate whose approval was taken back."""
_NO: Final = re.compile(r"(?:no|n)(?:\s*[:,;]\s*|\s+)(.+)", re.IGNORECASE | re.DOTALL)


class Approval(BaseModel):
    """A person's answer to whether a tool may be called. bae also accepts `True` and `False`, and
    the words "yes", "no", "no: the reason", "run" and "thread".

    - `approve`: whether the call is made.
    - `arguments`: all arguments of the call, in place of the model's.
    - `reason`: why the call is refused. The model reads the reason.
    - `scope`: how far an approval holds. "call" is this call, with these arguments; "run" is all
      calls of the tool in this run; "thread" adds the calls in other turns of the thread.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    approve: bool
    arguments: dict[str, Any] | None = None
    reason: str = ""
    scope: Literal["call", "run", "thread"] = "call"

    @model_validator(mode="before")
    @classmethod
    def _read_short(cls, given: Any) -> Any:
        if isinstance(given, bool):
            return {"approve": given}
        if isinstance(given, str):
            return _read_words(given)
        if isinstance(given, Mapping):
            fields = dict(cast("Mapping[str, Any]", given))
            return {"approve": True, **fields} if fields.get("arguments") is not None else fields
        return given

    @model_validator(mode="after")
    def _check_refusal(self) -> Approval:
        if not self.approve and (self.arguments is not None or self.scope != "call"):
            raise PydanticCustomError(
                "answer", "a refusal has a reason, and neither arguments nor a scope"
            )
        return self


class Interruption(BaseModel):
    """A person's answer about a call that had begun and has no result. bae also accepts `True` and
    `False` for `repeat`, and a text for `outcome`.

    - `repeat`: whether to call the tool again.
    - `outcome`: the result that the model reads, if the call is not repeated.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repeat: bool
    outcome: str = ""

    @model_validator(mode="before")
    @classmethod
    def _read_short(cls, given: Any) -> Any:
        if isinstance(given, bool):
            return {"repeat": given}
        if isinstance(given, str) and given.strip():
            word = given.strip().lower()
            known = {"y": True, "yes": True, "repeat": True, "n": False, "no": False}
            return {"repeat": known[word]} if word in known else {"repeat": False, "outcome": given}
        return given

    @model_validator(mode="after")
    def _check_outcome(self) -> Interruption:
        if self.repeat and self.outcome:
            raise PydanticCustomError(
                "answer", "a call that is repeated has no outcome yet: give one of them"
            )
        return self


class Grant(NamedTuple):
    """An approval that holds for all calls of a tool in a run, as `journal.approvals(run_id)` lists
    it.

    - `place`: the field and the tool, as `Reply.calls(refund)`.
    - `address`: the gate where a person gave the answer, and `run_id` the run that asked.
    - `revoked`: whether the approval was taken back.
    - `scope`: "run", or "thread" for an approval that holds in other turns of the thread too.
    """

    tool: str
    place: str
    address: str
    revoked: bool = False
    scope: WiderScope = "run"
    run_id: str = ""

    @property
    def holds_in_thread(self) -> bool:
        """Whether the approval holds in other turns of the thread too."""
        return self.scope == _WIDEST


def grants_in(answers: Mapping[str, str], run_id: str) -> list[Grant]:
    """The answers of a run that hold for all calls of a tool, including revoked answers."""
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
    """How far an answer holds beyond its own call; None for other answers."""
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
    """Take back the given approvals that hold for a tool, and return them."""
    holding = [each for each in given if not each.revoked]
    taken = [each for each in holding if tool in (each.tool, each.place)]
    if not taken:
        places = ", ".join(sorted({each.place for each in holding}))
        raise JournalError(
            f"{whose} has no yes for {tool} that could be revoked",
            run_id=run_id,
            code="bae-approval-unknown",
            fix=f"name one of {places}" if places else "there is none",
        )
    for each in taken:
        await journal.answer(each.run_id, f"{each.address}{REVOKED}", "true")
    return [each._replace(revoked=True) for each in taken]


def for_run_alone(answers: Mapping[str, str]) -> dict[str, str]:
    """The answers of a run, with approvals for the thread limited to this run: a copy of the run
    belongs to another thread, or to another journal."""
    limited = dict(answers)
    for address, text in answers.items():
        value = json.loads(text)
        if _scope_of(value) == _WIDEST:
            limited[address] = json.dumps({**value, "scope": "run"}, ensure_ascii=False)
    return limited


def check_approval_scope(answer: Any, thread: str | None) -> None:
    """Raise pydantic's ValidationError for an approval for a thread, in a run without a thread."""
    if isinstance(answer, Approval) and answer.scope == _WIDEST and thread is None:
        why = 'the run belongs to no thread that a yes could hold for: give "run"'
        detail: InitErrorDetails = {"type": PydanticCustomError("answer", why), "input": answer}
        raise ValidationError.from_exception_data("Approval", [detail])


def dump_answer(gate: OpenGate, value: Any) -> str:
    """The answer to a question about a call, in the form in which it is stored."""
    return TypeAdapter(gate.type).dump_json(value).decode()


def load_answer(gate: OpenGate, text: str) -> Any:
    """A stored answer to a question about a call. Raises pydantic's ValidationError."""
    return TypeAdapter(gate.type).validate_json(text)


# --- when a person is asked ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """When a person is asked before a call, and with which question. `takes` are the arguments of
    the predicate; None if it takes all. `defaults` are values of arguments that a call may leave
    out."""

    question: str = ""
    timeout: float | None = None
    predicate: Callable[..., bool | Awaitable[bool]] | None = None
    takes: frozenset[str] | None = None
    defaults: Mapping[str, Any] | None = None

    async def holds_for(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a person is asked before a call with these arguments."""
        if self.predicate is None:
            return True
        known = {**(self.defaults or {}), **arguments}
        if self.takes is not None:
            known = {name: value for name, value in known.items() if name in self.takes}
        verdict = self.predicate(**known)
        return bool(await verdict if isinstance(verdict, Awaitable) else verdict)


def approval_rule(tool: Tool, defaults: Mapping[str, Any]) -> ApprovalRule | None:
    """The rule of a tool; None if nobody is asked."""
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
    refused = _NO.fullmatch(word)
    if refused is not None:
        return {"approve": False, "reason": refused[1]}
    raise PydanticCustomError(
        "answer",
        "answer yes, no, `no: the reason`, run for a yes to all calls of the tool in this run, "
        "thread for a yes that holds in later turns of the thread too, or "
        '{"arguments": {…}}, with all arguments, to change them',
    )
