"""Artifacts: the learned prompts of a node class as readable JSON, one file for each class. They
work with any backend through `bae.lm.WithPrompts`, and do not need DSPy."""

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

from bae.draft import validate_values
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
"""The largest file in bytes."""


class Made(BaseModel):
    """How an artifact was made: the `optimizer`, its `seed`, the `model` and the `teacher`, the
    number of `examples` for each part, and `notes`. If an earlier optimization made a part, `kept`
    says how that part was made. Further keys, such as scores, are allowed."""

    model_config = ConfigDict(extra="allow")

    optimizer: str
    seed: int
    model: str = ""
    teacher: str = ""
    examples: dict[str, int] = {}
    notes: list[str] = []
    kept: dict[str, Made] = {}


class Artifact(BaseModel):
    """The learned prompts of a node class: for the `fill` of its fields and the `choice` of its
    successor. `schema` is the schema of the class at that time. `sources` are the classes of the
    previous nodes in the examples of the fill, with the fields that a model sees; `save_artifacts`
    sets them."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    format: Literal["bae-artifact-1"] = "bae-artifact-1"
    node: str
    schema_: NodeSchema = Field(alias="schema")
    sources: dict[str, dict[str, str]] = {}
    fill: LearnedPrompt | None = None
    choice: LearnedPrompt | None = None
    made: Made | None = None

    def prompts(self) -> NodePrompts:
        """The prompts for `bae.lm.WithPrompts`."""
        return NodePrompts(self.fill, self.choice)

    def keeping(self, before: Artifact | None, parts: Iterable[NodePart]) -> Artifact:
        """A copy in which these parts come from the artifact `before`."""
        merged = self.model_copy()
        for part in parts:
            earlier = getattr(before, part, None)
            setattr(merged, part, earlier)
            if before is None or earlier is None:
                continue
            merged.sources = {**before.sources, **merged.sources}
            if merged.made is not None and before.made is not None:
                history = {**merged.made.kept, part: before.made.kept.get(part, before.made)}
                merged.made = merged.made.model_copy(update={"kept": history})
        return merged


def save_artifacts(
    artifacts: Mapping[type[Node], Artifact],
    directory: str | Path,
    *,
    among: Graph[Any, Any] | Iterable[type[Node]] = (),
) -> list[Path]:
    """Write artifacts into a directory, one file for each node class, and return the files.

    The directory is created if needed. An existing file of a class is replaced; other files do not
    change. If an artifact does not fit its class, an error is raised and nothing is written.

    Pass the graph, or all its node classes, as `among`. Then an artifact is refused later if the
    previous nodes in its examples have changed, and two classes with the same name get different
    files, with their module in front.
    """
    classes = nodes_among(tuple(artifacts), "save_artifacts")
    every = nodes_among(among, "save_artifacts(among=…)")
    every = tuple(dict.fromkeys((*every, *classes)))
    files = _file_names(every)
    texts: dict[Path, str] = {}
    for cls, artifact in artifacts.items():
        file = Path(directory) / files[cls]
        saved = artifact.model_copy(update={"sources": _find_sources(cls, artifact, every)})
        _check_artifact(cls, saved, file, every, among)
        texts[file] = _artifact_text(saved, file, cls)
    file = Path(directory)
    try:
        file.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            _replace_file(file, text)
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
    """Load the artifacts of a directory for the given node classes, or for all node classes of a
    graph and its inner graphs. Classes without a file are left out.

    Raises `ArtifactError` with one of these codes: `bae-artifact-changed` if the class, or a class
    in its examples, has changed since; `bae-artifact-invalid` for a file that is no artifact;
    `bae-artifact-missing` if there is no such directory. One error names all files that do not fit.
    Pass a dict as `misfits` to collect these errors by class and load the rest.

    Files of other classes are skipped with a warning in the log. A directory without a file for any
    of the classes gives a warning too, unless you pass `misfits`.
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
    for cls, file in _find_files(classes, folder).items():
        try:
            artifact = _read_artifact(file, cls)
            _check_artifact(cls, artifact, file, classes, nodes)
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
    """The error for all files of a directory that do not fit."""
    if len(errors) == 1:
        return errors[0]
    listed = "".join(f"\n- {error.message}" for error in errors)
    invalid = any(error.code != "bae-artifact-changed" for error in errors)
    changes = [
        f"{error.node_type.__name__}: {change}"
        for error in errors
        if error.node_type is not None
        for change in error.changes
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
    """The file of each class: its name, with the module in front if classes share the name. Names
    are compared without case, since some file systems ignore it."""
    count = Counter(cls.__name__.casefold() for cls in classes)
    names: dict[type[Node], str] = {}
    used_names: set[str] = set()
    for cls in classes:
        stem = cls.__name__
        if count[stem.casefold()] > 1:
            stem = f"{cls.__module__}.{cls.__qualname__.replace('<locals>.', '')}"
        stem = unique = re.sub(r"[^\w.\-\[\]]+", "_", stem)
        number = 1
        while unique.casefold() in used_names:  # two classes of the same name in one module
            number += 1
            unique = f"{stem}-{number}"
        used_names.add(unique.casefold())
        names[cls] = unique + _ENDING
    return names


def _find_files(classes: Sequence[type[Node]], folder: Path) -> dict[type[Node], Path]:
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


def _read_artifact(file: Path, cls: type[Node]) -> Artifact:
    try:
        artifact = Artifact.model_validate_json(
            # No links: the file may come from another person's repository.
            read_file(file, _LARGEST, follow=False),
            strict=True,
            by_alias=True,
            by_name=False,
        )
        if "format" not in artifact.model_fields_set:
            raise OSError("it has no format")
        return artifact
    except (OSError, ValidationError) as error:
        why = "; ".join(faults(error)[:5]) if isinstance(error, ValidationError) else str(error)
        raise ArtifactError(
            f"{file} is no artifact: {why}",
            file=str(file),
            node_type=cls,
            cause=error,
            fix="restore the file as it was written, or delete it and optimize again",
        ) from error


def _artifact_text(artifact: Artifact, file: Path, cls: type[Node]) -> str:
    """The artifact as JSON: readable, and the same every time. Examples and their values keep their
    order, which the model sees."""
    data = artifact.model_dump(by_alias=True)
    data["made"] = to_jsonable_python(data["made"], inf_nan_mode="constants", fallback=str)
    data = {key: value for key, value in data.items() if value is not None and value != {}}
    try:
        text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise _invalid_error(
            cls, file, f"it cannot be written as JSON: {describe(error)}"
        ) from error
    return text.encode("utf-8", "replace").decode() + "\n"  # lone surrogates are no text


def _replace_file(file: Path, text: str) -> None:
    beside = file.with_name(f".{file.name}-{os.urandom(8).hex()}")
    try:
        with open(beside, "xb") as stream:
            stream.write(text.encode())
            put_in_place(stream, file)
    finally:
        with suppress(OSError):
            beside.unlink()


# --- whether an artifact fits its class -------------------------------------------------------


def _check_artifact(
    cls: type[Node], artifact: Artifact, file: Path, among: Iterable[type[Node]], given: object
) -> None:
    """Raise `ArtifactError` if an artifact does not fit the class as it is now, or if a class in
    its examples has changed. `given` may be the graph of the classes in `among`."""
    if artifact.node != cls.__name__:
        raise _invalid_error(
            cls, file, f"node: it is for {artifact.node}, and not for {cls.__name__}"
        )
    changes = schema_changes(artifact.schema_, schema_of(cls))
    if not changes and artifact.choice is not None and not chooses(cls):
        changes = ["the LM no longer chooses its successor"]
    if not changes and artifact.fill is not None and not is_filled(cls):
        changes = ["the LM has no field to fill"]
    changes = changes or [*_find_source_changes(cls, artifact, among, given)]
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
                raise _invalid_error(cls, file, f"{part}.examples[{number}].{wrong}")


def _find_predecessors(
    target: type[Node], name: str, among: Iterable[type[Node]]
) -> list[type[Node]]:
    """The classes with this name that have `target` as a successor."""
    namesakes = (cls for cls in among if cls.__name__ == name)
    return [namesake for namesake in namesakes if target in plan_of(namesake, strict=True).offered]


def _find_sources(
    cls: type[Node], artifact: Artifact, among: Iterable[type[Node]]
) -> dict[str, dict[str, str]]:
    """The classes of the previous nodes in the examples of a fill, with the fields that a model
    sees."""
    examples = artifact.fill.examples if artifact.fill else ()
    names = {name for example in examples for name in example.known}
    sources = {name: seen for name, seen in artifact.sources.items() if name in names}
    for name in names:
        previous_classes = _find_predecessors(cls, name, among)
        if len(previous_classes) == 1:
            sources[name] = seen_fields(previous_classes[0])
    return dict(sorted(sources.items()))


def _find_source_changes(
    cls: type[Node], artifact: Artifact, among: Iterable[type[Node]], given: object
) -> Iterator[str]:
    """The changes of the classes of previous nodes in the examples."""
    from bae.graph import Graph

    for name, seen_before in artifact.sources.items():
        previous_classes = _find_predecessors(cls, name, among)
        if not previous_classes and isinstance(given, Graph):
            yield f"its examples come from {name}, which leads no more to it"
        elif previous_classes and all(
            seen_fields(previous) != seen_before for previous in previous_classes
        ):
            for change in type_changes(seen_before, seen_fields(previous_classes[0])):
                yield f"its examples come from {name}, where {change}"


def misfit(
    cls: type[Node], part: NodePart, example: PromptExample, among: Iterable[type[Node]] = ()
) -> str:
    """Why an example does not fit a class, with the place of the problem, or empty. Its answer may
    be wrong, or its previous node may have fields that no model sees."""
    for name, fields in example.known.items():
        previous_classes = [cls] if part == "choice" else _find_predecessors(cls, name, among)
        # A class with a serializer has its own JSON form.
        shown = [
            seen_fields(previous)
            for previous in previous_classes
            if not previous.__pydantic_decorators__.model_serializers
        ]
        for field in cast("dict[str, Any]", fields) if shown and isinstance(fields, dict) else ():
            if not any(field in fields_seen for fields_seen in shown):
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
            # The example lacks tool calls and values that the model did not see, so it cannot
            # become a complete node.
            validate_values(cls, answer, frozenset(answer))
        elif isinstance(built := build(cls, asked, answer, {}), Wrong):
            return f"answer.{'; '.join(built.errors)}"
    except ValidationError as error:
        return f"answer.{'; '.join(faults(error))}"
    except Exception as error:  # the node's own validators may raise anything
        return f"answer.{describe(error)}"
    return ""


def _invalid_error(cls: type[Node], file: Path, why: str) -> ArtifactError:
    return ArtifactError(
        f"{file} does not fit {cls.__name__}: {why}",
        file=str(file),
        node_type=cls,
        fix="fix that place or remove the example, or optimize again",
    )
