"""`Improvement` learns prompts for the nodes of a graph from the runs in a journal, compares them
on held-out runs, and writes the better prompts to a directory."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

from bae.evals.case_runs import is_eval_run
from bae.evals.case_types import every_node
from bae.evals.intervals import Interval
from bae.evals.judge import Judge
from bae.exceptions import ArtifactError, BaeError, BudgetError
from bae.lm.policies.budget import Budget
from bae.optimizer.artifacts import load_artifacts, save_artifacts
from bae.optimizer.calls import CallLog, CallStatistics
from bae.optimizer.comparison import Comparison, compare
from bae.optimizer.node_schemas import PARTS, NodePart, why_untrained
from bae.optimizer.optimization import MINIMUM, Progress, aoptimize_node

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.journal.store import Journal
    from bae.language_model import LM
    from bae.node import Node
    from bae.optimizer.artifacts import Artifact
    from bae.optimizer.metrics import Metric
    from bae.optimizer.predictors import NodePredictor


class PromptVerdict(StrEnum):
    """The verdict on a learned prompt. The value of a member is the text for users."""

    BETTER = "better"
    MAYBE_BETTER = "better, not beyond chance"
    NOT_BETTER = "not better"
    NO_BETTER_THAN_EXISTING = "no better than what is there"
    UNCHANGED = "there already"
    NOTHING_LEARNED = "nothing learned"
    NOTHING_HELD_OUT = "nothing held out"
    NOT_COMPARED = "not compared"
    TOO_FEW_EXAMPLES = "too few examples"


CALLS: Final = ".calls"
"""The folder of the call log inside the directory. Git ignores this folder, because calls contain
texts of users. The artifacts in the directory belong in git."""


@dataclass(slots=True)
class PartResult:
    """The result for one part of a node."""

    node: str
    """The name of the node class."""
    part: NodePart
    """The part of the node: `fill` or `choice`."""
    examples: int
    """The number of all examples."""
    train: int
    """The number of examples to learn from."""
    held_out: int
    """The number of examples to compare on."""
    corrected_train: int = 0
    """How many examples in `train` a person has corrected."""
    corrected_held_out: int = 0
    """How many examples in `held_out` a person has corrected."""
    verdict: PromptVerdict = PromptVerdict.NOT_COMPARED
    written: bool = False
    """Whether the learned prompt was written to the directory."""
    comparison: Comparison | None = None
    """The learned prompt compared with the plain prompt."""
    existing: Interval | None = None
    """The score of the artifact that was in the directory."""
    notes: list[str] = field(default_factory=list[str])
    questions: int = 0
    """The number of different questions in `train`."""


@dataclass(slots=True)
class Misfit:
    """An artifact in the directory that does not fit its node."""

    file: Path
    why: str
    stays: bool = True
    """False after a new artifact has replaced this artifact."""


@dataclass(slots=True)
class Improvement:
    """Learns prompts from the runs of a journal and writes the prompts that make the graph better:

    ```python
    improvement = await Improvement(graph, journal, "learned", lm="local").run()
    ```

    A share of the finished runs is held out. For each node class, a prompt is learned from the
    other runs and compared on the held-out runs. If the prompt is better than the plain prompt and
    than an existing artifact, it is written to the directory. With `force`, other learned prompts
    are written too.

    Every answer is stored in `.calls` in the directory. If the optimization is interrupted, fails
    or runs out of budget, run it again: no answer is paid for twice. `.calls` is deleted when all
    nodes are done and `force` would write no further prompt. The results so far are available even
    after a failure or an interruption.

    Arguments without a description here are as for `aoptimize_node`.
    """

    graph: Graph[Any, Any]
    journal: Journal
    directory: str | Path
    """The directory of the artifacts."""
    lm: LM | str | Any = None
    teacher: LM | str | Any = None
    metric: Metric | Judge | None = None
    optimizer: str = "bootstrap"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The options of the optimizer: see `OPTIONS`."""
    nodes: Sequence[type[Node]] = ()
    """The node classes to learn prompts for. By default, all node classes."""
    without: Collection[str] = ()
    """Ids of runs to leave out, with their corrections."""
    evals: bool = False
    """Whether to learn from runs of evaluations too."""
    held_out: float = 0.3
    """The share of the finished runs to hold out."""
    minimum: int = MINIMUM
    seed: int = 0
    concurrency: int = 4
    budget: Budget = field(default_factory=Budget)
    force: bool = False
    """Whether to write learned prompts that are not better, too."""
    certain: bool = False
    """Whether to write a prompt only if its gain is significant."""
    progress: Callable[[Progress], None] | None = None

    train_count: int = field(default=0, init=False)
    """The number of examples to learn from."""
    held_out_count: int = field(default=0, init=False)
    """The number of examples to compare on."""
    repeated: int = field(default=0, init=False)
    """The number of examples that were not held out because they repeat a question."""
    from_evals: int = field(default=0, init=False)
    """The number of examples that were left out because they come from evaluations."""
    left_out: int = field(default=0, init=False)
    """The number of examples that were left out because of `without`."""
    parts: list[PartResult] = field(default_factory=list[PartResult], init=False)
    """The results for all parts that have examples."""
    files: list[Path] = field(default_factory=list[Path], init=False)
    """The written files."""
    misfits: list[Misfit] = field(default_factory=list[Misfit], init=False)
    """The artifacts in the directory that do not fit their nodes."""
    done: bool = field(default=False, init=False)
    """Whether all nodes were optimized."""
    out_of_budget: str = field(default="", init=False)
    """The message of the budget if it ran out. Otherwise empty."""
    calls: CallStatistics = field(default_factory=lambda: CallStatistics(0, 0, 0), init=False)
    """How the LM questions were answered."""
    kept: int = field(default=0, init=False)
    """The number of answers that `.calls` still stores for another try."""
    _train: list[Any] = field(default_factory=list[Any], init=False, repr=False)
    _held_out: list[Any] = field(default_factory=list[Any], init=False, repr=False)

    async def run(self) -> Self:
        """Learn, compare and write prompts. Raises `bae-optimize-nothing` if there is nothing to
        learn from, and `bae-optimizing-elsewhere` if another process is writing to the
        directory."""
        metric: Any = self.metric
        judges = (
            cast("Mapping[Any, Any]", metric) if isinstance(metric, Mapping) else {None: metric}
        )
        for judge in judges.values():
            if isinstance(judge, Judge):
                judge.ready()
        async with self._open_log() as log:
            by_node = await self._read_examples()
            for part in self.parts:
                self._report(Progress(part.node, part.part, "read", note=_describe_counts(part)))
            learnable = {
                cls: parts
                for cls, parts in by_node.items()
                if any(part.verdict != PromptVerdict.TOO_FEW_EXAMPLES for part in parts)
            }
            existing = self._load_existing(learnable)
            for cls, parts in learnable.items():
                try:
                    await self._improve(cls, parts, existing.get(cls), log)
                except BudgetError as error:
                    if error.budget is not self.budget:
                        raise
                    self.out_of_budget = error.message
                    return self
            self.done = True
        return self

    @property
    def unwritten(self) -> list[PartResult]:
        """The results whose learned prompt was not written, but would be written with `force`."""
        return [
            part
            for part in self.parts
            if not part.written and is_written(part.verdict, force=True, certain=False)
        ]

    @property
    def useful(self) -> bool:
        """Whether all nodes were optimized and the directory has a better prompt than the plain
        prompt. This may be a new prompt, or an existing prompt that is as good as the new
        prompt."""
        as_good = (PromptVerdict.UNCHANGED, PromptVerdict.NO_BETTER_THAN_EXISTING)
        return self.done and any(part.written or part.verdict in as_good for part in self.parts)

    async def _read_examples(self) -> dict[type[Node], list[PartResult]]:
        """Read the journal, hold out a share of its runs, and count the examples of each node."""
        from bae.optimizer.examples import examples_from
        from bae.optimizer.splits import split_apart

        graph, journal = self.graph, self.journal
        all_examples = wanted_examples = await examples_from(journal, graph, evals=True)
        if self.without:
            wanted_examples = await examples_from(journal, graph, evals=True, without=self.without)
        usable = [
            example
            for example in wanted_examples
            if self.evals
            or not is_eval_run(str(example["root"]))
            # Use a correction. Runs of evaluations with the same question are also marked as
            # corrected, so check the run too.
            or (example["corrected"] and not is_eval_run(str(example["run_id"])))
        ]
        self.from_evals = len(wanted_examples) - len(usable)
        # If a fork is left out, the answers of its parent count again. Then there may be more
        # examples.
        self.left_out = max(0, len(all_examples) - len(wanted_examples))
        if not usable:
            raise self._nothing_to_learn_error()
        self._train, self._held_out, repeated = split_apart(usable, self.held_out, self.seed)
        self.train_count, self.held_out_count = len(self._train), len(self._held_out)
        self.repeated = len(repeated)
        classes = self.nodes or every_node(graph)
        by_node = {cls: [*self._count_parts(cls)] for cls in classes}
        for cls in classes:
            # If there are examples, optimize_node reports this.
            if not by_node[cls] and (why := why_untrained(cls)):
                self._report(Progress(cls.__name__, "fill", "skipped", note=why))
        self.parts = [part for parts in by_node.values() for part in parts]
        if not self.parts:
            names = ", ".join(cls.__name__ for cls in classes)
            raise BaeError(
                f"the runs of {graph.name} have no step to {names} that a language model took and "
                "that can be learned from",
                code="bae-optimize-nothing",
                fix="name another node, or run the graph with this journal until it gets there",
            )
        return by_node

    def _count_parts(self, cls: type[Node]) -> Iterator[PartResult]:
        from bae.optimizer.examples import part_examples
        from bae.optimizer.splits import distinct

        for part in PARTS:
            train, held_out = (
                part_examples(cls, part, examples) for examples in (self._train, self._held_out)
            )
            if train or held_out:
                questions = len(distinct(train))
                corrected = [
                    sum(bool(example["bae"]["corrected"]) for example in side)
                    for side in (train, held_out)
                ]
                has_too_few = questions < self.minimum
                yield PartResult(
                    cls.__name__,
                    part,
                    len(train) + len(held_out),
                    len(train),
                    len(held_out),
                    *corrected,
                    verdict=PromptVerdict.TOO_FEW_EXAMPLES
                    if has_too_few
                    else PromptVerdict.NOT_COMPARED,
                    questions=questions,
                )

    def _load_existing(self, learnable: Collection[type[Node]]) -> dict[type[Node], Artifact]:
        """Load the artifacts of the directory. Report the artifacts that do not fit, and ignore
        them."""
        misfits: dict[type[Node], ArtifactError] = {}
        existing = load_artifacts(self.graph, self.directory, misfits=misfits)
        for cls, error in misfits.items():
            self.misfits.append(Misfit(Path(error.file), error.message))
            becomes = (
                "it is replaced if something better than the plain prompt is learned"
                if cls in learnable
                else "it stays as it is, since nothing is learned for it"
            )
            self._report(Progress(cls.__name__, "", "read", note=f"{error.message}; {becomes}"))
        return existing

    def _report(self, progress: Progress) -> None:
        if self.progress is None:
            _log.info("%s", progress.note)
        else:
            self.progress(progress)

    async def _improve(
        self, cls: type[Node], parts: list[PartResult], existing: Artifact | None, log: CallLog
    ) -> None:
        from bae.optimizer.predictors import artifact_of, predictor_of

        shared_options: dict[str, Any] = {
            "lm": self.lm,
            "calls": log,
            "concurrency": self.concurrency,
            "budget": self.budget,
            "progress": self.progress,
            "graph": self.graph,
        }

        async def comparisons(after: NodePredictor) -> dict[str, Comparison]:
            compared = await compare(cls, after, self._held_out, self.metric, **shared_options)
            return {comparison.part: comparison for comparison in compared}

        predictor = await aoptimize_node(
            cls,
            self._train,
            self.metric,
            teacher=self.teacher,
            optimizer=self.optimizer,
            seed=self.seed,
            minimum=self.minimum,
            **shared_options,
            **self.options,
        )
        artifact = artifact_of(predictor)
        compared = await comparisons(predictor)
        before: dict[str, Comparison] = {}
        if existing is not None:
            unchanged_parts = [
                part for part in PARTS if getattr(existing, part) == getattr(artifact, part)
            ]
            existing_rest = existing.model_copy(update=dict.fromkeys(unchanged_parts))
            before = await comparisons(predictor_of(cls, existing_rest))
        for part in parts:
            if part.verdict == PromptVerdict.TOO_FEW_EXAMPLES:
                continue
            notes = artifact.made.notes if artifact.made is not None else []
            part.notes += [note for note in notes if note.startswith(f"{part.part}: ")]
            part.comparison = compared.get(part.part)
            if part.part in before:
                part.existing = before[part.part].after
            learned = getattr(artifact, part.part)
            if learned is None:
                part.verdict = PromptVerdict.NOTHING_LEARNED
            elif existing is not None and getattr(existing, part.part) == learned:
                part.verdict = PromptVerdict.UNCHANGED
            else:
                part.verdict = verdict_on(part.comparison, part.existing, held_out=part.held_out)
            part.written = is_written(part.verdict, force=self.force, certain=self.certain)
        self._write(cls, artifact, existing, [part for part in parts if part.written])

    def _write(
        self,
        cls: type[Node],
        artifact: Artifact,
        existing: Artifact | None,
        parts: Sequence[PartResult],
    ) -> None:
        """Write these parts. Take the other parts from the existing artifact."""
        if not parts:
            return
        scores: dict[NodePart, Any] = {part.part: scores_of(part) for part in parts}
        made = artifact.made and artifact.made.model_copy(update={"held_out": scores})
        artifact = artifact.model_copy(update={"made": made})
        artifact = artifact.keeping(existing, [part for part in PARTS if part not in scores])
        files = save_artifacts({cls: artifact}, self.directory, among=self.graph)
        self.files += files
        for misfit in self.misfits:
            misfit.stays = misfit.stays and misfit.file not in files

    @asynccontextmanager
    async def _open_log(self) -> AsyncGenerator[CallLog]:
        """Open the call log in the directory, and lock it for this process. At the end, delete the
        log if the same optimization would not use it again."""
        directory = Path(self.directory)
        folder = directory / CALLS
        created_parents = _make_folder(folder)
        with closing(_lock(folder / "lock", directory)):
            log = CallLog(folder / "calls.db")
            counted = False
            try:
                await log.open()
                yield log
            finally:
                self.calls = log.statistics()
                try:
                    with suppress(BaeError):  # keep an unreadable log: it may contain answers
                        self.kept = await log.open()
                        counted = True
                finally:
                    await log.aclose()
                if counted and ((self.done and not self.unwritten) or not self.kept):
                    self.kept = 0
                    shutil.rmtree(folder, ignore_errors=True)
                    for parent in created_parents:
                        with suppress(OSError):  # a directory with artifacts is not empty
                            os.rmdir(parent)

    def _nothing_to_learn_error(self) -> BaeError:
        name = self.graph.name
        if self.from_evals:
            message = f"all runs of {name} to learn from are evaluations, which are left out"
            fix = "run the graph with other inputs, or use evaluations too: evals=True"
        elif self.left_out:
            message = f"all runs of {name} are left out"
            fix = "run the graph with this journal, or leave out fewer runs"
        else:
            message = (
                f"there is no finished run of {name} that asked an LM, so nothing can be learned"
            )
            fix = (
                "run the graph with this journal, correct what is wrong in its runs with "
                "`bae runs fork RUN --at STEP --set FIELD=VALUE`, and try again"
            )
        return BaeError(message, code="bae-optimize-nothing", fix=fix)


def verdict_on(
    comparison: Comparison | None, existing: Interval | None, *, held_out: int
) -> PromptVerdict:
    """Return the verdict on a learned prompt from its comparison on the held-out examples.
    `existing` is the score of the artifact in the directory, if there is one."""
    if not held_out:
        return PromptVerdict.NOTHING_HELD_OUT
    if comparison is None:
        return PromptVerdict.NOT_COMPARED
    if not comparison.better:
        return PromptVerdict.NOT_BETTER
    if existing is not None and existing.mean >= comparison.after.mean:
        return PromptVerdict.NO_BETTER_THAN_EXISTING
    return PromptVerdict.BETTER if comparison.certain else PromptVerdict.MAYBE_BETTER


def is_written(verdict: PromptVerdict, *, force: bool, certain: bool) -> bool:
    """Whether a part with this verdict is written."""
    if verdict in (
        PromptVerdict.TOO_FEW_EXAMPLES,
        PromptVerdict.NOTHING_LEARNED,
        PromptVerdict.UNCHANGED,
    ):
        return False  # there is nothing to write
    if force or verdict == PromptVerdict.BETTER:
        return True
    return verdict == PromptVerdict.MAYBE_BETTER and not certain


def scores_of(part: PartResult) -> dict[str, Any]:
    """Return the held-out scores of a part as JSON values."""
    compared = part.comparison
    if compared is None:
        return {"n": part.held_out}
    intervals = {key: getattr(compared, key) for key in ("before", "after", "difference")}
    names = ("mean", "low", "high", "level")
    rounded = {
        key: {name: round(getattr(interval, name), 4) for name in names}
        for key, interval in intervals.items()
    }
    return {"n": compared.n, **rounded}


_log = logging.getLogger("bae.optimizer")


def _describe_counts(part: PartResult) -> str:
    """Return the numbers of a part's examples as text."""
    counts = f"{part.train} to learn from, {part.held_out} held out"
    if not part.corrected_train and not part.corrected_held_out:
        return counts
    return f"{counts}, {part.corrected_train} and {part.corrected_held_out} corrected by people"


def _make_folder(folder: Path) -> list[Path]:
    """Make the folder of the call log. Return the parent directories that did not exist."""
    missing_parents = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise BaeError(
            f"{folder.parent} is no directory that can be written to: {error.strerror}",
            code="bae-artifact-invalid",
            cause=error,
            fix="name another directory",
        ) from error
    return missing_parents


def _lock(file: Path, directory: Path) -> sqlite3.Connection:
    """Lock a directory with SQLite, whose locks work on every system. The lock ends with the
    process, even if the process is killed."""
    database: sqlite3.Connection | None = None
    try:
        database = sqlite3.connect(file, timeout=0, isolation_level=None)
        database.execute("BEGIN EXCLUSIVE")
    except sqlite3.DatabaseError as error:
        if database is not None:
            database.close()
        raise BaeError(
            f"another optimization writes to {directory}, or {file} is damaged",
            code="bae-optimizing-elsewhere",
            cause=error,
            fix="wait for it to end, or name another directory",
        ) from error
    return database
