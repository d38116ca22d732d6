"""`Improvement`: learn a prompt for each node of a graph from the runs of a journal, compare it on
held-out runs, and write it to a directory if it is better."""

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
    """The verdict on a learned prompt. Its value is its text."""

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
"""The folder of the call log inside the directory. Git ignores it, since calls contain texts of
users, whereas the artifacts next to it belong in git."""


@dataclass(slots=True)
class PartResult:
    """The result for one part of a node, its `fill` or its `choice`.

    `examples` is the number of all examples. `train` examples were used to learn from, with
    `questions` different questions, and `held_out` examples to compare. People have corrected
    `corrected_train` and `corrected_held_out` of them. `existing` is the score of the artifact that
    was in the directory.
    """

    node: str
    part: NodePart
    examples: int
    train: int
    held_out: int
    corrected_train: int = 0
    corrected_held_out: int = 0
    verdict: PromptVerdict = PromptVerdict.NOT_COMPARED
    written: bool = False
    comparison: Comparison | None = None
    existing: Interval | None = None
    notes: list[str] = field(default_factory=list[str])
    questions: int = 0


@dataclass(slots=True)
class Misfit:
    """An artifact in the directory that does not fit its node. `stays` is False once it was
    replaced."""

    file: Path
    why: str
    stays: bool = True


@dataclass(slots=True)
class Improvement:
    """Learns prompts from the runs of a journal and writes those that make the graph better:

    ```python
    improvement = await Improvement(graph, journal, "learned", lm="local").run()
    ```

    The share `held_out` of the finished runs is held out. For each of the `nodes`, by default all,
    a prompt is learned from the other runs, compared on the held-out runs, and written to the
    directory if it is better. With `certain`, only a significant gain counts; with `force`, prompts
    that are not better are written too. An existing artifact is replaced only by a better one. Runs
    of evaluations are left out unless `evals` is True, and so are runs with an id in `without`.
    `options` are options of the optimizer. The other arguments are as for `aoptimize_node`.

    Every answer is stored in `.calls` in the directory until everything is done and written. If the
    optimization is interrupted, fails or runs out of budget, run it again: it pays for no answer
    twice.

    The results are available even after a failure or an interruption. `parts` has a `PartResult`
    for each part of a node with examples, `files` the written files, `misfits` the artifacts that
    do not fit their nodes. `done` says whether all nodes were optimized. `out_of_budget` is the
    message of the budget if it ran out. `train_count` and `held_out_count` are numbers of examples;
    `repeated` were not held out because they repeat a question, `from_evals` come from evaluations,
    and `left_out` from runs in `without`. `calls` counts LM calls. `kept` is how many answers the
    directory keeps for another try.
    """

    graph: Graph[Any, Any]
    journal: Journal
    directory: str | Path
    lm: LM | str | Any = None
    teacher: LM | str | Any = None
    metric: Metric | Judge | None = None
    optimizer: str = "bootstrap"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    nodes: Sequence[type[Node]] = ()
    without: Collection[str] = ()
    evals: bool = False
    held_out: float = 0.3
    minimum: int = MINIMUM
    seed: int = 0
    concurrency: int = 4
    budget: Budget = field(default_factory=Budget)
    force: bool = False
    certain: bool = False
    progress: Callable[[Progress], None] | None = None

    train_count: int = field(default=0, init=False)
    held_out_count: int = field(default=0, init=False)
    repeated: int = field(default=0, init=False)
    from_evals: int = field(default=0, init=False)
    left_out: int = field(default=0, init=False)
    parts: list[PartResult] = field(default_factory=list[PartResult], init=False)
    files: list[Path] = field(default_factory=list[Path], init=False)
    misfits: list[Misfit] = field(default_factory=list[Misfit], init=False)
    done: bool = field(default=False, init=False)
    out_of_budget: str = field(default="", init=False)
    calls: CallStatistics = field(default_factory=lambda: CallStatistics(0, 0, 0), init=False)
    kept: int = field(default=0, init=False)
    _train: list[Any] = field(default_factory=list[Any], init=False, repr=False)
    _held_out: list[Any] = field(default_factory=list[Any], init=False, repr=False)

    async def run(self) -> Self:
        """Learn, compare and write. Raises `bae-optimize-nothing` if there is nothing to learn
        from, and `bae-optimizing-elsewhere` if another process writes to the directory."""
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
        """The learned parts that were not written but that `force` would write."""
        return [
            part
            for part in self.parts
            if not part.written and is_written(part.verdict, force=True, certain=False)
        ]

    @property
    def useful(self) -> bool:
        """Whether it is done and the directory has a better prompt than the plain one: a new
        prompt, or an existing prompt that is as good as the new one."""
        as_good = (PromptVerdict.UNCHANGED, PromptVerdict.NO_BETTER_THAN_EXISTING)
        return self.done and any(part.written or part.verdict in as_good for part in self.parts)

    async def _read_examples(self) -> dict[type[Node], list[PartResult]]:
        """Read the journal, hold out a share of its runs, and count the examples of each node."""
        from bae.optimizer.examples import examples_from
        from bae.optimizer.splits import split_apart

        graph, journal = self.graph, self.journal
        every = wanted = await examples_from(journal, graph, evals=True)
        if self.without:
            wanted = await examples_from(journal, graph, evals=True, without=self.without)
        usable = [
            example
            for example in wanted
            if self.evals
            or not is_eval_run(str(example["root"]))
            # A correction in a fork counts. Other runs with the same question have its mark too.
            or (example["corrected"] and not is_eval_run(str(example["run_id"])))
        ]
        self.from_evals = len(wanted) - len(usable)
        # Leaving out a fork can add examples, since its parent's answers count again.
        self.left_out = max(0, len(every) - len(wanted))
        if not usable:
            raise self._nothing_to_learn_error()
        self._train, self._held_out, repeated = split_apart(usable, self.held_out, self.seed)
        self.train_count, self.held_out_count = len(self._train), len(self._held_out)
        self.repeated = len(repeated)
        classes = self.nodes or every_node(graph)
        by_node = {cls: [*self._count_parts(cls)] for cls in classes}
        for cls in classes:
            # With examples, optimize_node reports this.
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
                few = questions < self.minimum
                yield PartResult(
                    cls.__name__,
                    part,
                    len(train) + len(held_out),
                    len(train),
                    len(held_out),
                    *corrected,
                    verdict=PromptVerdict.TOO_FEW_EXAMPLES if few else PromptVerdict.NOT_COMPARED,
                    questions=questions,
                )

    def _load_existing(self, learnable: Collection[type[Node]]) -> dict[type[Node], Artifact]:
        """Load the artifacts of the directory. An artifact that does not fit is ignored."""
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
        """Write the better parts. Existing parts that are not replaced stay."""
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
        """The call log in the directory, locked for this process. It is deleted when the same
        optimization has no more use for it."""
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
            what = f"there are runs of {name} from evaluations alone, which are left out"
            fix = "run the graph with other inputs, or learn from those too: evals=True"
        elif self.left_out:
            what = f"all runs of {name} are left out"
            fix = "run the graph with this journal, or leave out fewer runs"
        else:
            what = f"there is no finished run of {name} to learn from in which an LM was asked"
            fix = (
                "run the graph with this journal, correct what is wrong in its runs with "
                "`bae runs fork RUN --at STEP --set FIELD=VALUE`, and try again"
            )
        return BaeError(what, code="bae-optimize-nothing", fix=fix)


def verdict_on(
    comparison: Comparison | None, existing: Interval | None, *, held_out: int
) -> PromptVerdict:
    """The verdict of a comparison on the held-out examples. `existing` is the score of the
    artifact in the directory, if there is one."""
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
    """The scores of a part on the held-out examples, as JSON values."""
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
    """The counts of a part's examples, as a text."""
    counts = f"{part.train} to learn from, {part.held_out} held out"
    if not part.corrected_train and not part.corrected_held_out:
        return counts
    return f"{counts}, {part.corrected_train} and {part.corrected_held_out} corrected by people"


def _make_folder(folder: Path) -> list[Path]:
    """Make the folder of the call log. Returns the parent directories that were made too."""
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
    """Take a lock that ends with the process, however the process ends. SQLite's lock works on
    every system."""
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
