"""Core schemas made exact: a value that was valid once is to be read back as it was, not judged and
changed a second time. What pydantic would do on the way (aliases, fields left out, serializers,
validators, bounds) is taken out of the schema here, and what stands in the way of a faithful copy
is noted. `values.py` writes and reads with the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from bae.core_schemas import Schema
from bae.draft import fields_schema
from bae.journal.coding.choices import told_or_plain, unlabelled
from bae.journal.coding.schema_kinds import (
    BOUNDED,
    BOUNDS,
    CONFIG_BOUNDS,
    FUNCTIONS,
    NEVER,
    NO_SCHEMAS,
    OPAQUE,
    asks_the_world,
    imports,
    is_certain,
    is_exact_default,
    is_of_callers,
    is_secret,
    is_sequence,
    is_users,
)
from bae.journal.coding.zones import with_zone

if TYPE_CHECKING:
    from bae.node import Node

Mode = Literal["exact", "told", "judge", "full"]
"""How much of a schema stays: nothing but the types, values being written as their type has it, or
told where that leaves it open which of several types it is; what judges a finished value, which
are bounds and "after" validators; or everything that makes a value of what somebody says."""

EXACT_CONFIG: Final[Schema] = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "constants",
    "ser_json_timedelta": "iso8601",
    "ser_json_temporal": "iso8601",
}


@dataclass(slots=True)
class Facts:
    """What was met in a schema."""

    live: str = ""
    """Why JSON cannot hold it; empty where it can."""
    secret: str = ""
    """What in it is a secret; empty where nothing is."""
    doubtful: bool = False
    """Whether only trying tells if a value reads back as it was."""
    judged: bool = False
    """Whether today's class may refuse a value that has the right type."""
    open: bool = False
    """Whether a value can be nested without end."""
    choices: bool = False
    """Whether there are types of which JSON does not tell which one a value is of."""
    free: bool = False
    """Whether a field may hold an object of a subclass where pydantic makes plain ones of them: a
    validator made it, or it is a default, which nobody validates."""


def exact_config(config: Schema | None, mode: Mode) -> Schema:
    """The settings of a model, with values written so that they can be read back."""
    kept = {k: v for k, v in (config or {}).items() if mode in _JUDGING or k not in CONFIG_BOUNDS}
    return {**kept, **EXACT_CONFIG}


def made_exact(schema: Any, mode: Mode, facts: Facts) -> Any:
    """The schema as `mode` says; what is met goes into `facts`."""
    return _Walk(mode, facts).walk(schema)


def fields_exact(cls: type[Node], names: list[str], mode: Mode) -> Any:
    """Some fields of a node class as those of a dict, by name, of which any may be absent. Only
    plain ones have their default then."""
    found = fields_schema(cls, names)
    inner = found["schema"] if found["type"] == "definitions" else found
    fields: dict[str, Any] = {}
    for name, field in cast(Schema, inner["fields"]).items():
        schema = field["schema"]
        if name in (cls.__bae_sourced__ or ()) and schema["type"] == "default":
            schema = schema["schema"]
        fields[name] = {"type": "typed-dict-field", "schema": schema, "required": False}
    shape: Any = {"type": "typed-dict", "fields": fields}
    if inner is not found:
        shape = {**found, "schema": shape}
    return made_exact(shape, mode, Facts())


_JUDGING: Final = ("judge", "full")


class _Walk:
    def __init__(self, mode: Mode, facts: Facts) -> None:
        self.mode: Mode = mode
        self.facts = facts
        self.definitions: list[Any] = []
        self.makes = False
        """Whether what is walked says, further out, how its value is written."""

    def aside(self, facts: Facts, makes: bool = False) -> _Walk:
        """One that writes what it meets elsewhere."""
        walk = _Walk(self.mode, facts)
        walk.definitions, walk.makes = self.definitions, makes
        return walk

    def walk(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self.walk(each) for each in cast(list[Any], schema)]
        if isinstance(schema, tuple):  # a choice with its label
            first, *rest = cast(tuple[Any, ...], schema)
            return (self.walk(first), *rest)
        if not isinstance(schema, dict) or "type" not in schema:
            return cast(Any, schema)
        found = cast(Schema, schema)
        kind: str = found["type"]
        if is_secret(found.get("serialization")):
            return self._secret(found)
        if kind == "definitions":
            self.definitions = found["definitions"]
        if kind in FUNCTIONS:
            return self._function(found)
        match kind:
            case "lax-or-strict":
                return self._beside(found, found["lax_schema"])
            case "json-or-python" if is_sequence(found.get("serialization")):
                items = found["json_schema"].get("items_schema") or {"type": "any"}
                as_tuple = {"type": "tuple", "items_schema": [items], "variadic_item_index": 0}
                choices = [found["json_schema"], as_tuple]
                return self.walk({"type": "union", "choices": choices})
            case "json-or-python":
                return self._beside(found, found["json_schema"])
            case "json":
                return self._beside(found, found.get("schema") or {"type": "any"})
            case "function-plain":
                return self._plain(found)
            case "model" | "model-fields" | "typed-dict" | "dataclass" | "dataclass-args":
                return self._fields(found)
            case "model-field" | "typed-dict-field" | "dataclass-field" | "named-tuple-field":
                kept = {k: v for k, v in found.items() if not is_of_callers(k)}
                return {**kept, "schema": self.walk(found["schema"])}
            case "tagged-union" if not isinstance(found["discriminator"], str):
                # What tells them apart may be an alias, and those are gone.
                choices: list[Any] = [c for c in found["choices"].values() if isinstance(c, dict)]
                plain = {k: v for k, v in found.items() if k in ("ref", "metadata")}
                return self.walk({**plain, "type": "union", "choices": choices})
            case _:
                return self._other(found, kind)

    def _other(self, schema: Schema, kind: str) -> Any:
        facts = self.facts
        if kind in NEVER and "serialization" not in schema:
            who = schema.get("cls_repr") or getattr(schema.get("cls"), "__name__", "a class")
            facts.live = facts.live or NEVER[kind].format(who)
            return schema
        if kind == "any" or kind == "definition-ref":
            facts.open = True
        if not is_certain(schema):
            facts.doubtful = True
            if kind == "union":
                return self._union(schema)
        kept = {k: self._inside(k, v) for k, v in schema.items() if k != "serialization"}
        if kind in BOUNDED and not BOUNDS.isdisjoint(kept):
            facts.judged = True
            if self.mode not in _JUDGING:
                kept = {k: v for k, v in kept.items() if k not in BOUNDS}
        if kind == "decimal" and self.mode not in _JUDGING:
            kept["allow_inf_nan"] = True
        if kind == "datetime" or kind == "time":
            kept = with_zone(kept)
        if kind == "default" and not is_exact_default(schema):
            facts.free = True
        return self._with_serialization(kept, schema)

    def _union(self, schema: Schema) -> Any:
        """Types of which JSON does not tell which one a value is of."""
        self.facts.choices = True
        choices = schema["choices"]
        union = {**schema, "choices": self.walk(choices)}
        union.pop("serialization", None)
        originals = unlabelled(choices)
        return told_or_plain(union, originals, self.definitions, self.mode == "told")

    def _inside(self, key: str, value: Any) -> Any:
        if key in NO_SCHEMAS:
            return value
        if key in ("fields", "choices") and isinstance(value, dict):
            return {name: self.walk(each) for name, each in cast(Schema, value).items()}
        return self.walk(value)

    def _beside(self, schema: Schema, inner: Any) -> Any:
        """One of several ways to read, with the way to write that belongs to all of them."""
        makes = self.makes or "serialization" in schema
        walked = self.aside(self.facts, makes).walk(inner)
        if "ref" in schema:
            walked = {**walked, "ref": schema["ref"]}
        return self._with_serialization(walked, schema)

    def _with_serialization(self, walked: Schema, schema: Schema) -> Schema:
        said = schema.get("serialization")
        if said is None or (is_users(said.get("function")) and walked["type"] not in OPAQUE):
            return walked  # a type that JSON knows is written as such, not as somebody likes to see
        self.facts.doubtful = True
        kept = {k: self.walk(v) if k in ("schema", "return_schema") else v for k, v in said.items()}
        return {**walked, "serialization": kept}

    def _function(self, schema: Schema) -> Any:
        kind = schema["type"]
        function = schema["function"]["function"]
        self._refuse_imports(function)
        if asks_the_world(function) and self.mode != "full":
            return self.walk(schema["schema"])
        aside = Facts()
        inner = self.aside(aside).walk(schema["schema"])
        said = self.makes or "serialization" in schema or "serialization" in schema["schema"]
        # Where it also says how to write its value, that value may be of another type.
        makes = said and (kind != "function-before" or bool(aside.live))
        own = is_users(function) and not makes
        if said:
            aside.live = ""
        self._add(aside)
        if own:
            self.facts.judged = self.facts.free = True
            if self.mode not in _JUDGING or (self.mode == "judge" and kind != "function-after"):
                return {**inner, "ref": schema["ref"]} if "ref" in schema else inner
        else:
            self.facts.doubtful = True
        kept = {k: v for k, v in schema.items() if k != "serialization"}
        kept["schema"] = inner
        said_here = schema.get("serialization")
        if said_here is None or own:
            return kept
        walked = {k: self.walk(v) if k in _WAYS else v for k, v in said_here.items()}
        return {**kept, "serialization": walked}

    def _plain(self, schema: Schema) -> Any:
        self._refuse_imports(schema["function"]["function"])
        self.facts.doubtful = True
        return schema

    def _refuse_imports(self, function: Any) -> None:
        if imports(function):
            self.facts.live = self.facts.live or "what it names would be imported when it is read"

    def _add(self, met: Facts) -> None:
        facts = self.facts
        facts.live = facts.live or met.live
        facts.secret = facts.secret or met.secret
        facts.doubtful |= met.doubtful
        facts.judged |= met.judged
        facts.open |= met.open
        facts.choices |= met.choices
        facts.free |= met.free

    def _fields(self, schema: Schema) -> Any:
        kind: str = schema["type"]
        facts = self.facts
        kept = dict(schema)
        kept.pop("serialization", None)
        if kind in ("model", "dataclass"):
            kept["config"] = exact_config(schema.get("config"), self.mode)
            kept["custom_init"] = False
            self._hidden(schema["cls"])
        if kind == "dataclass":
            del kept["custom_init"]
            if schema.get("post_init"):
                facts.judged = True
                kept["post_init"] = self.mode in _JUDGING
        if kind == "typed-dict":
            kept["config"] = exact_config(schema.get("config"), self.mode)
            facts.doubtful = True
        if "computed_fields" in kept:
            kept["computed_fields"] = []
        if "schema" in kept:
            kept["schema"] = self.walk(schema["schema"])
        if "fields" in kept and kind != "dataclass":
            kept["fields"] = self._inside("fields", schema["fields"])
        if "extras_schema" in kept:
            kept["extras_schema"] = self.walk(schema["extras_schema"])
        if kind == "dataclass-args":
            odd = (not f.get("init", True) or f.get("init_only") for f in schema["fields"])
            facts.doubtful |= any(odd)
        return kept

    def _hidden(self, cls: type) -> None:
        declared: dict[str, Any] = {
            **getattr(cls, "__dataclass_fields__", {}),
            **getattr(cls, "__pydantic_fields__", {}),
        }
        hidden = next((name for name, field in declared.items() if not field.repr), None)
        if hidden is not None:
            self.facts.secret = self.facts.secret or f"{cls.__name__}.{hidden} has repr=False"

    def _secret(self, schema: Schema) -> Any:
        """A secret is read as it is, and written in clear: whoever must not do so does not."""
        inner = schema
        while inner["type"] in ("lax-or-strict", "json-or-python"):
            inner = inner.get("lax_schema") or inner["json_schema"]
        name = getattr(inner.get("function", {}).get("function"), "__name__", "")
        self.facts.secret = self.facts.secret or f"it holds a {name if 'S' in name else 'Secret'}"
        self.facts.doubtful = True
        content = self.walk(inner["schema"])
        clear = {"type": "function-plain", "function": _in_clear, "return_schema": content}
        kept = {**inner, "schema": content, "serialization": clear}
        return {**kept, "ref": schema["ref"]} if "ref" in schema else kept


_WAYS: Final = ("schema", "return_schema")


def _in_clear(secret: Any) -> Any:
    return secret.get_secret_value()
