"""What is said where the start node cannot be made of what the command line gives: which field,
which value, why, and a command line that would do."""

from __future__ import annotations

import json
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from bae.cli.typed import Misfit, read, wanted
from bae.exceptions import BaeError
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.node import Node

LONGEST: Final = 60
"""Characters of a value that an error shows."""
_TEXT: Final = "…"


def refused(
    cls: type[Node] | None,
    wrong: list[str],
    fix: str = "give values that the fields take: JSON, or text where that does not fit",
    cause: BaseException | None = None,
) -> BaeError:
    """The error about what was given."""
    said = "\n  ".join(wrong)
    if cls is not None:
        said = f"{cls.__name__} cannot be made of what was given\n  {said}"
    return BaeError(said, code="bae-start-fields", fix=fix, cause=cause)


def fault(place: str, *value: Any, why: str, hidden: bool) -> str:
    """A line about one value that does not fit."""
    from bae.cli.live.values import cut, printable

    if not value:
        return f"{place}: {why}" if place else why
    try:
        shown = json.dumps(value[0], ensure_ascii=False)
    except (TypeError, ValueError):
        shown = repr(value[0])
    shown = "the value" if hidden else cut(printable(shown), LONGEST)
    return f"{place}: {shown} does not fit: {why}"


def unknown_field(owner: str, said: str, known: list[str]) -> BaeError:
    """The error about a field that there is not."""
    near = get_close_matches(said, known, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    has = f"It has {', '.join(known)}" if known else "It has no fields"
    return refused(None, [f"{owner} has no field {said}"], f"{meant}{has}")


def field_missing(cls: type[Node], missing: list[str], said: str) -> BaeError:
    """The error about fields that nobody has given, with the command line that does."""
    listed: list[str] = []
    for name in missing:
        info = cls.__pydantic_fields__[name]
        about = f" ({info.description})" if info.description else ""
        listed.append(f"{name}: {wanted(info.annotation)}{about}")
    sets = [f"--set {shlex.quote(f'{name}={example_of(cls, name)}')}" for name in missing]
    what = f"{cls.__name__} needs {', '.join(missing)}, and nobody is there to ask"
    return refused(None, [what, *listed], " ".join([said, *sets]))


def object_like(cls: type[Node]) -> str:
    """What to do: give an object with the fields that must be given."""
    plain = plan_of(cls, strict=True).plain
    names = [field.name for field in plain if field.required] or [each.name for each in plain]
    fields: dict[str, Any] = {}
    for name in names:
        text = example_of(cls, name)
        try:
            fields[name] = read(cls, name, text).said
        except Misfit:
            fields[name] = text
    example = shlex.quote(json.dumps(fields, ensure_ascii=False))
    return f"give an object with the fields of {cls.__name__}, as -i {example}"


def example_of(cls: type[Node], name: str) -> str:
    """Something that could be typed for a field, and would be taken where that can be found."""
    annotation = cls.__pydantic_fields__[name].annotation
    kind = wanted(annotation)
    candidates = {"text": [_TEXT], "yes or no": ["yes"]}.get(kind, kind.split(" | ")[:1])
    for each in (*candidates, _sampled(cls, name)):
        try:
            read(cls, name, each)
        except Misfit:
            continue
        return each
    return _TEXT


def _sampled(cls: type[Node], name: str) -> str:
    from bae.testing import sample

    try:
        schema = cls.model_json_schema(by_alias=False)
        made: Any = sample({**schema["properties"][name], "$defs": schema.get("$defs", {})})
    except Exception:  # no JSON schema, or nothing that is known to fit it
        return _TEXT
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)


def kind_of(said: Any) -> str:
    """What JSON is, in a word."""
    if said is None or isinstance(said, bool):
        return "null" if said is None else "true or false"
    if isinstance(said, str):
        return "a text"
    return "a list" if isinstance(said, list) else "a number"
