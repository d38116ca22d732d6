"""Approvals: the answers of people about tool calls, the yeses that hold for a whole run, and the
rules for when a person is asked."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator
from pydantic_core import PydanticCustomError

from bae.markers import OpenGate
from bae.place import Place

if TYPE_CHECKING:
    from bae.tools import Tool

REVOKED: Final = "(revoked)"
"""Follows the address of a gate where a yes of it was taken back."""
_TOO_WIDE: Final = "thread"
_NO: Final = re.compile(r"(?:no|n)(?:\s*[:,;]\s*|\s+)(.+)", re.IGNORECASE | re.DOTALL)


class Approval(BaseModel):
    """A person's answer to whether a tool may be called. `True` and `False` are accepted in its
    place, and so are the words "yes", "no", "no: the reason" and "run".

    - `approve`: whether the call is made.
    - `arguments`: all arguments of the call, in place of the model's.
    - `reason`: why the call is refused. The model reads the reason.
    - `scope`: a yes with "call" holds for this call, with these arguments; with "run", for all
      calls of the tool in this run.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    approve: bool
    arguments: dict[str, Any] | None = None
    reason: str = ""
    scope: Literal["call", "run"] = "call"

    @model_validator(mode="before")
    @classmethod
    def _read_short(cls, given: Any) -> Any:
        if isinstance(given, bool):
            return {"approve": given}
        if isinstance(given, str):
            return _read_words(given)
        if isinstance(given, Mapping):
            said = dict(cast("Mapping[str, Any]", given))
            if said.get("scope") == _TOO_WIDE:
                raise PydanticCustomError(
                    "answer",
                    'a yes cannot hold for a thread, whose later runs differ: give "run"',
                )
            return {"approve": True, **said} if said.get("arguments") is not None else said
        return given

    @model_validator(mode="after")
    def _check_refusal(self) -> Approval:
        if not self.approve and (self.arguments is not None or self.scope != "call"):
            raise PydanticCustomError(
                "answer", "a refusal has a reason, and neither arguments nor a scope"
            )
        return self


class Interruption(BaseModel):
    """A person's answer about a call that had begun and has no result. `True` and `False` are
    accepted for `repeat`, and a text for `outcome`.

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
    """A yes that holds for all calls of a tool in a run, as `journal.approvals(run_id)` lists it.

    - `place`: the field and the tool, as `Reply.calls(refund)`.
    - `address`: the gate where a person gave the answer.
    - `revoked`: whether the yes was taken back.
    """

    tool: str
    place: str
    address: str
    revoked: bool = False


def grants_in(answers: Mapping[str, str]) -> list[Grant]:
    """The answers that hold for all calls of a tool, including revoked answers."""
    found: list[Grant] = []
    for address, text in answers.items():
        place = Place.parse(address)
        if place is None or len(place.parameters) != 3 or address.endswith(REVOKED):
            continue
        value = json.loads(text)
        if isinstance(value, dict) and value == {**value, "approve": True, "scope": "run"}:
            tool = place.parameters[0]
            where = f"{place.node}.{place.field}({tool})"
            found.append(Grant(tool, where, address, f"{address}{REVOKED}" in answers))
    return found


def dump_answer(gate: OpenGate, value: Any) -> str:
    """The answer to a question about a call, as it is stored."""
    return TypeAdapter(gate.type).dump_json(value).decode()


def load_answer(gate: OpenGate, text: str) -> Any:
    """A stored answer to a question about a call. Raises pydantic's ValidationError."""
    return TypeAdapter(gate.type).validate_json(text)


# --- when a person is asked ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """When a person is asked before a call, and what. `takes` are the arguments that the predicate
    has; None where it takes all. `defaults` are values of arguments that a call may leave out."""

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
        found = self.predicate(**known)
        return bool(await found if isinstance(found, Awaitable) else found)


def approval_rule(tool: Tool, defaults: Mapping[str, Any]) -> ApprovalRule | None:
    """The rule of a tool; None where nobody is asked."""
    approve, timeout = tool.approve, tool.approve_timeout
    if isinstance(approve, str):
        return ApprovalRule(approve, timeout)
    if isinstance(approve, bool):
        return ApprovalRule("", timeout) if approve else None
    parameters = inspect.signature(approve).parameters.values()
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    takes = None if takes_all else frozenset(each.name for each in parameters)
    return ApprovalRule("", timeout, approve, takes, defaults)


def _read_words(text: str) -> dict[str, Any]:
    word = text.strip()
    if word.lower() in ("y", "yes"):
        return {"approve": True}
    if word.lower() in ("n", "no"):
        return {"approve": False}
    if word.lower() == "run":
        return {"approve": True, "scope": "run"}
    refused = _NO.fullmatch(word)
    if refused is not None:
        return {"approve": False, "reason": refused[1]}
    raise PydanticCustomError(
        "answer",
        "answer yes, no, `no: the reason`, run for a yes to all calls of the tool in this run, or "
        '{"arguments": {…}}, with all arguments, to change them',
    )
