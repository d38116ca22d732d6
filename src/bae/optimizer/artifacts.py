"""Artifacts: the learned prompts of a node class as plain JSON, one file for each class, that reads
well in review. Any backend is asked with them, through `bae.lm.WithPrompts`, without DSPy."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_jsonable_python

from bae.draft import validated
from bae.exceptions import ArtifactError, describe, faults
from bae.given_files import read_file
from bae.lm.answers import Wrong, build
from bae.lm.policies.learned import LearnedPrompt, NodePrompts, PromptExample
from bae.optimizer.node_schemas import (
    PARTS,
    NodePart,
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
from bae.prompts.questions import names_of
from bae.prompts.values import asked_fields

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node

_log = logging.getLogger("bae.optimizer")
_ENDING: Final = ".json"
_LARGEST: Final = 32 * 1024 * 1024
"""How many bytes a file may have."""


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

    def keeping(self, before: Artifact | None, parts: Iterable[NodePart]) -> Artifact:
        """The same, with these parts as they were `before`, and how those were made."""
        found = self.model_copy()
        for part in parts:
            kept = getattr(before, part, None)
            setattr(found, part, kept)
            if before is None or kept is None:
                continue
            found.sources = {**before.sources, **found.sources}
            if found.made is not None and before.made is not None:
                how = {**found.made.kept, part: before.made.kept.get(part, before.made)}
                found.made = found.made.model_copy(update={"kept": how})
        return found


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
        kept = artifact.model_copy(update={"sources": _sources(cls, artifact, every)})
        _check(cls, kept, file, every, among)
        texts[file] = _text(kept, file, cls)
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
    warned of too, unless `misfits` is given.
    """
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
    wrong: dict[type[Node], ArtifactError] = {} if misfits is None else misfits
    loaded: dict[type[Node], Artifact] = {}
    for cls, file in _found_files(classes, folder).items():
        try:
            artifact = _read(file, cls)
            _check(cls, artifact, file, classes, nodes)
        except ArtifactError as error:
            wrong[cls] = error
        else:
            loaded[cls] = artifact
    if misfits is None and wrong:
        raise misfits_error(directory, tuple(wrong.values()))
    if misfits is None and not loaded:
        _log.warning(
            "%s has no artifact for any of the node classes %s: nothing is learned for them there",
            directory,
            ", ".join(cls.__name__ for cls in classes),
        )
    return loaded


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
        found = Artifact.model_validate_json(
            # The file may come from another person's repository, and lead elsewhere.
            read_file(file, _LARGEST, follow=False),
            strict=True,
            by_alias=True,
            by_name=False,
        )
        if "format" not in found.model_fields_set:
            raise OSError("it has no format")
        return found
    except (OSError, ValidationError) as error:
        why = "; ".join(faults(error)[:5]) if isinstance(error, ValidationError) else str(error)
        raise ArtifactError(
            f"{file} is no artifact: {why}",
            file=str(file),
            node_type=cls,
            cause=error,
            fix="restore the file as it was written, or delete it and optimize again",
        ) from error


def _text(artifact: Artifact, file: Path, cls: type[Node]) -> str:
    """JSON as it is written: readable in review, and the same every time. The order inside examples
    is the one that the model sees, and so is theirs."""
    data = artifact.model_dump(by_alias=True)
    data["made"] = to_jsonable_python(data["made"], inf_nan_mode="constants", fallback=str)
    data = {key: value for key, value in data.items() if value is not None and value != {}}
    try:
        text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise _invalid(cls, file, f"it cannot be written as JSON: {describe(error)}") from error
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


def _check(
    cls: type[Node], artifact: Artifact, file: Path, among: Iterable[type[Node]], given: object
) -> None:
    """Raise `ArtifactError` if the artifact in a file is not for this class as it is now, or has
    examples from a class that has changed. `given` may be the graph that `among` comes from."""
    if artifact.node != cls.__name__:
        raise _invalid(cls, file, f"node: it is for {artifact.node}, and not for {cls.__name__}")
    changes = schema_changes(artifact.schema_, schema_of(cls))
    if not changes and artifact.choice is not None and not chooses(cls):
        changes = ["the LM no longer chooses its successor"]
    if not changes and artifact.fill is not None and not is_filled(cls):
        changes = ["the LM has no field to fill"]
    changes = changes or [*_source_changes(cls, artifact, among, given)]
    if changes:
        raise ArtifactError(
            f"{file} was made for another {cls.__name__} than there is now: {'; '.join(changes)}",
            code="bae-artifact-changed",
            file=str(file),
            node_type=cls,
            changes=changes,
            fix=f"optimize {cls.__name__} again, or delete the file to go without",
        )
    for part in PARTS:
        prompt: LearnedPrompt | None = getattr(artifact, part)
        for number, example in enumerate(prompt.examples if prompt is not None else ()):
            wrong = misfit(cls, part, example, among)
            if wrong:
                raise _invalid(cls, file, f"{part}.examples[{number}].{wrong}")


def _leading(target: type[Node], name: str, among: Iterable[type[Node]]) -> list[type[Node]]:
    """The classes of this name that lead to a class."""
    named = (each for each in among if each.__name__ == name)
    return [each for each in named if target in plan_of(each, strict=True).offered]


def _sources(
    cls: type[Node], artifact: Artifact, among: Iterable[type[Node]]
) -> dict[str, dict[str, str]]:
    """The classes that the examples of a fill come from, with what a model sees of each."""
    examples = artifact.fill.examples if artifact.fill else ()
    names = {name for each in examples for name in each.known}
    found = {name: seen for name, seen in artifact.sources.items() if name in names}
    for name in names:
        known = _leading(cls, name, among)
        if len(known) == 1:
            found[name] = seen_fields(known[0])
    return dict(sorted(found.items()))


def _source_changes(
    cls: type[Node], artifact: Artifact, among: Iterable[type[Node]], given: object
) -> Iterator[str]:
    """What has changed about the classes that examples come from."""
    from bae.graph import Graph

    for name, then in artifact.sources.items():
        known = _leading(cls, name, among)
        if not known and isinstance(given, Graph):
            yield f"its examples come from {name}, which leads no more to it"
        elif known and all(seen_fields(each) != then for each in known):
            for each in type_changes(then, seen_fields(known[0])):
                yield f"its examples come from {name}, where {each}"


def misfit(
    cls: type[Node], part: NodePart, example: PromptExample, among: Iterable[type[Node]] = ()
) -> str:
    """What is wrong with an example for the class, with its place in it; empty if nothing is: with
    its answer, or with fields that no model sees of the node that it comes from."""
    for name, fields in example.known.items():
        known = [cls] if part == "choice" else _leading(cls, name, among)
        # One with a serializer has a form of its own.
        seen = [seen_fields(e) for e in known if not e.__pydantic_decorators__.model_serializers]
        for field in cast("dict[str, Any]", fields) if seen and isinstance(fields, dict) else ():
            if not any(field in each for each in seen):
                return f"known.{name}.{field}: {name} has no such field that a model sees"
    answer, plan = dict(example.answer), plan_of(cls, strict=True)
    if part == "choice":
        names = list(names_of(plan.offered))
        if [*answer] == ["choice"] and answer["choice"] in names:
            return ""
        return f'answer: it must be {{"choice": …}}, with one of {", ".join(names)}'
    asked = asked_fields(cls)
    for name in answer:
        if name not in asked:
            return f"answer.{name}: {cls.__name__} is asked for {', '.join(asked)} alone"
    for name in asked:
        if name not in answer and plan.fields[name].required:
            return f"answer.{name}: it is missing"
    try:
        if plan.sourced or plan.tools is not None:
            # Values that the model was not shown are not in the example, so there is no whole node;
            # nor is there without tool calls.
            validated(cls, answer, frozenset(answer))
        elif isinstance(built := build(cls, asked, answer, {}), Wrong):
            return f"answer.{'; '.join(built.errors)}"
    except ValidationError as error:
        return f"answer.{'; '.join(faults(error))}"
    except Exception as error:  # validators are the node's own code
        return f"answer.{describe(error)}"
    return ""


def _invalid(cls: type[Node], file: Path, why: str) -> ArtifactError:
    return ArtifactError(
        f"{file} does not fit {cls.__name__}: {why}",
        file=str(file),
        node_type=cls,
        fix="fix that place or remove the example, or optimize again",
    )
