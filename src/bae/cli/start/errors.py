"""What is said where the start node cannot be made of what the command line gives: which field,
which value, why, and a command line that would do."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from bae.assignable import union_members
from bae.cli.start.literals import loads
from bae.cli.start.questions import is_secret
from bae.cli.start.typed import Misfit, choices_of, is_yes_or_no, read, wanted
from bae.exceptions import BaeError
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.node import Node

LONGEST: Final = 60
"""Characters of a value that an error shows."""
_TEXT: Final = "…"


def unfit(
    cls: type[Node] | None,
    wrong: list[str],
    fix: str = "give values that the fields take: JSON, or text where that does not fit",
    cause: BaseException | None = None,
) -> BaeError:
    """The error about what was given for a node."""
    said = "\n  ".join(wrong)
    if cls is not None:
        said = f"{cls.__name__} cannot be made of what was given\n  {said}"
    return BaeError(said, code="bae-start-fields", fix=fix, cause=cause)


def fault(place: str, *value: Any, why: str, hidden: bool) -> str:
    """A line about one value that does not fit."""
    from bae.cli.texts import cut, in_one_line

    if not value:
        return f"{place}: {why}" if place else why
    try:
        shown = json.dumps(value[0], ensure_ascii=False)
    except (TypeError, ValueError):
        shown = repr(value[0])
    shown = "the value" if hidden else cut(in_one_line(shown), LONGEST)
    return f"{place}: {shown} does not fit: {why}"


def unknown_field(owner: str, said: str, known: list[str]) -> BaeError:
    """The error about a field that there is not."""
    near = get_close_matches(said, known, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    has = "It has" if near else "give one of its fields:"
    has = f"{has} {', '.join(known)}" if known else "leave it out: it has no fields"
    return unfit(None, [f"{owner} has no field {said}"], f"{meant}{has}")


def field_missing(cls: type[Node], missing: list[str], said: str) -> BaeError:
    """The error about fields that nobody has given, with the command line that does."""
    listed: list[str] = []
    for name in missing:
        info = cls.__pydantic_fields__[name]
        about = f" ({info.description})" if info.description else ""
        listed.append(f"{name}: {wanted(info.annotation)}{about}")
    secret = [name for name in missing if is_secret(cls, name)]
    sets = [set_example(cls, name) for name in missing if name not in secret]
    fix = " ".join([said, *sets])
    if secret:
        fix += (
            f" -i @FILE  (a file of JSON with {', '.join(secret)}: the shell keeps what is typed)"
        )
    what = f"{cls.__name__} needs {', '.join(missing)}, and nobody is there to ask"
    return unfit(None, [what, *listed], fix)


def set_example(cls: type[Node], name: str) -> str:
    """A `--set` that could be typed for a field."""
    return f"--set {shlex.quote(f'{name}={example_of(cls, name) or _TEXT}')}"


def set_instead(cls: type[Node], name: str, text: str) -> str:
    """What to do about a text that a field does not take: for a list, the same in JSON."""
    if is_secret(cls, name):
        return f"give {wanted(cls.__pydantic_fields__[name].annotation)}"
    for each in _listed(text):
        try:
            read(cls, name, each)
        except Misfit:
            continue
        return f"write a list as JSON: --set {shlex.quote(f'{name}={each}')}"
    kind = wanted(cls.__pydantic_fields__[name].annotation)
    return f"give {kind}; for example {set_example(cls, name)}"


def _listed(text: str) -> list[str]:
    """What a text is as a list of JSON: its parts between commas, or all of it."""
    parts = [part.strip() for part in text.split(",")]
    lists: list[str] = []
    for words in (parts, [text]):
        with suppress(ValueError):
            lists.append(json.dumps([loads(word) for word in words], ensure_ascii=False))
        lists.append(json.dumps(words, ensure_ascii=False))
    return lists


def object_like(cls: type[Node]) -> str:
    """What to do: give an object with the fields that must be given."""
    plain = plan_of(cls, strict=True).plain
    names = [field.name for field in plain if field.required] or [each.name for each in plain]
    fields: dict[str, Any] = {}
    for name in names:
        text = example_of(cls, name) or _TEXT
        try:
            fields[name] = read(cls, name, text).said
        except Misfit:
            fields[name] = text
    example = shlex.quote(json.dumps(fields, ensure_ascii=False))
    return f"give an object with the fields of {cls.__name__}, as -i {example}"


def example_of(cls: type[Node], name: str) -> str | None:
    """Something that could be typed for a field, and would be taken where that can be found. For a
    secret there is nothing: a command is copied as it stands, and the shell keeps it."""
    if is_secret(cls, name):
        return None
    annotation = cls.__pydantic_fields__[name].annotation
    candidates = ["yes"] if is_yes_or_no(annotation) else choices_of(annotation)[:1]
    if str in union_members(annotation):
        candidates.append(_TEXT)
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
