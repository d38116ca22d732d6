"""Artifacts: the learned prompts of a node class as plain JSON, one file for each class, that reads
well in review. Any backend is asked with them, through `bae.lm.WithPrompts`, without DSPy."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from bae.draft import validated
from bae.exceptions import ArtifactError, BaeError, describe, faults
from bae.lm.answers import Wrong, build
from bae.lm.policies.learned import LearnedPrompt, NodePrompts, PromptExample
from bae.lm.prompts import asked_fields, names_of
from bae.optimizer.node_schemas import (
    NodeSchema,
    chooses,
    is_filled,
    nodes_among,
    schema_changes,
    schema_of,
    seen_fields,
    type_changes,
)
from bae.plan import plan_of
from bae.private_files import put_in_place

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node

_log = logging.getLogger("bae.optimizer")
_ENDING: Final = ".json"
_LARGEST: Final = 32 * 1024 * 1024
"""How many bytes a file may have."""
_CONTEXT: Final = "context"
"""What examples call the values that were looked up, beside the node that the run comes from."""


class Made(BaseModel):
    """How an artifact was made: by which `optimizer`, with which `seed`, for which `model` and with
    which `teacher`, and from how many `examples` for each part, with `notes`. A part that an
    earlier optimization made is in `kept`, with how that was made. It may have more keys, such as
    scores."""

    model_config = ConfigDict(extra="allow")

    optimizer: str
    seed: int
    model: str = ""
    teacher: str = ""
    examples: dict[str, int] = {}
    notes: list[str] = []
    kept: dict[str, Made] = {}

    def keeping(self, part: str, before: Made | None) -> Made:
        """The same, for an artifact with a part that was made `before`."""
        if before is None:
            return self
        return self.model_copy(
            update={"kept": {**self.kept, part: before.kept.get(part, before)}}, deep=True
        )


class Artifact(BaseModel):
    """What was learned for a node class: for the `fill` of its fields and for the `choice` of its
    successor, with the schema of the class that it was `made` for. `sources` are the classes that
    the examples of the fill come from, with what a model sees of each; saving puts them there."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    format: Literal["bae-artifact-1"] = "bae-artifact-1"
    node: str
    schema_: NodeSchema = Field(alias="schema")
    sources: dict[str, dict[str, str]] = {}
    fill: LearnedPrompt | None = None
    choice: LearnedPrompt | None = None
    made: Made | None = None

    def prompts(self) -> NodePrompts:
        """The same for `bae.lm.WithPrompts`, which asks any backend with it."""
        return NodePrompts(self.fill, self.choice)


def save_artifacts(
    artifacts: Mapping[type[Node], Artifact],
    directory: str | Path,
    *,
    among: Graph[Any, Any] | Iterable[type[Node]] = (),
) -> list[Path]:
    """Write artifacts into a directory, one file for each node class, and return the files.

    The directory is made if need be. An existing file is replaced as a whole; others are left
    alone. `among` is the graph, or all its node classes. Give it, so that an artifact is refused
    once the nodes that its examples come from have changed, and so that file names tell classes
    apart: if two share a name, theirs have the module in front. An artifact that does not fit its
    class is refused, and nothing is written.
    """
    classes = nodes_among(tuple(artifacts), "save_artifacts")
    every = nodes_among(among, "save_artifacts(among=…)")
    every = tuple(dict.fromkeys((*every, *classes)))
    files = _file_names(every)
    texts: dict[Path, str] = {}
    for cls, artifact in artifacts.items():
        file = Path(directory) / files[cls]
        sources = _Sources.of(cls, every, among)
        kept = artifact.model_copy(update={"sources": sources.recorded(artifact)})
        _check(cls, kept, str(file), sources)
        texts[file] = _text(kept, str(file), cls)
    file = Path(directory)
    try:
        file.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            _replace(file, text)
    except OSError as error:
        raise ArtifactError(
            f"{file} could not be written",
            file=str(file),
            cause=error,
            fix="choose a directory that can be written to",
        ) from error
    return list(texts)


def load_artifacts(
    nodes: Graph[Any, Any] | Iterable[type[Node]],
    directory: str | Path,
    *,
    misfits: dict[type[Node], ArtifactError] | None = None,
) -> dict[type[Node], Artifact]:
    """The artifacts of a directory for the node classes of a graph, those of graphs inside it too,
    or for the classes given. Classes without a file are left out.

    Raises `ArtifactError`: `bae-artifact-changed` if the class, or one that examples come from, has
    changed since, `bae-artifact-invalid` for a file that is none, and `bae-artifact-missing` if
    there is no such directory. One error names all files that do not fit. Give a dict as `misfits`
    to get the first two there, by class, and load the rest. Files that belong to none of the
    classes are skipped, with a warning in the log; a directory with nothing for any of them is
    warned of too.
    """
    found: dict[type[Node], ArtifactError] = {} if misfits is None else misfits
    classes = nodes_among(nodes, "load_artifacts")
    loaded = read_artifacts(nodes, directory, found)
    if found and misfits is None:
        raise misfits_error(directory, tuple(found.values()))
    if not loaded and not found:
        _log.warning(
            "%s has no artifact for any of the node classes %s: nothing is learned for them there",
            directory,
            ", ".join(cls.__name__ for cls in classes),
        )
    return loaded


def read_artifacts(
    nodes: Graph[Any, Any] | Iterable[type[Node]],
    directory: str | Path,
    misfits: dict[type[Node], ArtifactError],
) -> dict[type[Node], Artifact]:
    """`load_artifacts` without the warning if there is none."""
    classes = nodes_among(nodes, "load_artifacts")
    folder = Path(directory)
    if not folder.is_dir():
        what = "is no directory" if folder.exists() else "is not there"
        raise ArtifactError(
            f"{folder} {what}, so nothing can be loaded from it",
            code="bae-artifact-missing",
            file=str(folder),
            fix="give the directory that artifacts were saved to, as with `bae optimize … -o DIR`",
        )
    loaded: dict[type[Node], Artifact] = {}
    for cls, file in _found_files(classes, folder).items():
        try:
            artifact = _read(file, cls)
            _check(cls, artifact, str(file), _Sources.of(cls, classes, nodes))
        except ArtifactError as error:
            misfits[cls] = error
        else:
            loaded[cls] = artifact
    return loaded


def misfit(cls: type[Node], part: str, example: PromptExample) -> str:
    """What is wrong with an example for the class, with its place in it; empty if nothing is."""
    return _wrong_answer(cls, part, example) or _Sources(cls, (), False).wrong(part, example)


# --- files ------------------------------------------------------------------------------------


def _file_names(classes: Sequence[type[Node]]) -> dict[type[Node], str]:
    """The file of each class: its name, with the module in front if several share one. File systems
    may not distinguish upper and lower case."""
    count = Counter(cls.__name__.casefold() for cls in classes)
    names: dict[type[Node], str] = {}
    taken: set[str] = set()
    for cls in classes:
        stem = cls.__name__
        if count[stem.casefold()] > 1:
            stem = f"{cls.__module__}.{cls.__qualname__.replace('<locals>.', '')}"
        stem = unique = re.sub(r"[^\w.\-\[\]]+", "_", stem)
        number = 1
        while unique.casefold() in taken:  # two of one name in one module
            number += 1
            unique = f"{stem}-{number}"
        taken.add(unique.casefold())
        names[cls] = unique + _ENDING
    return names


def _found_files(classes: Sequence[type[Node]], folder: Path) -> dict[type[Node], Path]:
    """The files of a directory by their class. Other files are skipped, with a warning."""
    names = _file_names(classes)
    files = {file.name: file for file in sorted(folder.glob(f"[!.]*{_ENDING}"))}
    for name in sorted(files.keys() - set(names.values())):
        _log.warning(
            "%s is for none of the node classes %s, and is skipped",
            files[name],
            ", ".join(cls.__name__ for cls in classes),
        )
    return {cls: files[name] for cls, name in names.items() if name in files}


def _read(file: Path, cls: type[Node]) -> Artifact:
    try:
        return Artifact.model_validate_json(
            _content(file), strict=True, by_alias=True, by_name=False
        )
    except (OSError, ValidationError) as error:
        why = "; ".join(faults(error)[:5]) if isinstance(error, ValidationError) else str(error)
        raise ArtifactError(
            f"{file} is no artifact: {why}",
            file=str(file),
            node_type=cls,
            cause=error,
            fix="restore the file as it was written, or delete it and optimize again",
        ) from error


def _content(file: Path) -> bytes:
    """The bytes of a file that may come from another person's repository: it could lead elsewhere,
    be a pipe without a writer, or fill the memory."""
    kind = os.lstat(file).st_mode
    if not stat.S_ISREG(kind):
        raise OSError(f"it is {'a symbolic link' if stat.S_ISLNK(kind) else 'not a plain file'}")
    with open(file, "rb") as stream:
        found = stream.read(_LARGEST + 1)
    if len(found) > _LARGEST:
        raise OSError(f"it has more than {_LARGEST} bytes")
    return found


def _text(artifact: Artifact, file: str, cls: type[Node]) -> str:
    """JSON as it is written: readable in review, and the same every time. The order inside examples
    is the one that the model sees, and so is theirs."""
    data = artifact.model_dump(by_alias=True)
    if data["made"] is not None and not data["made"]["kept"]:
        del data["made"]["kept"]
    if not data["schema"]["words"]:
        del data["schema"]["words"]
    data["made"] = to_jsonable_python(data["made"], inf_nan_mode="constants", fallback=str)
    data = {key: value for key, value in data.items() if value is not None and value != {}}
    try:
        text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"what was learned for {cls.__name__} cannot be written to {file} as JSON",
            file=file,
            node_type=cls,
            cause=error,
            fix="leave out numbers that are not finite, and values that contain themselves",
        ) from error
    return text.encode("utf-8", "replace").decode() + "\n"  # lone surrogates are no text


def _replace(file: Path, text: str) -> None:
    beside = file.with_name(f".{file.name}-{os.urandom(8).hex()}")
    try:
        with open(beside, "xb") as stream:
            stream.write(text.encode())
            put_in_place(stream, file)
    finally:
        with suppress(OSError):
            beside.unlink()


# --- whether an artifact fits its class -------------------------------------------------------


def _check(cls: type[Node], artifact: Artifact, file: str, sources: _Sources) -> None:
    """Raise `ArtifactError` if the artifact in a file is not for this class as it is now, or has
    examples from a class that has changed."""
    if artifact.node != cls.__name__:
        raise _invalid(cls, file, f"node: it is for {artifact.node}, and not for {cls.__name__}")
    changes = schema_changes(artifact.schema_, schema_of(cls))
    if not changes and artifact.choice is not None and not chooses(cls):
        changes = ["the LM no longer chooses its successor"]
    if not changes and artifact.fill is not None and not is_filled(cls):
        changes = ["the LM has no field to fill"]
    changes = changes or [*sources.changes(artifact)]
    if changes:
        raise ArtifactError(
            f"{file} was made for another {cls.__name__} than there is now: {'; '.join(changes)}",
            code="bae-artifact-changed",
            file=file,
            node_type=cls,
            changes=changes,
            fix=f"optimize {cls.__name__} again, or delete the file to go without",
        )
    for part, learned in (("fill", artifact.fill), ("choice", artifact.choice)):
        for number, example in enumerate(learned.examples if learned is not None else ()):
            wrong = _wrong_answer(cls, part, example) or sources.wrong(part, example)
            if wrong:
                raise _invalid(cls, file, f"{part}.examples[{number}].{wrong}")


@dataclass(frozen=True, slots=True)
class _Sources:
    """The node classes that lead to a class, as far as they are known. `whole` if these are all, as
    with a graph."""

    target: type[Node]
    classes: tuple[type[Node], ...]
    whole: bool

    @classmethod
    def of(cls, target: type[Node], among: Iterable[type[Node]], given: object) -> _Sources:
        from bae.graph import Graph

        leading = tuple(each for each in among if target in plan_of(each, strict=True).offered)
        return cls(target, leading, isinstance(given, Graph))

    def recorded(self, artifact: Artifact) -> dict[str, dict[str, str]]:
        """The classes that the examples of a fill come from, with what a model sees of each."""
        examples = artifact.fill.examples if artifact.fill else ()
        names = {name for each in examples for name in each.known if name != _CONTEXT}
        found = dict(artifact.sources)
        for name in names:
            known = self._named(name)
            if len(known) == 1:
                found[name] = seen_fields(known[0])
        return {name: found[name] for name in sorted(names & found.keys())}

    def changes(self, artifact: Artifact) -> Iterator[str]:
        """What has changed about the classes that examples come from."""
        for name, then in artifact.sources.items():
            known = self._named(name)
            if not known and self.whole:
                yield f"its examples come from {name}, which leads no more to it"
            elif known and all(seen_fields(cls) != then for cls in known):
                for each in type_changes(then, seen_fields(known[0])):
                    yield f"its examples come from {name}, where {each}"

    def wrong(self, part: str, example: PromptExample) -> str:
        """What is wrong with the node that an example comes from, with its place; empty if nothing
        is, as far as that can be known."""
        names = [name for name in example.known if part == "choice" or name != _CONTEXT]
        if len(names) > 1:
            return f"known: it has {' and '.join(names)}, where a run comes from one node"
        for name in names:
            if part == "choice" and name != self.target.__name__:
                return f"known.{name}: the choice is made at {self.target.__name__}"
            known = [self.target] if part == "choice" else self._named(name)
            if not known and self.whole:
                return f"known.{name}: no {name} leads to {self.target.__name__}"
            wrong = [_unseen(cls, example.known[name]) for cls in known]
            if wrong and all(wrong):
                return f"known.{name}{wrong[0]}"
        return ""

    def _named(self, name: str) -> list[type[Node]]:
        return [cls for cls in self.classes if cls.__name__ == name]


def _unseen(cls: type[Node], fields: Any) -> str:
    """Why a model cannot have seen these fields of a node; empty if it can."""
    if cls.__pydantic_decorators__.model_serializers:
        return ""  # it has a form of its own
    if not isinstance(fields, dict):
        return ": it is no object"
    unknown = [field for field in cast(dict[str, Any], fields) if field not in seen_fields(cls)]
    return f".{unknown[0]}: {cls.__name__} has no such field that a model sees" if unknown else ""


def _wrong_answer(cls: type[Node], part: str, example: PromptExample) -> str:
    plan = plan_of(cls, strict=True)
    if part == "choice":
        names = list(names_of(plan.offered))
        if set(example.answer) != {"choice"}:
            return 'answer: it must be {"choice": …} and nothing else'
        chosen = example.answer["choice"]
        known = chosen in names
        return "" if known else f"answer.choice: {chosen!r} is not one of {', '.join(names)}"
    asked = asked_fields(cls)
    unknown = [name for name in example.answer if name not in asked]
    if unknown:
        return f"answer.{unknown[0]}: {cls.__name__} is asked for {', '.join(asked)} alone"
    missing = [n for n in asked if n not in example.answer and plan.fields[n].required]
    if missing:
        return f"answer.{missing[0]}: it is missing"
    context: Any = example.known.get(_CONTEXT, {})
    if not isinstance(context, dict):
        return "known.context: it is no object"
    sourced = {field.name for field in plan.sourced}
    strange = [name for name in cast(dict[str, Any], context) if name not in sourced]
    if strange:
        return f"known.context.{strange[0]}: {cls.__name__} looks up no such value"
    try:
        if plan.sourced:
            # Values that the model was not shown are not in the example, so there is no whole node.
            validated(cls, dict(example.answer), frozenset(example.answer))
            return ""
        built = build(cls, asked, dict(example.answer), {})
        errors = built.errors if isinstance(built, Wrong) else ()
    except ValidationError as error:
        errors = tuple(faults(error))
    except Exception as error:  # validators are the node's own code
        cause = error.cause if isinstance(error, BaeError) else None
        errors = (describe(cause or error),)
    return f"answer.{'; '.join(errors)}" if errors else ""


def _invalid(cls: type[Node], file: str, why: str) -> ArtifactError:
    return ArtifactError(
        f"{file} does not fit {cls.__name__}: {why}",
        file=file,
        node_type=cls,
        fix="fix that place or remove the example, or optimize again",
    )


def misfits_error(directory: str | Path, errors: Sequence[ArtifactError]) -> ArtifactError:
    """One error for all files of a directory that do not fit."""
    if len(errors) == 1:
        return errors[0]
    listed = "".join(f"\n- {each.message}" for each in errors)
    invalid = any(each.code != "bae-artifact-changed" for each in errors)
    changes = [
        f"{each.node_type.__name__}: {change}"
        for each in errors
        if each.node_type is not None
        for change in each.changes
    ]
    return ArtifactError(
        f"{len(errors)} artifacts in {directory} do not fit:{listed}",
        code="bae-artifact-invalid" if invalid else "bae-artifact-changed",
        file=str(directory),
        changes=changes,
        fix="optimize these classes again, or delete the files to go without",
    )
