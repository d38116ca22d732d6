"""Which field somebody means who writes `--set a.b=…`, or a name in the JSON of -i: by its name or
an alias, and inside of models. `node.py` puts the values there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bae.cli.refusals import Misuse
from bae.cli.start.errors import unknown_field

if TYPE_CHECKING:
    from pydantic import BaseModel

    from bae.node import Node


def parts_of(said: str) -> tuple[str, str]:
    """FIELD and VALUE of a `--set FIELD=VALUE`."""
    name, equals, text = said.partition("=")
    if not equals or not name.strip():
        raise Misuse(
            f"--set {shlex.quote(said)} has no FIELD=VALUE",
            code="bae-start-fields",
            fix="write it as --set message=hello, or with spaces as --set 'message=good morning'",
        )
    return name.strip(), text


def place_of(cls: type[Node], said: str) -> list[str]:
    """The field that `a.b` is in, and the names inside it."""
    # An alias may have a dot in it.
    name, *inner = [said] if said in names_of(cls) else said.split(".")
    return [field_of(cls, name), *inner]


def field_of(cls: type[Node], said: str) -> str:
    """The name of a field that is meant, by its name or an alias of it."""
    names = names_of(cls)
    if said in names:
        return names[said]
    if cls.model_config.get("extra") == "allow":
        return said
    raise unknown_field(cls.__name__, said, list(cls.__pydantic_fields__))


def inside(cls: type[Node], name: str, inner: Sequence[str]) -> tuple[list[str], Any]:
    """What JSON calls the fields of models inside a field of a node, and the type of the last."""
    from pydantic import BaseModel

    from bae.assignable import union_members

    annotation: Any = cls.__pydantic_fields__[name].annotation
    keys: list[str] = []
    for part in inner:
        models = [
            each
            for each in union_members(annotation)
            if isinstance(each, type) and issubclass(each, BaseModel)
        ]
        model = next((each for each in models if part in names_of(each)), None)
        if model is None and models:
            known = [field for each in models for field in each.__pydantic_fields__]
            raise unknown_field(models[0].__name__, part, known)
        if model is None:
            annotation = Any
            keys.append(part)
        else:
            field = names_of(model)[part]
            annotation = model.__pydantic_fields__[field].annotation
            keys.append(_key_of(model, field))
    return keys, annotation


def refuse_twice(places: Sequence[Sequence[str]]) -> None:
    """Refuse a field that several --set give: which of them is meant, nobody can say. One may give
    an object, and others after it fields inside that."""
    for index, place in enumerate(places):
        for later in places[index + 1 :]:
            if list(place[: len(later)]) == list(later):
                again = "twice" if len(place) == len(later) else f"and then {'.'.join(later)}"
                raise Misuse(
                    f"--set gives {'.'.join(place)} {again}",
                    code="bae-start-fields",
                    fix="give each field once, and an object before the fields inside it",
                )


def names_of(cls: type[BaseModel]) -> dict[str, str]:
    """What fields may be called, aliases first, and their names."""
    found: dict[str, str] = {}
    for name, info in cls.__pydantic_fields__.items():
        several: list[Any] = getattr(info.validation_alias, "choices", [])
        for alias in (info.validation_alias, *several, info.alias):
            if isinstance(alias, str):
                found.setdefault(alias, name)
    return found | {name: name for name in cls.__pydantic_fields__}


def _key_of(model: type[BaseModel], field: str) -> str:
    """What JSON calls a field of a model."""
    config = model.model_config
    if config.get("populate_by_name") or config.get("validate_by_name"):
        return field
    return next((alias for alias, name in names_of(model).items() if name == field), field)
