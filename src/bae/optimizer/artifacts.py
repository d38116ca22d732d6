"""Store the learned prompts of node classes as artifacts: readable JSON, one file for each class.
`bae.lm.WithPrompts` uses artifacts with any backend, without DSPy."""

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
    find_visible_types,
    is_filled,
    nodes_among,
    schema_changes,
    schema_of,
    type_changes,
)
from bae.plan import plan_of
from bae.private_files import put_in_place
from bae.prompts.questions import names_of
from bae.prompts.values import list_fields_to_fill

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.node import Node

_log = logging.getLogger("bae.optimizer")
_ENDING: Final = ".json"
_LARGEST: Final = 32 * 1024 * 1024
"""The most bytes that an artifact file may have."""


class Made(BaseModel):
    """How an artifact was made. Further keys, such as scores, are allowed."""

    model_config = ConfigDict(extra="allow")

    optimizer: str
    seed: int
    model: str = ""
    """The LM that the prompts were optimized for."""
    teacher: str = ""
    """The LM that answered examples and proposed instructions."""
    examples: dict[str, int] = {}
    """The number of examples for each part."""
    notes: list[str] = []
    """Remarks of the optimization, such as why a part was skipped."""
    kept: dict[str, Made] = {}
    """For each part that an earlier optimization made: how that optimization made the part."""


class Artifact(BaseModel):
    """The learned prompts of a node class."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    format: Literal["bae-artifact-1"] = "bae-artifact-1"
    node: str
    """The name of the class."""
    schema_: NodeSchema = Field(alias="schema")
    """The schema of the class when its prompts were learned."""
    sources: dict[str, dict[str, str]] = {}
    """The previous node classes in the examples of `fill`, by name. Each has the fields that an LLM
    sees, with their types. `save_artifacts` sets this."""
    fill: LearnedPrompt | None = None
    """The learned prompt for filling the fields, or None."""
    choice: LearnedPrompt | None = None
    """The learned prompt for choosing the next node, or None."""
    made: Made | None = None

    def prompts(self) -> NodePrompts:
        """Return the prompts for `bae.lm.WithPrompts`."""
        return NodePrompts(self.fill, self.choice)

    def keeping(self, before: Artifact | None, parts: Iterable[NodePart]) -> Artifact:
        """Return a copy that takes `parts` from the earlier artifact `before`. A part that `before`
        does not have becomes None."""
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

    If the directory does not exist, it is created. An existing file of a class is replaced. Other
    files do not change. If an artifact does not fit its class, `ArtifactError` is raised and
    nothing is written.

    Pass the graph, or all its node classes, as `among`. This has two effects:

    - `load_artifacts` refuses an artifact if the previous node classes in its examples have
      changed.
    - If two classes have the same name, their file names begin with the module.
    """
    classes = nodes_among(tuple(artifacts), "save_artifacts")
    all_classes = nodes_among(among, "save_artifacts(among=…)")
    all_classes = tuple(dict.fromkeys((*all_classes, *classes)))
    files = _file_names(all_classes)
    texts: dict[Path, str] = {}
    for cls, artifact in artifacts.items():
        file = Path(directory) / files[cls]
        saved = artifact.model_copy(update={"sources": _find_sources(cls, artifact, all_classes)})
        _check_artifact(cls, saved, file, all_classes, among)
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
    """Load the artifacts of node classes from a directory. For a graph, load the artifacts of all
    its node classes and of its inner graphs. Classes without a file are left out.

    Raises `ArtifactError` with one of these codes. One error names all files that do not fit.

    - `bae-artifact-changed`: the class, or a class in its examples, has changed.
    - `bae-artifact-invalid`: the file is not an artifact.
    - `bae-artifact-missing`: the directory does not exist.

    Pass a dict as `misfits` to collect the errors of files by class, and to load the other files.

    Files of other classes are skipped with a warning in the log. If no class has a file, the log
    has a warning too, unless you pass `misfits`.
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
    errors: dict[type[Node], ArtifactError] = {} if misfits is None else misfits
    loaded: dict[type[Node], Artifact] = {}
    for cls, file in _find_files(classes, folder).items():
        try:
            artifact = _read_artifact(file, cls)
            _check_artifact(cls, artifact, file, classes, nodes)
        except ArtifactError as error:
            errors[cls] = error
        else:
            loaded[cls] = artifact
    if misfits is None and errors:
        raise misfits_error(directory, tuple(errors.values()))
    if misfits is None and not loaded:
        _log.warning(
            "%s has no artifact for any of the node classes %s, so their prompts stay plain",
            directory,
            ", ".join(cls.__name__ for cls in classes),
        )
    return loaded


def misfits_error(directory: str | Path, errors: Sequence[ArtifactError]) -> ArtifactError:
    """Return one error for all artifact files of a directory that do not fit."""
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
    """Return the file name of each class: the class name, with the module in front if several
    classes share the name. Names are compared without case, because some file systems ignore
    case."""
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
    """Return the artifact files of a directory by class. Skip other files with a warning."""
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
            # Follow no links: the file may come from another person's repository.
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
    """Return an artifact as readable JSON. Equal artifacts have equal texts. Examples and their
    values keep their order, because the LLM sees this order."""
    data = artifact.model_dump(by_alias=True)
    data["made"] = to_jsonable_python(data["made"], inf_nan_mode="constants", fallback=str)
    data = {key: value for key, value in data.items() if value is not None and value != {}}
    try:
        text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise _invalid_error(
            cls, file, f"it cannot be written as JSON: {describe(error)}"
        ) from error
    return text.encode("utf-8", "replace").decode() + "\n"  # UTF-8 has no lone surrogates


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
    """Raise `ArtifactError` if an artifact does not fit its class, or if a class in its examples
    has changed.

    `among` are the node classes of `given`, which is a graph or an iterable of node classes.
    """
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
            problem = misfit(cls, part, example, among)
            if problem:
                raise _invalid_error(cls, file, f"{part}.examples[{number}].{problem}")


def _find_predecessors(
    target: type[Node], name: str, among: Iterable[type[Node]]
) -> list[type[Node]]:
    """Return the classes named `name` that have `target` as a successor."""
    namesakes = (cls for cls in among if cls.__name__ == name)
    return [namesake for namesake in namesakes if target in plan_of(namesake, strict=True).offered]


def _find_sources(
    cls: type[Node], artifact: Artifact, among: Iterable[type[Node]]
) -> dict[str, dict[str, str]]:
    """Return the previous node classes in the examples of a fill, with the fields that an LLM
    sees."""
    examples = artifact.fill.examples if artifact.fill else ()
    names = {name for example in examples for name in example.known}
    sources = {name: fields for name, fields in artifact.sources.items() if name in names}
    for name in names:
        previous_classes = _find_predecessors(cls, name, among)
        if len(previous_classes) == 1:
            sources[name] = find_visible_types(previous_classes[0])
    return dict(sorted(sources.items()))


def _find_source_changes(
    cls: type[Node], artifact: Artifact, among: Iterable[type[Node]], given: object
) -> Iterator[str]:
    """Describe how the previous node classes in the examples have changed."""
    from bae.graph import Graph

    for name, seen_before in artifact.sources.items():
        previous_classes = _find_predecessors(cls, name, among)
        if not previous_classes and isinstance(given, Graph):
            yield f"its examples come from {name}, which no longer leads to it"
        elif previous_classes and all(
            find_visible_types(previous) != seen_before for previous in previous_classes
        ):
            for change in type_changes(seen_before, find_visible_types(previous_classes[0])):
                yield f"its examples come from {name}, where {change}"


def misfit(
    cls: type[Node], part: NodePart, example: PromptExample, among: Iterable[type[Node]] = ()
) -> str:
    """Return why an example does not fit a class, with the place of the problem. Empty if it fits.

    The class may refuse the answer, or the previous node may have a field that no LLM sees.
    """
    for name, fields in example.known.items():
        previous_classes = [cls] if part == "choice" else _find_predecessors(cls, name, among)
        # A class with a serializer has its own JSON keys, so do not check them.
        visible_fields = [
            find_visible_types(previous)
            for previous in previous_classes
            if not previous.__pydantic_decorators__.model_serializers
        ]
        for field in (
            cast("dict[str, Any]", fields) if visible_fields and isinstance(fields, dict) else ()
        ):
            if not any(field in fields_seen for fields_seen in visible_fields):
                return f"known.{name}.{field}: {name} has no such field that a model sees"
    answer, plan = dict(example.answer), plan_of(cls, strict=True)
    if part == "choice":
        names = list(names_of(plan.offered))
        if [*answer] == ["choice"] and answer["choice"] in names:
            return ""
        return f'answer: it must be {{"choice": …}}, with one of {", ".join(names)}'
    asked = list_fields_to_fill(cls)
    for name in answer:
        if name not in asked:
            return f"answer.{name}: the LM fills only {', '.join(asked)} of {cls.__name__}"
    for name in asked:
        if name not in answer and plan.fields[name].required:
            return f"answer.{name}: it is missing"
    try:
        if plan.sourced or plan.tools is not None:
            # The example lacks tool calls and values that the LLM did not see. It cannot become a
            # complete node, so validate only the answer.
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
