"""`ToolPlan`: the name, description and schema of a tool for a model, and the validation of the
arguments that a model passes. Each tool is planned once."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from pydantic import Field, GetCoreSchemaHandler, StringConstraints, TypeAdapter
from pydantic_core import PydanticSerializationError, core_schema, to_jsonable_python

from bae.approvals import ApprovalRule, approval_rule
from bae.calls import CallPlan, name_of, plan_call
from bae.core_schemas import type_schema
from bae.graph_plan import plan_of_graph
from bae.hints import Names, signature_of, unwrap_callable
from bae.markers import Dep
from bae.prompts.messages import ToolSpec
from bae.prompts.schemas import argument_schema
from bae.tools import Ask, Native, Tool

if TYPE_CHECKING:
    from bae.graph import Graph

_ARGUMENTS: Final = re.compile(r"\s*(?:Args|Arguments|Parameters):\s*")
_SECTION: Final = re.compile(r"[A-Z][A-Za-z ]*:\s*")
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PLAIN: Final[tuple[Any, ...]] = (str, int, float, bool, Any)
_PARAMETER: Final = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


class ToolPlan:
    """What a run needs to know about a tool. `call` has the function, and the parameters that bae
    fills.

    If the tool is a graph, a node of the graph may use the same tool. Then the graph is not planned
    yet when this plan is made, so the properties are computed when they are first used.
    """

    def __init__(self, tool: Tool, call: CallPlan) -> None:
        self.tool = tool
        self.call = call
        self.name = tool.name or call.name.rpartition(".")[2]
        self.marker = Dep(
            tool.fn, timeout=tool.timeout, retries=tool.retries, inline=tool.inline, cache=False
        )

    @cached_property
    def spec(self) -> ToolSpec:
        """The name, description and schema that a model reads."""
        description, parameters = self._documentation
        schema = self.tool.schema
        if schema is None:
            schema = argument_schema(self._arguments.core_schema)
            for name, text in parameters.items():
                part = schema["properties"].get(name)
                if part is not None and "description" not in part and "$ref" not in part:
                    part["description"] = text
            for name, default in self._defaults.items():
                if default is not None and name in schema["properties"]:
                    schema["properties"][name].setdefault("default", default)
        return ToolSpec(self.name, self.tool.description or description, schema)

    @cached_property
    def form_schema(self) -> Mapping[str, Any]:
        """The schema for the form in which a person edits the arguments. It is the model's schema
        with class names as titles, which name the options of a union."""
        if self.tool.schema is not None:
            return self.spec.schema
        titled = argument_schema(self._arguments.core_schema, titles=True)
        properties = titled["properties"]
        for name, part in self.spec.schema["properties"].items():
            properties[name] = {**part, **properties[name]}
        return {**self.spec.schema, **titled}

    @cached_property
    def approval(self) -> ApprovalRule | None:
        """The rule that decides whether a person is asked before a call; None if never."""
        defaults: dict[str, Any] = {}
        if self.tool.schema is None and self.call.graph is None:
            parameters = signature_of(cast(Any, self.tool.fn)).parameters
            defaults = {name: parameters[name].default for name, _ in self.call.optional}
        return approval_rule(self.tool, defaults)

    @cached_property
    def asks_person(self) -> bool:
        """Whether a person may be asked about a call."""
        return self.approval is not None or self.tool.unfinished == "ask"

    def validate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a model's call, converted for the function. Raises pydantic's
        ValidationError. The arguments are copies, so the function cannot change the recorded
        arguments."""
        copied = {name: _copy_json(value) for name, value in given.items()}
        if self.tool.schema is not None:
            return copied
        return self._arguments.validate_python(copied, strict=False)

    @cached_property
    def secret_parameters(self) -> frozenset[str]:
        """The parameters whose arguments are secrets. These arguments are masked wherever a call is
        shown or stored."""
        from bae.secrets import secret_fields, secret_in

        if self.tool.schema is not None:
            return frozenset(n for n, part in self._properties.items() if _is_write_only(part))
        graph = self.call.graph
        if graph is not None:
            return frozenset(secret_fields(graph.start)).intersection(self.parameters)
        return frozenset(
            name
            for name, (hint, _) in self.parameters.items()
            if hint not in _PLAIN and (_is_hidden(hint) or secret_in(type_schema(hint)))
        )

    def mask_secrets(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments with masks in place of secrets. If the tool has secret parameters,
        arguments with unknown names are masked too: such a name may be a mistyped secret
        parameter."""
        from bae.secrets import MASK

        hidden = self.secret_parameters
        if not hidden:
            return dict(given)
        parameters = self.parameters if self.tool.schema is None else self._properties
        return {
            name: MASK if name in hidden or name not in parameters else value
            for name, value in given.items()
        }

    def restore_secrets(
        self, given: Mapping[str, Any], written: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments that a person has changed, with the model's secrets in place of
        masks. `written` are the arguments that the model wrote."""
        from bae.secrets import MASK

        hidden = self.secret_parameters
        return {
            name: written[name] if name in hidden and value == MASK and name in written else value
            for name, value in given.items()
        }

    @property
    def _properties(self) -> Mapping[str, Any]:
        """The schema of each parameter, if the tool has `Tool(schema=…)`; otherwise empty."""
        return (self.tool.schema or {}).get("properties", {})

    @cached_property
    def parameters(self) -> dict[str, tuple[Any, bool]]:
        """The parameters that the model passes, by name: the type, and whether it is required."""
        call = self.call
        if call.graph is not None:
            fields = plan_of_graph(call.graph).start_fields
            return {f.name: (_annotation(f.info), f.required) for f in fields}
        required = {name: (hint, True) for name, hint in call.unfilled}
        return required | {name: (hint, False) for name, hint in call.optional}

    @cached_property
    def _arguments(self) -> TypeAdapter[dict[str, Any]]:
        """The type of all arguments together, which validates them."""
        with warnings.catch_warnings():
            # `Field(repr=False)` on a parameter marks a secret, but pydantic warns that it has no
            # effect.
            warnings.filterwarnings("ignore", "The 'repr' attribute")
            return TypeAdapter(Annotated[dict[str, Any], _Arguments(self.parameters)])

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """The defaults of optional parameters. Defaults of secret parameters, and defaults that
        JSON cannot express, are left out."""
        defaults: dict[str, Any] = {}
        if self.call.graph is None:
            parameters = signature_of(self.tool.fn).parameters  # type: ignore[arg-type]
            for name, _ in self.call.optional:
                if name in self.secret_parameters:
                    continue
                try:
                    defaults[name] = to_jsonable_python(parameters[name].default)
                except PydanticSerializationError:
                    continue
        return defaults

    @cached_property
    def _documentation(self) -> tuple[str, dict[str, str]]:
        """The description of the tool, and the description of each parameter, from the
        docstring."""
        graph = self.call.graph
        if graph is not None:
            return _describe_graph(graph), {}
        return parse_docstring(_docstring(self.tool.fn))


class _Arguments:
    """Makes the pydantic schema of the model's arguments: an object that allows no other names.
    `parameters` has the type of each parameter, and whether it is required."""

    def __init__(self, parameters: Mapping[str, tuple[Any, bool]]) -> None:
        self._parameters = parameters

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        fields = {
            name: core_schema.typed_dict_field(handler.generate_schema(hint), required=required)
            for name, (hint, required) in self._parameters.items()
        }
        return core_schema.typed_dict_schema(fields, extra_behavior="forbid")


@cache
def _question_form() -> TypeAdapter[Any]:
    question = Annotated[str, StringConstraints(min_length=1)]
    return TypeAdapter(Annotated[dict[str, Any], _Arguments({"question": (question, True)})])


class AskPlan:
    """A tool whose result is a person's answer."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.name = ask.name

    @cached_property
    def answers(self) -> TypeAdapter[Any]:
        """The type of the answer, which validates a person's answer."""
        return TypeAdapter(self.ask.type)

    @cached_property
    def spec(self) -> ToolSpec:
        """The name, description and schema that a model reads."""
        question = {"type": "string", "description": "the question, complete in itself"}
        return ToolSpec(
            self.name,
            self.ask.description,
            {
                "type": "object",
                "properties": {"question": question},
                "required": ["question"],
                "additionalProperties": False,
            },
        )

    asks_person: Final = True

    def validate(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the validated arguments of a model's call. Raises pydantic's ValidationError."""
        return _question_form().validate_python(dict(given))


def native_spec(native: Native) -> ToolSpec:
    """Return the spec of a tool that the provider runs."""
    return ToolSpec(native.name, "", {"type": "object", "properties": {}}, native.options)


def plan_tool(tool: Tool, names: Names) -> ToolPlan:
    """Plan a tool. Problems are collected in the plan's `call`, not raised."""
    if tool.schema is not None:
        fn = cast("Callable[..., Any]", tool.fn)
        is_async = any(map(inspect.iscoroutinefunction, (fn, type(fn).__call__)))
        kind = "async" if is_async else "sync"
        return ToolPlan(tool, CallPlan(fn, ("tool", id(tool)), tool.name or name_of(fn), kind, Any))
    return ToolPlan(tool, plan_call(tool.fn, names))


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into the description of the function, and the description of
    each parameter."""
    lines = inspect.cleandoc(text).splitlines()
    begin = next((n for n, line in enumerate(lines) if _ARGUMENTS.fullmatch(line)), None)
    if begin is None:
        return "\n".join(lines).strip(), {}
    end = next(
        (n for n in range(begin + 1, len(lines)) if _SECTION.fullmatch(lines[n])), len(lines)
    )
    descriptions: dict[str, str] = {}
    name, indent = "", None
    for line in lines[begin + 1 : end]:
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        match = _PARAMETER.fullmatch(line.strip())
        if match and (indent is None or depth <= indent):
            name, indent = match[1].lstrip("*"), depth
            descriptions[name] = match[2]
        elif name:
            descriptions[name] = f"{descriptions[name]} {line.strip()}".strip()
    rest = [*lines[:begin], *lines[end:]]
    return "\n".join(rest).strip(), descriptions


def _docstring(fn: Any) -> str:
    while isinstance(fn, partial):
        fn = cast("partial[Any]", fn).func
    function: Callable[..., Any] = fn if inspect.isclass(fn) else unwrap_callable(fn)
    return function.__doc__ or getattr(fn, "__doc__", "") or ""


def _describe_graph(graph: Graph[Any, Any]) -> str:
    """Return the description of a graph for a model: the description of its start node, or else the
    start node's instruction."""
    plan = plan_of_graph(graph).plans[graph.start]
    return plan.description or plan.instruction


def _is_hidden(hint: Any) -> bool:
    """Return whether the annotation of a parameter has `Field(repr=False)`."""
    return any(not getattr(item, "repr", True) for item in getattr(hint, "__metadata__", ()))


def _is_write_only(part: Any) -> bool:
    """Return whether a JSON schema marks a secret in the way of pydantic's secret types."""
    schema: Mapping[str, Any] = cast("Any", part) if isinstance(part, Mapping) else {}
    return schema.get("writeOnly") is True or schema.get("format") == "password"


def _copy_json(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        return {name: _copy_json(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_copy_json(item) for item in cast("list[Any]", value)]
    return value


def _annotation(info: Any) -> Any:
    """Return a field's type with its constraints, description and discriminator. Pydantic's own
    `rebuild_annotation` leaves out the discriminator of a union."""
    hint = info.rebuild_annotation()
    if info.discriminator is not None:
        hint = Annotated[hint, Field(discriminator=info.discriminator)]
    return Annotated[hint, Field(description=info.description)] if info.description else hint
