"""Whether an artefact fits its node class: the class is the one it was made for, and its examples
are ones that the class takes. Also which file is whose. `artefacts.py` asks before it writes and
after it has read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from bae.draft import validated
from bae.exceptions import ArtefactError, BaeError, describe, faults
from bae.lm.answers import Wrong, build
from bae.lm.prompts import asked_fields, names_of
from bae.optimizer.artefact_files import (
    BESIDE,
    ENDING,
    file_names,
    long_name,
    read,
    short_name,
)
from bae.optimizer.artefact_sources import Sources, source_changes, strange_source
from bae.optimizer.node_schema import differences, schema_of
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.node import Node
    from bae.optimizer.artefacts import Artefact, Learned, LearnedExample

_log = logging.getLogger("bae.optimizer")


def is_filled(cls: type[Node]) -> bool:
    """Whether a model is asked for fields of the class, and nodes have what it answered: of a text
    that was parsed they have the value alone."""
    return bool(asked_fields(cls)) and not is_parsed(cls)


def is_parsed(cls: type[Node]) -> bool:
    """Whether a model answers the class with a text that `Text(parse)` makes a value of."""
    text = plan_of(cls, strict=True).text
    return text is not None and text.parse is not None


def chooses(cls: type[Node]) -> bool:
    """Whether a model chooses where to go on from the class."""
    plan = plan_of(cls, strict=True)
    return not plan.written and len(plan.offered) > 1


def misfit(
    cls: type[Node], part: str, example: LearnedExample, sources: Sources | None = None
) -> str:
    """What is wrong with an example for the class, with its place in it; empty where nothing is.
    `sources` are the classes that lead to it, as far as they are known."""
    wrong = _filled(cls, example) if part == "fill" else _chosen(cls, example)
    return wrong or strange_source(part, example, sources or Sources(cls, ()))


def check(cls: type[Node], artefact: Artefact, file: str, sources: Sources | None = None) -> None:
    """Raise `ArtefactError` where the artefact in a file is not for this class as it is now, or has
    examples that come from a class which is another now."""
    sources = sources or Sources(cls, ())
    if artefact.node != cls.__name__:
        raise _invalid(cls, file, f"node: it is for {artefact.node}, and not for {cls.__name__}")
    changes = differences(artefact.schema_, schema_of(cls))
    if not changes and artefact.choice is not None and not chooses(cls):
        changes = ["the LM chooses no more where it goes on"]
    if not changes and artefact.fill is not None and not is_filled(cls):
        changes = ["the LM has no field to fill"]
    changes = changes or source_changes(artefact, sources)
    if changes:
        raise ArtefactError(
            f"{file} was made for another {cls.__name__} than there is now: {'; '.join(changes)}",
            code="bae-artefact-changed",
            file=file,
            node_type=cls,
            changes=changes,
            fix=f"optimise {cls.__name__} again, or delete the file to go without",
        )
    for part, learned in (("fill", artefact.fill), ("choice", artefact.choice)):
        _check_examples(cls, part, learned, file, sources)


def found_files(classes: Sequence[type[Node]], folder: Path) -> dict[type[Node], Path]:
    """The files of a directory by the class they are for. What else is there is passed over, and
    the log says so."""
    there = {
        each.name: each
        for each in sorted(folder.iterdir())
        if each.name.endswith(ENDING) and not each.name.startswith(BESIDE)
    }
    found: dict[type[Node], Path] = {}
    for cls, name in file_names(classes).items():
        # Saved beside other classes it may have the longer name, and alone the shorter one.
        for candidate in (name, long_name(cls), short_name(cls)):
            file = there.get(candidate)
            if file is not None and (candidate == name or _is_of(file, cls, classes)):
                found[cls] = file
                break
    for name in sorted(there.keys() - {file.name for file in found.values()}):
        _log.warning(
            "%s is for none of the node classes %s, and is passed over",
            there[name],
            ", ".join(cls.__name__ for cls in classes),
        )
    return found


def _is_of(file: Path, cls: type[Node], classes: Sequence[type[Node]]) -> bool:
    """Whether a file that more than one class might have is this one's, by the schema in it."""
    same = [each for each in classes if short_name(each).casefold() == short_name(cls).casefold()]
    if len(same) == 1:
        return True
    match read(file):
        case {"schema": {"hash": str(found)}}:
            return [each for each in same if schema_of(each).hash == found] == [cls]
        case _:
            return False


def _check_examples(
    cls: type[Node], part: str, learned: Learned | None, file: str, sources: Sources
) -> None:
    for number, example in enumerate(learned.examples if learned is not None else ()):
        wrong = misfit(cls, part, example, sources)
        if wrong:
            raise _invalid(cls, file, f"{part}.examples[{number}].{wrong}")


def _filled(cls: type[Node], example: LearnedExample) -> str:
    plan, asked = plan_of(cls, strict=True), asked_fields(cls)
    unknown = [name for name in example.answer if name not in asked]
    if unknown:
        return f"answer.{unknown[0]}: {cls.__name__} is asked for {', '.join(asked)} alone"
    missing = [n for n in asked if n not in example.answer and plan.fields[n].required]
    if missing:
        return f"answer.{missing[0]}: it is missing"
    context: Any = example.known.get("context", {})
    if not isinstance(context, dict):
        return "known.context: it is no object"
    sourced = {field.name for field in plan.sourced}
    strange = [name for name in cast(dict[str, Any], context) if name not in sourced]
    if strange:
        return f"known.context.{strange[0]}: {cls.__name__} looks no such value up"
    try:
        if plan.sourced:
            # What the model was not shown is not in the example, so there is no whole node.
            validated(cls, example.answer, frozenset(example.answer))
            return ""
        built = build(cls, asked, example.answer, {})
        errors = built.errors if isinstance(built, Wrong) else ()
    except ValidationError as error:
        errors = tuple(faults(error))
    except BaeError as error:
        errors = (describe(error.cause or error),)
    except Exception as error:  # validators are code of the node's own
        errors = (describe(error),)
    return f"answer.{'; '.join(errors)}" if errors else ""


def _chosen(cls: type[Node], example: LearnedExample) -> str:
    names = list(names_of(plan_of(cls, strict=True).offered))
    if set(example.answer) != {"choice"}:
        return 'answer: it is to be {"choice": …} and nothing else'
    chosen = example.answer["choice"]
    if chosen not in names:
        return f"answer.choice: {chosen!r} is not one of {', '.join(names)}"
    return ""


def _invalid(cls: type[Node], file: str, why: str) -> ArtefactError:
    return ArtefactError(
        f"{file} does not fit {cls.__name__}: {why}",
        file=file,
        node_type=cls,
        fix="mend that place or take the example out, or optimise again",
    )
