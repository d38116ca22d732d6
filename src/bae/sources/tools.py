"""`Tools`: the tool calls that the LM makes before it fills the other fields of a node."""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, Self, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from bae.approvals import Approval, Interruption
from bae.assignable import assignable, type_name, union_members
from bae.calls import CallPlan, Input, plan_call
from bae.exceptions import Problem, an_error
from bae.hints import Names, signature_of
from bae.language_model import is_lm
from bae.markers import Dep, Tools
from bae.node_proof import check_scope, missing_return_problems
from bae.sources import Told, lacks_name
from bae.sources.plain import PlainField
from bae.tool_plan import AskPlan, ToolPlan, native_spec, plan_tool
from bae.tool_proof import tool_problems
from bae.tools import Ask, Native, Tool, ToolCall, ToolProgress, ToolServer, as_tools

if TYPE_CHECKING:
    from bae.markers import OpenGate
    from bae.node import Node
    from bae.plan import NodePlan
    from bae.prompts.messages import ToolSpec
    from bae.sources import Before
    from bae.sources.recall import RecallField


_OPTIONS: Final = {
    "accept": ("bae-tools-accept", "node"),
    "before_round": ("bae-tools-before-round", "progress"),
}
"""The functions of the marker: the code of their problems, and a name for their parameter."""


class ToolsField(PlainField):
    """A field whose value is the list of tool calls of the LM that fills the node.

    The value is stored with the node. `call` stands for all tools: each tool is one of its inputs,
    so that the calls behind a tool are found like those behind any other call.
    """

    __slots__ = ("__dict__", "accept", "before_round", "natives", "pickers", "planned", "servers")
    kind = "tools"
    noun = "Tools"
    fills = "calls"

    marker: Tools
    planned: tuple[ToolPlan | AskPlan, ...]
    """The tools that are known before a run."""
    natives: tuple[Native, ...]
    """The tools that the provider runs."""
    pickers: tuple[Input, ...]
    """The functions that are called for more tools."""
    servers: tuple[tuple[ToolServer, Input], ...]
    accept: CallPlan | None
    before_round: CallPlan | None

    @classmethod
    def make(cls, name: str, info: FieldInfo, marker: Tools, names: Names) -> Self:
        """Plan a field, and its tools."""
        planned: list[ToolPlan | AskPlan] = []
        natives: list[Native] = []
        pickers: list[Input] = []
        servers: list[tuple[ToolServer, Input]] = []
        for each in as_tools(marker.tools):
            match each:
                case Ask():
                    planned.append(AskPlan(each))
                case Native():
                    natives.append(each)
                case ToolServer():
                    opened = Dep(each.open, scope="app", timeout=each.open_timeout)
                    servers.append((each, Input(plan_call(each.open, names), opened)))
                case Tool():
                    tool = plan_tool(each, names)
                    if _is_picker(tool):
                        pickers.append(Input(tool.call, Dep(each.fn)))
                    else:
                        planned.append(tool)
        inputs = [(t.name, Input(t.call, t.marker)) for t in planned if isinstance(t, ToolPlan)]
        inputs += [(picker.call.name, picker) for picker in pickers]
        inputs += [(server.name, opened) for server, opened in servers]
        call = CallPlan(None, ("tools", *(each.call.key for _, each in inputs)), "Tools", "sync")
        call.declared, call.inputs = list[ToolCall], tuple(inputs)
        call.needs_lm = any(each.call.needs_lm for _, each in inputs)
        field = cls(name, info, marker, call)
        field.planned, field.natives = tuple(planned), tuple(natives)
        field.pickers, field.servers = tuple(pickers), tuple(servers)
        field.finds_tools = bool(pickers or servers)
        field.shows_results = marker.show == "results"
        field.provider_tools = tuple(native.name for native in natives)
        field.accept = None if marker.accept is None else plan_call(marker.accept, names)
        steer = marker.before_round
        field.before_round = None if steer is None else plan_call(steer, names)
        return field

    @classmethod
    def sentence(cls, told: Told) -> str:
        """The number of calls that the LM made."""
        return f"the LLM made {_calls(told.items)}"

    @classmethod
    def phrase(cls, told: Told) -> str:
        """The number of calls that the LM made."""
        return f"{_calls(told.items)}{told.took}"

    @classmethod
    def row(cls, told: Told) -> str:
        """The number of calls that the LM made."""
        return _calls(told.items)

    def schema_words(self) -> str:
        """The names of the tools."""
        return f" from tools {', '.join(self.tool_names)}"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        """The names of the tools."""
        return ", ".join(self.tool_names)

    @cached_property
    def tool_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the tools, as far as they are known before a run."""
        named = [*(each.name for each in self.planned), *(native.name for native in self.natives)]
        named += [f"those of {picker.call.name}" for picker in self.pickers]
        return (*named, *(f"those of {server.name}" for server, _ in self.servers))

    @cached_property
    def tool_specs(self) -> tuple[ToolSpec, ...]:  # type: ignore[override]
        """The specs of the tools that are known before a run."""
        return (*(each.spec for each in self.planned), *self.native_specs)

    @cached_property
    def native_specs(self) -> tuple[ToolSpec, ...]:
        """The specs of the provider's own tools."""
        return tuple(map(native_spec, self.natives))

    @property
    def is_provisional(self) -> bool:
        """Whether a name is missing in a tool; it may be defined later."""
        return any(map(lacks_name, (self.call, self.accept, self.before_round)))

    @property
    def has_secret_arguments(self) -> bool:  # type: ignore[override]
        """Whether an LM passes a secret to a tool."""
        return any(isinstance(each, ToolPlan) and each.secret_parameters for each in self.planned)

    @property
    def asks_person(self) -> bool:  # type: ignore[override]
        """Whether a person may be asked in the conversation."""
        return any(each.asks_person for each in self.planned) or any(
            server.approve for server, _ in self.servers
        )

    def takes_answer(self, gate: OpenGate) -> bool:
        """Whether a person's answer is about a call."""
        return bool(gate.parameter)

    def answer_type(self, tool: str, names: int) -> Any:
        """The type of a person's answer about a call. For a tool that only the run knows, any
        answer fits, and is checked when the run is resumed."""
        if names > 2:
            return Interruption
        plan = next((each for each in self.planned if each.name == tool), None)
        if plan is None:
            return Any
        return plan.ask.type if isinstance(plan, AskPlan) else Approval

    def check_answer(self, cls: type[Node], gate: OpenGate, value: Any) -> Any:
        """A person's answer about a call, with arguments that the tool takes."""
        answer = TypeAdapter(gate.type).validate_python(value)
        if gate.type is Any:
            with suppress(ValidationError):
                return Approval.model_validate(value)
        if isinstance(answer, Approval) and answer.arguments is not None:
            for plan in self.planned:
                if gate.call is not None and plan.name == gate.call.name:
                    plan.validate(answer.arguments)
                    _refuse_secrets(plan, answer.arguments)
        return answer

    def recalls(self) -> Iterator[tuple[str, Hashable, RecallField]]:
        """The look-ups in the trace for the tools."""
        for name, below in cast(CallPlan, self.call).inputs:
            for found_name, recall in below.call.recalls:
                yield f"({name})({found_name})", (below.call.key, found_name, recall.marker), recall

    def draw(self) -> dict[str, Any]:
        """The names of the tools."""
        return {"tools": [*self.tool_names]}

    def problems(self, plan: NodePlan) -> Iterator[Problem]:
        """The problems of the tools, repeated names, and a type that does not fit."""
        if not self.marker.tools:
            yield an_error(
                "bae-tools-none",
                "names no tool",
                "give it a function: Tools(search)",
            )
        if assignable(list[ToolCall], self.annotation) is False:
            yield an_error(
                "bae-tools-type",
                f"is {type_name(self.annotation)}, but Tools makes a list[ToolCall]",
                "declare the field list[ToolCall]",
            )
        seen: dict[str, None] = {}
        for each in (*self.planned, *self.natives):
            if each.name in seen:
                yield an_error(
                    "bae-tool-same-name",
                    f"has two tools named {each.name}, which the LM cannot tell apart",
                    f'rename one: Tool({each.name}, name="…")',
                )
            seen[each.name] = None
        servers = [server.name for server, _ in self.servers]
        for name in sorted({name for name in servers if servers.count(name) > 1}):
            yield an_error(
                "bae-tool-same-name",
                f"has two servers named {name}, whose errors could not be told apart",
                'name one: MCP.stdio(…, name="…")',
            )
        for tool in self.planned:
            yield from tool_problems(tool)
        for _, below in cast(CallPlan, self.call).inputs:
            yield from _problems_behind(below)
        if self.accept is not None:
            yield from _option_problems("accept", self.accept, plan.node, f"the filled {plan.name}")
            if _needs_lm(self.accept):
                yield an_error(
                    "bae-tools-accept",
                    f"accept={self.accept.name} takes an LM, which it is not given",
                    f"leave it out: {self.accept.name} checks the answer by itself. To have an LM "
                    f"judge it, lead on from {plan.name} to a node that the LM fills, and back",
                )
        if self.before_round is not None:
            yield from self._steering_problems(self.before_round)
        pinned: object = plan.lm
        if not isinstance(pinned, str | type | None) and is_lm(pinned):
            from bae.failures import tools_refused

            if (refused := tools_refused(pinned, plan)) is not None:
                yield an_error(refused.code, refused.message, refused.fix or "")

    def _steering_problems(self, steer: CallPlan) -> Iterator[Problem]:
        yield from _option_problems("before_round", steer, ToolProgress, "a ToolProgress")
        if _needs_lm(steer):
            yield an_error(
                "bae-tools-before-round",
                f"before_round={steer.name} takes an LM, which it is not given",
                f"leave it out: {steer.name} decides by the calls so far",
            )
        if assignable(steer.declared, str | None) is False:
            yield an_error(
                "bae-tools-before-round",
                f"before_round={steer.name} returns {type_name(steer.declared)}",
                "have it return a text that the LM reads, or None",
            )

    def fill_problems(self, plan: NodePlan) -> Iterator[Problem]:
        """None: the LM is not asked for the value."""
        return iter(())

    def given_problems(self) -> Iterator[Problem]:
        """A note that no LM calls the tools of a start node."""
        if self.required:
            yield an_error(
                "bae-tools-start",
                "is on the start node, which the caller fills: no LM calls the tools",
                "put the field on the next node, which the LM fills",
            )


def tools_of(plan: NodePlan) -> ToolsField:
    """The field with the tools of a node that has tools."""
    return cast(ToolsField, plan.tools)


def _refuse_secrets(plan: ToolPlan | AskPlan, arguments: Mapping[str, Any]) -> None:
    """Raise an error if a person changes a secret in an answer that is stored."""
    masked = plan.mask_secrets(arguments) if isinstance(plan, ToolPlan) else arguments
    changed = [name for name, value in arguments.items() if masked[name] != value]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} is a secret, and would be stored: leave the mask, or answer "
            "while the run is in progress, with answer=…"
        )


def _option_problems(option: str, call: CallPlan, given: type, what: str) -> Iterator[Problem]:
    """The problems of a function in `Tools(accept=…)` or `Tools(before_round=…)`, which is called
    with one value."""
    code, parameter = _OPTIONS[option]
    yield from call.problems
    free = [name for name, _ in call.free]
    if len(free) != 1:
        yield an_error(
            code,
            f"{option}={call.name} must take {what} and nothing else that is not filled, but takes "
            f"{', '.join(free) or 'nothing'}",
            f"write `def {call.name}({parameter}: {given.__name__})`; give other "
            "parameters a Dep or a Recall",
        )
    elif assignable(given, call.free[0][1]) is False:
        yield an_error(
            code,
            f"{option}={call.name} takes {type_name(call.free[0][1])}, and not {given.__name__}",
            f"annotate its parameter {given.__name__}",
        )


def _needs_lm(call: CallPlan) -> bool:
    """Whether a function cannot be called without an LM."""
    if not call.lm_parameters:
        return False
    taken = signature_of(call.fn).parameters
    return any(taken[name].default is Parameter.empty for name in call.lm_parameters)


def _calls(count: int) -> str:
    return "1 tool call" if count == 1 else f"{count} tool calls"


def _is_picker(tool: ToolPlan) -> bool:
    """Whether a function is called for tools: the model passes it nothing, and it returns a list of
    `Tool`."""
    returned = tool.call.declared
    if tool.call.graph is not None or tool.call.unfilled or tool.call.optional:
        return False
    origin, arguments = typing.get_origin(returned), typing.get_args(returned)
    is_listed = isinstance(origin, type) and issubclass(origin, Sequence) and bool(arguments)
    kinds = (Tool, Callable, Callable[..., Any])
    return is_listed and any(member in kinds for member in union_members(arguments[0]))


def _problems_behind(below: Input) -> Iterator[Problem]:
    """The problems of the parameters of a tool that bae fills."""
    from bae.node_proof import check_input, problems_of

    for parameter, each in below.call.inputs:
        yield from problems_of(each.call)
        yield from check_input(below.call, parameter, each)
        yield from missing_return_problems(each.call, each.wanted)
        yield from check_scope(each.call, each.marker)
