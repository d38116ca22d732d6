"""Artefacts: the learned prompts of a node class, as plain JSON that reads well in review, a file
for each class. Any backend is asked with them, through `bae.lm.WithPrompts`, without dspy;
`predictors.py` makes them from the results of DSPy's optimizers. `artefact_files.py` reads and
writes the files, and `artefact_fit.py` says whether one fits its class."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import to_jsonable_python

from bae.exceptions import ArtefactError
from bae.optimizer.artefact_files import directory_of, file_names, text_of, written
from bae.optimizer.node_schema import NodeSchema
from bae.optimizer.nodes import nodes_among

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.lm.policies.learned import LearnedPrompt, NodePrompts
    from bae.node import Node

_log = logging.getLogger("bae.optimizer")


class LearnedExample(BaseModel):
    """A question and its answer, as JSON values.

    `known` is what the model is told: `{"A": {…}, "context": {…}}`, with the fields of the node `A`
    that the run comes from and what was looked up. `answer` is what it is to say: the fields, or
    `{"choice": "B"}`.
    """

    model_config = ConfigDict(extra="forbid")

    known: dict[str, JsonValue]
    answer: dict[str, JsonValue]


class Learned(BaseModel):
    """What was learnt about one question: the `instruction` it begins with, and the `examples` that
    are shown before it."""

    model_config = ConfigDict(extra="forbid")

    instruction: str
    examples: list[LearnedExample] = []


class Made(BaseModel):
    """How an artefact was made: by which `optimizer`, with which `seed`, for which `model` and with
    which `teacher`, and from how many `examples` for each part. `notes` are what to know about it.
    A part that was left as it was is in `kept`, with how it was made. It may say more, such as
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
        """The same where a part is the one that was there `before`."""
        made = self._told(lambda name: name != part)
        made.kept = {**made.kept, **({} if before is None else {part: before.of(part)})}
        return made

    def of(self, part: str) -> Made:
        """How one part was made."""
        if part in self.kept:
            return self.kept[part]
        made = self._told(lambda name: name == part)
        made.notes = [note for note in made.notes if note.startswith(f"{part}: ")]
        made.kept = {}
        return made

    def _told(self, wanted: Callable[[str], bool]) -> Made:
        """The same, with what is said by part for some of them alone."""
        said = self.model_dump()
        for name, value in said.items():
            told = cast(dict[str, Any], value) if isinstance(value, dict) else {}
            if told and told.keys() <= {"fill", "choice"}:
                said[name] = {part: each for part, each in told.items() if wanted(part)}
        return Made.model_validate(said)


class Artefact(BaseModel):
    """What was learnt for a node class: for the `fill` of its fields and for the `choice` of where
    to go on from it, with the schema of the class that it was `made` for. `sources` are the classes
    that the examples of the fill come from, with what a model sees of each; they are put there when
    it is saved."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    format: Literal["bae-artefact-1"] = "bae-artefact-1"
    node: str
    schema_: NodeSchema = Field(alias="schema")
    sources: dict[str, dict[str, str]] = {}
    fill: Learned | None = None
    choice: Learned | None = None
    made: Made | None = None

    def prompts(self) -> NodePrompts:
        """The same for `bae.lm.WithPrompts`, which asks any backend with it."""
        from bae.lm.policies.learned import NodePrompts

        return NodePrompts(fill=_learned_prompt(self.fill), choice=_learned_prompt(self.choice))


def save_artefacts(
    artefacts: Mapping[type[Node], Artefact],
    directory: str | Path,
    *,
    among: Graph[Any, Any] | Iterable[type[Node]] = (),
) -> list[Path]:
    """Write artefacts into a directory, one file for each node class, and answer the files.

    The directory is made if need be. A file that is there is replaced as a whole; others are left
    alone. `among` is the graph, or all its node classes. Give it, so that what examples show of the
    nodes they come from is kept too, and the artefact is refused once these have changed; and so
    that names of files tell classes apart: where two share a name, theirs have the module in front.
    One that does not fit its class is refused, and nothing is written.
    """
    from bae.optimizer.artefact_fit import check
    from bae.optimizer.artefact_sources import recorded, sources_of

    classes = nodes_among(tuple(artefacts), "save_artefacts")
    every = nodes_among(among, "save_artefacts(among=…)")
    every = tuple(dict.fromkeys((*every, *classes)))
    files = file_names(every)
    texts: dict[Path, str] = {}
    for cls, artefact in artefacts.items():
        file = Path(directory) / files[cls]
        sources = sources_of(cls, every, whole=_is_graph(among))
        kept = artefact.model_copy(update={"sources": recorded(artefact, sources)})
        check(cls, kept, str(file), sources)
        texts[file] = text_of(_data(kept), str(file), cls)
    return written(texts, Path(directory))


def load_artefacts(
    nodes: Graph[Any, Any] | Iterable[type[Node]],
    directory: str | Path,
    *,
    misfits: dict[type[Node], ArtefactError] | None = None,
) -> dict[type[Node], Artefact]:
    """The artefacts of a directory for the node classes of a graph, those of graphs inside it too,
    or for the classes that are given. Classes without a file are left out.

    Raises `ArtefactError`: `bae-artefact-changed` for one that was made for a class which is
    another by now, or whose examples come from one which is, `bae-artefact-invalid` for a file that
    is none, and `bae-artefact-missing` where there is no such directory. Where several files do not
    fit, one error names them all. Give a dict as `misfits` to have the first two put there, by the
    class, and the rest loaded. Files that belong to none of the classes are passed over, with a
    warning in the log, and so is a directory that has nothing for any of them.
    """
    found: dict[type[Node], ArtefactError] = {} if misfits is None else misfits
    classes = nodes_among(nodes, "load_artefacts")
    loaded = artefacts_there(nodes if _is_graph(nodes) else classes, directory, found)
    if found and misfits is None:
        raise misfits_in(directory, tuple(found.values()))
    if not loaded and not found:
        _log.warning(
            "%s has no artefact for any of the node classes %s: nothing is learnt for them there",
            directory,
            ", ".join(cls.__name__ for cls in classes),
        )
    return loaded


def artefacts_there(
    nodes: Graph[Any, Any] | Iterable[type[Node]],
    directory: str | Path,
    misfits: dict[type[Node], ArtefactError],
) -> dict[type[Node], Artefact]:
    """The same for those who say themselves that there is none: without a warning then."""
    from bae.optimizer.artefact_files import read
    from bae.optimizer.artefact_fit import check, found_files
    from bae.optimizer.artefact_sources import sources_of

    classes = nodes_among(nodes, "load_artefacts")
    folder = directory_of(directory)
    loaded: dict[type[Node], Artefact] = {}
    for cls, file in found_files(classes, folder).items():
        try:
            artefact = artefact_from(read(file), file, cls)
            check(cls, artefact, str(file), sources_of(cls, classes, whole=_is_graph(nodes)))
        except ArtefactError as error:
            misfits[cls] = error
        else:
            loaded[cls] = artefact
    return loaded


def misfits_in(directory: str | Path, errors: Sequence[ArtefactError]) -> ArtefactError:
    """One error for all files of a directory that do not fit."""
    if len(errors) == 1:
        return errors[0]
    told = "".join(f"\n- {each.message}" for each in errors)
    said = f"{len(errors)} artefacts in {directory} do not fit:{told}"
    if any(each.code != "bae-artefact-changed" for each in errors):
        fix = "mend these files, or delete them and optimise again"
        return ArtefactError(said, file=str(directory), changes=_changes(errors), fix=fix)
    return ArtefactError(
        said,
        code="bae-artefact-changed",
        file=str(directory),
        changes=_changes(errors),
        fix="optimise these classes again, or delete the files to go without",
    )


def artefact_from(data: Any, file: Path, cls: type[Node]) -> Artefact:
    """What a file says, as an artefact; refused by name and place where it is none."""
    from pydantic import ValidationError

    from bae.exceptions import faults

    try:
        return Artefact.model_validate(data, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise ArtefactError(
            f"{file} is no artefact: {'; '.join(faults(error)[:5])}",
            file=str(file),
            node_type=cls,
            cause=error,
            fix="take the file as it was written, or optimise again",
        ) from error


def _changes(errors: Sequence[ArtefactError]) -> list[str]:
    """What is other than it was, with the class that it is other in."""
    return [
        f"{each.node_type.__name__}: {change}"
        for each in errors
        if each.node_type is not None
        for change in each.changes
    ]


def _is_graph(nodes: object) -> bool:
    from bae.graph import Graph

    return isinstance(nodes, Graph)


def _learned_prompt(learned: Learned | None) -> LearnedPrompt | None:
    from bae.lm.policies.learned import LearnedPrompt, PromptExample

    if learned is None:
        return None
    examples = (PromptExample(each.known, each.answer) for each in learned.examples)
    return LearnedPrompt(learned.instruction, tuple(examples))


def _data(artefact: Artefact) -> dict[str, Any]:
    """An artefact as JSON. The order inside examples is the one that the model sees, and so is
    theirs: it is part of what was learnt."""
    said = artefact.model_dump(by_alias=True)
    # Whatever made it may have said more; a number that is none is to be refused, and not null.
    if said["made"] is not None and not said["made"]["kept"]:
        del said["made"]["kept"]
    if not said["schema"]["words"]:
        del said["schema"]["words"]
    said["made"] = to_jsonable_python(said["made"], inf_nan_mode="constants", fallback=str)
    return {key: value for key, value in said.items() if value is not None and value != {}}
