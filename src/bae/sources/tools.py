"""`Tools`: the tool calls that the LLM makes before it fills the other fields of a node."""

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
from bae.sources import SourceFacts, lacks_name
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
"""For each function in the marker, the code of its problems and a parameter name for the fix."""


class ToolsField(PlainField):
    """The plan of a field with `Tools`. Its value is the list of tool calls of the LLM that fills
    the node.

    A journal stores the value in its node. `call` stands for all tools: each tool is an input of
    `call`. So bae finds the dependencies of tools as it finds the dependencies of any other call.
    """

    __slots__ = ("__dict__", "accept", "before_round", "natives", "pickers", "planned", "servers")
    kind = "tools"
    noun = "Tools"
    fills = "calls"

    marker: Tools
    planned: tuple[ToolPlan | AskPlan, ...]
    """The tools that are known before a run."""
    natives: tuple[Native, ...]
    """The tools that the LLM's provider runs."""
    pickers: tuple[Input, ...]
    """The functions that bae calls during a run to get more tools."""
    servers: tuple[tuple[ToolServer, Input], ...]
    """The servers that bae opens for more tools, each with the call that opens the server."""
    accept: CallPlan | None
    before_round: CallPlan | None

    @classmethod
    def make(cls, name: str, info: FieldInfo, marker: Tools, names: Names) -> Self:
        """Plan a field and its tools."""
        planned: list[ToolPlan | AskPlan] = []
        natives: list[Native] = []
        pickers: list[Input] = []
        servers: list[tuple[ToolServer, Input]] = []
        for tool in as_tools(marker.tools):
            match tool:
                case Ask():
                    planned.append(AskPlan(tool))
                case Native():
                    natives.append(tool)
                case ToolServer():
                    opened = Dep(tool.open, scope="app", timeout=tool.open_timeout)
                    servers.append((tool, Input(plan_call(tool.open, names), opened)))
                case Tool():
                    tool_plan = plan_tool(tool, names)
                    if _is_picker(tool_plan):
                        pickers.append(Input(tool_plan.call, Dep(tool.fn)))
                    else:
                        planned.append(tool_plan)
        inputs = [(t.name, Input(t.call, t.marker)) for t in planned if isinstance(t, ToolPlan)]
        inputs += [(picker.call.name, picker) for picker in pickers]
        inputs += [(server.name, opened) for server, opened in servers]
        call = CallPlan(
            None, ("tools", *(tool_input.call.key for _, tool_input in inputs)), "Tools", "sync"
        )
        call.declared, call.inputs = list[ToolCall], tuple(inputs)
        call.needs_lm = any(tool_input.call.needs_lm for _, tool_input in inputs)
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
    def sentence(cls, facts: SourceFacts) -> str:
        return f"the LLM made {_count_calls(facts.items)}"

    @classmethod
    def phrase(cls, facts: SourceFacts) -> str:
        return f"{_count_calls(facts.items)}{facts.took}"

    @classmethod
    def row(cls, facts: SourceFacts) -> str:
        return _count_calls(facts.items)

    def describe_in_schema(self) -> str:
        return f" from tools {', '.join(self.tool_names)}"

    def origin(self, cls: type[Node], before: Before | None) -> str:
        return ", ".join(self.tool_names)

    @cached_property
    def tool_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the tools that are known before a run. A function or server that adds tools
        during the run appears as `those of NAME`."""
        names = [*(tool.name for tool in self.planned), *(native.name for native in self.natives)]
        names += [f"those of {picker.call.name}" for picker in self.pickers]
        return (*names, *(f"those of {server.name}" for server, _ in self.servers))

    @cached_property
    def tool_specs(self) -> tuple[ToolSpec, ...]:  # type: ignore[override]
        """The specs of the tools that are known before a run."""
        return (*(tool.spec for tool in self.planned), *self.native_specs)

    @cached_property
    def native_specs(self) -> tuple[ToolSpec, ...]:
        """The specs of the provider's own tools."""
        return tuple(map(native_spec, self.natives))

    @property
    def is_provisional(self) -> bool:
        """Whether a tool, or a function in the marker, needs a name that is not defined yet."""
        return any(map(lacks_name, (self.call, self.accept, self.before_round)))

    @property
    def has_secret_arguments(self) -> bool:  # type: ignore[override]
        """Whether the LLM passes a secret to a tool."""
        return any(isinstance(tool, ToolPlan) and tool.secret_parameters for tool in self.planned)

    @property
    def asks_person(self) -> bool:  # type: ignore[override]
        """Whether a tool may ask a person, or a call may need a person's approval."""
        return any(tool.asks_person for tool in self.planned) or any(
            server.approve for server, _ in self.servers
        )

    def takes_answer(self, gate: OpenGate) -> bool:
        """Return whether a person's answer is about a tool call."""
        return bool(gate.parameter)

    def answer_type(self, tool: str, names: int) -> Any:
        """Return the type of a person's answer about a call. For more than two names, the question
        is about an interrupted call. If only the run knows the tool, return Any: bae then checks
        the answer when the run resumes."""
        if names > 2:
            return Interruption
        plan = next((tool_plan for tool_plan in self.planned if tool_plan.name == tool), None)
        if plan is None:
            return Any
        return plan.ask.type if isinstance(plan, AskPlan) else Approval

    def check_answer(self, cls: type[Node], gate: OpenGate, value: Any) -> Any:
        """Check a person's answer about a call, including changed arguments, and return the value
        to store."""
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
        """Yield the lookups in the trace that the tools need."""
        for name, below in cast(CallPlan, self.call).inputs:
            for parameter, recall in below.call.recalls:
                yield f"({name})({parameter})", (below.call.key, parameter, recall.marker), recall

    def draw(self) -> dict[str, Any]:
        """Return the names of the tools."""
        return {"tools": [*self.tool_names]}

    def problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Yield the problems of the tools, repeated names, and a type that does not fit."""
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
        used_names: dict[str, None] = {}
        for named_tool in (*self.planned, *self.natives):
            if named_tool.name in used_names:
                yield an_error(
                    "bae-tool-same-name",
                    f"has two tools named {named_tool.name}, which the LM cannot tell apart",
                    f'rename one: Tool({named_tool.name}, name="…")',
                )
            used_names[named_tool.name] = None
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
            yield from _check_inputs(below)
        if self.accept is not None:
            yield from _option_problems("accept", self.accept, plan.node, f"the filled {plan.name}")
            if _needs_lm(self.accept):
                yield an_error(
                    "bae-tools-accept",
                    f"accept={self.accept.name} takes an LM, but gets none",
                    f"remove the parameter: {self.accept.name} checks the answer without an LM. "
                    f"To have an LM judge the answer, go from {plan.name} to a node that the LM "
                    "fills, and back",
                )
        if self.before_round is not None:
            yield from self._steering_problems(self.before_round)
        pinned: object = plan.lm
        if not isinstance(pinned, str | type | None) and is_lm(pinned):
            from bae.failures import find_tools_error

            if (refused := find_tools_error(pinned, plan)) is not None:
                yield an_error(refused.code, refused.message, refused.fix or "")

    def _steering_problems(self, steer: CallPlan) -> Iterator[Problem]:
        """Yield the problems of the function in `Tools(before_round=…)`."""
        yield from _option_problems("before_round", steer, ToolProgress, "a ToolProgress")
        if _needs_lm(steer):
            yield an_error(
                "bae-tools-before-round",
                f"before_round={steer.name} takes an LM, but gets none",
                f"remove the parameter: {steer.name} decides by the calls so far",
            )
        if assignable(steer.declared, str | None) is False:
            yield an_error(
                "bae-tools-before-round",
                f"before_round={steer.name} returns {type_name(steer.declared)}",
                "have it return a text that the LM reads, or None",
            )

    def fill_problems(self, plan: NodePlan) -> Iterator[Problem]:
        """Return no problems, because the LLM is not asked for the value."""
        return iter(())

    def find_start_problems(self) -> Iterator[Problem]:
        """Yield a problem, because no LLM calls the tools of a start node that the caller fills."""
        if self.required:
            yield an_error(
                "bae-tools-start",
                "is on the start node, which the caller fills: no LM calls the tools",
                "put the field on the next node, which the LM fills",
            )


def tools_of(plan: NodePlan) -> ToolsField:
    """Return the field with the tools, for a node that has tools."""
    return cast(ToolsField, plan.tools)


def _refuse_secrets(plan: ToolPlan | AskPlan, arguments: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a person changes a secret argument in an answer, because the answer is
    stored."""
    masked = plan.mask_secrets(arguments) if isinstance(plan, ToolPlan) else arguments
    changed = [name for name, value in arguments.items() if masked[name] != value]
    if changed:
        raise ValueError(
            f"{', '.join(changed)} is a secret, and would be stored: leave the mask, or answer "
            "while the run is in progress, with answer=…"
        )


def _option_problems(
    option: str, call: CallPlan, value_type: type, description: str
) -> Iterator[Problem]:
    """Yield the problems of a function in `Tools(accept=…)` or `Tools(before_round=…)`. bae calls
    the function with one value."""
    code, parameter = _OPTIONS[option]
    yield from call.problems
    free = [name for name, _ in call.free]
    if len(free) != 1:
        yield an_error(
            code,
            f"{option}={call.name} must take {description} as its only free parameter, "
            f"but takes {', '.join(free) or 'nothing'}",
            f"write `def {call.name}({parameter}: {value_type.__name__})`; give other "
            "parameters a Dep or a Recall",
        )
    elif assignable(value_type, call.free[0][1]) is False:
        yield an_error(
            code,
            f"{option}={call.name} takes {type_name(call.free[0][1])}, "
            f"and not {value_type.__name__}",
            f"annotate its parameter {value_type.__name__}",
        )


def _needs_lm(call: CallPlan) -> bool:
    """Return whether a function has a required parameter for an LM."""
    if not call.lm_parameters:
        return False
    parameters = signature_of(call.fn).parameters
    return any(parameters[name].default is Parameter.empty for name in call.lm_parameters)


def _count_calls(count: int) -> str:
    return "1 tool call" if count == 1 else f"{count} tool calls"


def _is_picker(tool: ToolPlan) -> bool:
    """Return whether bae calls a function for tools. Such a function takes no arguments from the
    model, and returns a list of `Tool` or of functions."""
    returned = tool.call.declared
    if tool.call.graph is not None or tool.call.unfilled or tool.call.optional:
        return False
    origin, arguments = typing.get_origin(returned), typing.get_args(returned)
    is_listed = isinstance(origin, type) and issubclass(origin, Sequence) and bool(arguments)
    kinds = (Tool, Callable, Callable[..., Any])
    return is_listed and any(member in kinds for member in union_members(arguments[0]))


def _check_inputs(below: Input) -> Iterator[Problem]:
    """Yield the problems of a tool's parameters that bae fills."""
    from bae.node_proof import check_input, problems_of

    for parameter, parameter_input in below.call.inputs:
        yield from problems_of(parameter_input.call)
        yield from check_input(below.call, parameter, parameter_input)
        yield from missing_return_problems(parameter_input.call, parameter_input.declared_type)
        yield from check_scope(parameter_input.call, parameter_input.marker)
