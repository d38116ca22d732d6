"""The types of fields as short texts that say everything about which values they take, but for what
validators of one's own do, and nothing else: the same in every process, on every Python and with
every pydantic. `node_schema.py` puts them into the schema that an artefact carries."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic.json_schema import GenerateJsonSchema

from bae.assignable import type_name
from bae.core_schemas import field_schema, model_config_of

if TYPE_CHECKING:
    from bae.plan import FieldPlan, NodePlan

Schema = dict[str, Any]


def type_text(plan: NodePlan, field: FieldPlan) -> str:
    """The type of a field as a text: `str(minLength=3)`, `list[int]`, `Mood(calm: bool)`."""
    try:
        types = _Types(model_config_of(plan.node))
        made = types.generate(field_schema(plan.node, field.name), "validation")
        return _Text(made).of(made)
    except Exception:  # a type may come with code of its own for this, which may raise anything
        return type_name(field.annotation)


class _Types(GenerateJsonSchema):
    """JSON schemas that name the classes in them, have the bounds that JSON schemas cannot say, and
    name what JSON cannot say at all. Defaults are left out. `settings` are those of the class."""

    def __init__(self, settings: Schema) -> None:
        super().__init__()
        self._settings: list[Schema | None] = [settings]

    def generate_inner(self, schema: Any) -> Schema:
        said = _manner(schema, self._settings[-1])
        inside = self._settings[-1]
        if schema["type"] in ("model", "dataclass", "typed-dict"):
            config: Any = schema.get("config")
            inside = cast(Schema, config or {})  # a class has settings of its own
        elif schema["type"] == "lax-or-strict":
            inside = None  # what pydantic has made a type of its own from, now so and now otherwise
        self._settings.append(inside)
        try:
            made = super().generate_inner(schema)
        finally:
            self._settings.pop()
        return {**made, _BOUNDS: {**made.get(_BOUNDS, {}), **said}} if said else made

    def dict_schema(self, schema: Any) -> Schema:
        made = super().dict_schema(schema)
        keys = schema.get("keys_schema")
        return made if keys is None else {**made, _KEYS: self.generate_inner(keys)}

    def default_schema(self, schema: Any) -> Schema:
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: Any) -> Schema:
        return {**super().model_schema(schema), _CLASS: _plain_name(schema["cls"])}

    def dataclass_schema(self, schema: Any) -> Schema:
        return {**super().dataclass_schema(schema), _CLASS: _plain_name(schema["cls"])}

    def typed_dict_schema(self, schema: Any) -> Schema:
        made = super().typed_dict_schema(schema)
        return {**made, _CLASS: _plain_name(schema["cls"])} if "cls" in schema else made

    def enum_schema(self, schema: Any) -> Schema:
        return {**super().enum_schema(schema), _CLASS: _plain_name(schema["cls"])}

    # What pydantic makes of these differs from version to version, or leaves their bounds out.

    def decimal_schema(self, schema: Any) -> Schema:
        return _bounded("Decimal", schema)

    def date_schema(self, schema: Any) -> Schema:
        return _bounded("date", schema)

    def time_schema(self, schema: Any) -> Schema:
        return _bounded("time", schema)

    def datetime_schema(self, schema: Any) -> Schema:
        return _bounded("datetime", schema)

    def timedelta_schema(self, schema: Any) -> Schema:
        return _bounded("timedelta", schema)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        cls = schema.get("cls")
        return {_PYTHON: _plain_name(cls) if isinstance(cls, type) else schema["type"]}

    def emit_warning(self, kind: Any, detail: str) -> None:
        pass


_CLASS: Final = "bae-class "
_PYTHON: Final = "bae-python "
_BOUNDS: Final = "bae-bounds "
_KEYS: Final = "bae-keys "
"""Keys that no schema of anybody's has."""


def _plain_name(cls: type) -> str:
    # What a generic class was made for is in its fields, and its name is said in several ways.
    return cls.__name__.partition("[")[0]


def _manner(schema: Any, settings: Schema | None) -> Schema:
    """How a type takes a value, where that is not as usual: by what is said at the field, or else
    for the whole class."""
    kind = schema["type"]
    said: Schema = {}
    if settings is None:
        return said
    if kind in _STRICTLY and schema.get("strict", settings.get("strict")):
        said["strict"] = True
    if kind == "str":
        for key in ("to_lower", "to_upper", "strip_whitespace"):
            if schema.get(key, settings.get(f"str_{key}")):
                said[key] = True
        if schema.get("coerce_numbers_to_str", settings.get("coerce_numbers_to_str")):
            said["coerce_numbers_to_str"] = True
        for key in ("min_length", "max_length"):
            bound = settings.get(f"str_{key}")
            if key not in schema and bound:
                said[f"str_{key}"] = bound
    if kind in ("float", "decimal"):
        # A float may be infinite unless it is said otherwise, and a Decimal may not.
        usual = kind == "float"
        if schema.get("allow_inf_nan", settings.get("allow_inf_nan", usual)) != usual:
            said["allow_inf_nan"] = not usual
    return said


_STRICTLY: Final = frozenset(
    (
        *("str", "int", "float", "bool", "bytes", "decimal", "complex", "enum", "uuid"),
        *("date", "time", "datetime", "timedelta", "url", "multi-host-url"),
        *("list", "tuple", "set", "frozenset", "dict", "generator", "lax-or-strict"),
    )
)
"""The kinds of types that can be strict about what they take."""


def _bounded(name: str, schema: Schema) -> Schema:
    known = ("gt", "ge", "lt", "le", "multiple_of", "max_digits", "decimal_places")
    found = {key: schema[key] for key in (*known, "now_op", "tz_constraint") if key in schema}
    return {_PYTHON: name, _BOUNDS: found}


class _Text:
    """Writes the text of a JSON schema, with the definitions that it refers to."""

    def __init__(self, whole: Schema) -> None:
        self._definitions: dict[str, Schema] = whole.get("$defs", {})
        self._inside: list[str] = []

    def of(self, schema: Any) -> str:
        if not isinstance(schema, dict):
            return "Any" if schema is True else "Never"
        found = cast(Schema, schema)
        if "$ref" in found:
            return self._referred(str(found["$ref"]))
        return self._bounds(self._kind(found), found)

    def _referred(self, ref: str) -> str:
        key = ref.rpartition("/")[2]
        known = self._definitions.get(key)
        if known is None or key in self._inside:  # it leads to itself
            name = (known or {}).get(_CLASS)
            return str(name or key.rpartition("__")[2])
        self._inside.append(key)
        try:
            return self.of(known)
        finally:
            self._inside.pop()

    def _kind(self, schema: Schema) -> str:
        if _PYTHON in schema:
            return schema[_PYTHON]
        if "const" in schema or "enum" in schema:
            values = cast(list[Any], schema.get("enum") or [schema.get("const")])
            return f"{schema.get(_CLASS, 'Literal')}[{', '.join(sorted(map(_json, values)))}]"
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return self._union(schema[key])
        if "allOf" in schema:
            return " & ".join(sorted({self.of(each) for each in schema["allOf"]}))
        kind: Any = schema.get("type")
        if isinstance(kind, list):
            return self._union([{**schema, "type": each} for each in cast(list[Any], kind)])
        match kind:
            case "object":
                return self._object(schema)
            case "array":
                return self._array(schema)
            case "string" if schema.get("format") in _FORMATS:
                return _FORMATS[schema["format"]]
            case _:
                return _KINDS.get(kind, "Any")

    def _union(self, members: Iterable[Any]) -> str:
        said = {part for each in members for part in self._members(each)}
        return " | ".join(sorted(said, key=lambda text: (text == "None", text)))

    def _members(self, schema: Any) -> list[str]:
        if isinstance(schema, dict) and "anyOf" in schema:  # a union inside a union is one
            return [part for each in cast(Schema, schema)["anyOf"] for part in self._members(each)]
        return [self.of(schema)]

    def _object(self, schema: Schema) -> str:
        more: Any = schema.get("additionalProperties")
        if _CLASS not in schema and "properties" not in schema:
            by_pattern = cast(Schema, schema.get("patternProperties", {}))
            if by_pattern:
                pairs = [f"{_json(p)}: {self.of(v)}" for p, v in sorted(by_pattern.items())]
                return f"dict[{', '.join(pairs)}]"
            names: Any = schema.get("propertyNames")
            key = self.of(schema.get(_KEYS, True))
            if names is not None:
                key = self.of({"type": "string", **names})
            if key == "Any":  # in JSON it is a text
                key = "str"
            return f"dict[{key}, {'Any' if more is None else self.of(more)}]"
        properties = cast(Schema, schema.get("properties", {}))
        said = [f"{name}: {self.of(each)}" for name, each in sorted(properties.items())]
        if more is False:
            said.append("nothing else")
        elif more is not None:
            said.append(f"others: {self.of(more)}")
        return f"{schema.get(_CLASS, 'dict')}({', '.join(said)})"

    def _array(self, schema: Schema) -> str:
        first = [self.of(each) for each in schema.get("prefixItems", [])]
        if first:
            # A tuple says how long it is by what is in it.
            more = [f"*{self.of(schema['items'])}"] if schema.get("items") else []
            return f"tuple[{', '.join([*first, *more])}]"
        kind = "set" if schema.get("uniqueItems") else "list"
        return f"{kind}[{self.of(schema.get('items', True))}]"

    def _bounds(self, kind: str, schema: Schema) -> str:
        said = {key: schema[key] for key in _BOUNDING if key in schema}
        if schema.get("type") == "string" and schema.get("format", "") not in _FORMATS:
            said |= {key: schema[key] for key in ("format",) if key in schema}
        if "prefixItems" in schema:
            said = {k: v for k, v in said.items() if v != len(schema["prefixItems"])}
        shown = {key: _json(value) for key, value in said.items()}
        if "contentSchema" in schema:
            shown["of"] = self.of(schema["contentSchema"])
        shown |= {key: str(_whole(v)) for key, v in cast(Schema, schema.get(_BOUNDS, {})).items()}
        if not shown:
            return kind
        return f"{kind}({', '.join(f'{key}={text}' for key, text in sorted(shown.items()))})"


def _json(value: Any) -> str:
    return json.dumps(_whole(value), ensure_ascii=False, sort_keys=True, default=str)


def _whole(value: Any) -> Any:
    # A bound of 1.0 is one of 1, and pydantic says now the one and now the other.
    return int(value) if isinstance(value, float) and value.is_integer() else value


_KINDS: Final[dict[Any, str]] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_FORMATS: Final = {"uuid": "UUID", "binary": "bytes"}
_BOUNDING: Final = (
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "contentEncoding",
    "contentMediaType",
)
