"""Whether a worker of a team finds the files of a task. The cases are the last 60 commits of this
repository that change one to six source files: the message is the task, no files are named, and the
files are those of the parent commit.

- A scripted worker that can only use `look`, `find` and `outline`, with words of the message. It
  reaches a commit if each source file that the commit changes, and that was there before, was
  shown by a call: the worker looked at it or outlined it, or `find` showed a line of it. The worker
  has 12 calls and 30,000 tokens of results.
- The brief that a worker with tools gets first: whether it shows lines of at least one of these
  files, and how many tokens it has.

    python -m benchmarks.team_reading

It prints the tables and exits with 1 when a target is missed. `--write FILE` puts them between the
marker lines of FILE.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bae import ToolError
from bae.lm.policies.budget import estimate_tokens
from bae.plan import plan_of
from bae.team import Project, Task
from bae.team.git import Repository
from bae.team.reading import CodeTree, find, look
from bae.team.repository import Code, CodeReader
from bae.team.task_context import LOOP_CONTEXT, gather_context
from bae.team.worker import BackendWorkerAgent
from bae.team.worker_graph import SYSTEM, WorkerLoop, compose_brief
from benchmarks.report import Result, Verdict, publish

ROOT = Path(__file__).parent.parent
NEWEST = "ec302285"
"""The newest commit that may be a case."""
CASES, MOST_CHANGED = 60, 6
MOST_CALLS, MOST_TOKENS = 12, 30_000
BRIEF_BEFORE = 19_340
"""Tokens of the brief of the same tasks at commit NEWEST, in the mean, measured in the same way."""
BEGIN = "<!-- reading figures: begin, written by python -m benchmarks.team_reading --write -->"
END = "<!-- reading figures: end -->"


@dataclass(frozen=True)
class Case:
    """A commit: its message is the task, and a worker sees the files of its parent."""

    commit: str
    parent: str
    message: str
    changed: tuple[str, ...]
    """Source files that it changed and that were there before."""


@dataclass(frozen=True)
class Outcome:
    """The files and lines of a case that a worker has seen."""

    case: Case
    shown: dict[str, int]
    """The files that calls have shown, with the number of the first such call."""
    tokens: list[int]
    """Those of the result of each call."""
    brief: int
    in_brief: tuple[str, ...]

    @property
    def missed(self) -> list[str]:
        return [name for name in self.case.changed if name not in self.shown]

    @property
    def reached_at(self) -> int | None:
        """The call after which every file was shown."""
        return None if self.missed else max(self.shown[name] for name in self.case.changed)

    @property
    def tokens_of_calls(self) -> list[int]:
        """The tokens that each request of the conversation sends: brief, tools, results so far."""
        sent = [sum(self.tokens[:number]) for number in range(len(self.tokens) + 1)]
        return [self.brief + tokens for tokens in sent]


def git(*args: str, at: Path = ROOT) -> str:
    """Run git, and return its output."""
    process = subprocess.run(("git", *args), cwd=at, check=True, capture_output=True, text=True)
    return process.stdout


def is_source(name: str) -> bool:
    """Return whether a file is source code of bae."""
    return name.startswith("src/bae/") and name.endswith(".py")


def read_cases(most: int = CASES) -> list[Case]:
    """Return the newest commits that change one to six source files and are no merges."""
    form = "--format=%x01%H%x02%P%x02%B%x02"
    log = git("log", "--no-merges", "--name-status", "--no-renames", form, NEWEST)
    cases: list[Case] = []
    for entry in log.split("\x01")[1:]:
        commit, parent, message, files = entry.split("\x02")
        rows = [row.split("\t") for row in files.strip().splitlines()]
        source = [(kind, name) for kind, name in rows if is_source(name)]
        changed = tuple(name for kind, name in source if kind != "A")
        if 1 <= len(source) <= MOST_CHANGED and changed:
            cases.append(Case(commit, parent, message.strip(), changed))
        if len(cases) == most:
            break
    return cases


class KnownReader(CodeReader):
    """Gives the files of a commit."""

    def __init__(self, code: Code) -> None:
        self.code = code

    async def read(self, at: Any = None, before: Code | None = None) -> Code:
        return self.code


class NewProject:
    """The store of a project in which no task was tried."""

    async def project(self, project_id: int) -> Project:
        return Project(id=1, name="bae", root="/", branch="bae/team", test_command=("pytest",))

    async def nothing(self, number: int) -> list[Any]:
        return []

    tasks = attempts = blockers = nothing


# --- the scripted worker ---

Call = Callable[..., Awaitable[list[str]]]
HIT = re.compile(r"^([^\s:]+):\d+: ", re.MULTILINE)
NAME = re.compile(r"[_.]|[a-z][A-Z]")
COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and any are as at be by can does each first for from has have how if in into is it "
        "its last may no not of on only or other over own says so some than that the their then "
        "they this to too was what when where which with without",
    )
)
ENDINGS = [
    "ations",
    "ation",
    "ions",
    "ion",
    "ings",
    "ing",
    "ies",
    "ed",
    "ers",
    "er",
    "es",
    "s",
    "e",
]


async def read_for(message: str, call: Call) -> None:
    """Read what a task is about, by the words of its message alone: a search by all words, one in
    the folder of code that it shows, searches by two words each, names and long words first, then
    by the names of the best files, whose uses these are; and a look at the best file."""
    words = [
        word
        for word in dict.fromkeys(re.findall(r"[A-Za-z_][\w.]*\w", message))
        if word.lower() not in COMMON
    ]
    query = " ".join(words)[:300]
    found = await call(find, query)
    folders = Counter(name.partition("/")[0] for name in found if name.endswith(".py"))
    for folder in ("tests", "benchmarks", "examples", "docs"):
        folders.pop(folder, None)
    (folder, _), *_ = folders.most_common(1) or [("", 0)]
    best = [name for name in await call(find, query, f"{folder}/") if name.endswith(".py")]
    words.sort(key=lambda word: (NAME.search(word) is None, -len(word)))
    pairs = ["|".join(map(common_stem, words[at : at + 2])) for at in range(0, len(words), 2)]
    for pair in pairs[:7]:
        await call(find, pair, f"{folder}/")
    for name in best[:2]:
        await call(find, Path(name).stem, f"{folder}/")
    for name in best[:1]:
        await call(look, name, "1-100")


def common_stem(word: str) -> str:
    """Return a pattern for the common part of the forms of a word."""
    for ending in ENDINGS:
        if word.lower().endswith(ending) and len(word) - len(ending) >= 4:
            return re.escape(word[: -len(ending)].lower())
    return re.escape(word if NAME.search(word) else word.lower())


async def work_on(case: Case, code: Code) -> Outcome:
    """Have the worker read for a case, and write its brief."""
    reader, shown = KnownReader(code), dict[str, int]()
    tree = CodeTree(reader)
    tokens: list[int] = []

    async def call(tool: Any, *args: str) -> list[str]:
        if len(tokens) == MOST_CALLS or sum(tokens) > MOST_TOKENS - 5000:
            return []
        try:
            result: str = await tool(*args, tree=tree)
            names = HIT.findall(result) if tool is find else [args[0]]
        except ToolError as error:
            result, names = str(error), []
        tokens.append(estimate_tokens(result))
        for name in names:
            shown.setdefault(name, len(tokens))
        return list(dict.fromkeys(names))

    await read_for(case.message, call)
    title = case.message.partition("\n")[0][:120]
    task = Task(id=1, project_id=1, key="task", title=title, description=case.message)
    store: Any = NewProject()
    context = await gather_context(task, store, reader, longest=LOOP_CONTEXT)
    brief = compose_brief(BackendWorkerAgent.role, context, "", "", None)
    tools = plan_of(WorkerLoop).tools
    assert tools is not None
    described = "".join(f"{spec.name}{spec.description}{spec.schema}" for spec in tools.tool_specs)
    size = estimate_tokens(SYSTEM + brief + described)
    in_brief = tuple(name for name in case.changed if name in context.files)
    return Outcome(case, shown, tokens, size, in_brief)


async def measure(cases: Sequence[Case]) -> list[Outcome]:
    """Measure cases, each in its own checkout of a clone that shares all objects."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(clone))
        reader = CodeReader(await Repository.open(clone))
        code: Code | None = None
        for case in cases:
            git("checkout", "--quiet", "--force", "--detach", case.parent, at=clone)
            code = await reader.read(before=code)
            outcomes.append(await work_on(case, code))
    return outcomes


# --- the report ---


def report(outcomes: Sequence[Outcome]) -> Result:
    """Return the tables and the targets."""
    count = len(outcomes)
    reached = [outcome.reached_at for outcome in outcomes if outcome.reached_at is not None]
    partly = sum(len(outcome.missed) < len(outcome.case.changed) for outcome in outcomes)
    in_brief = sum(bool(outcome.in_brief) for outcome in outcomes)
    brief = statistics.mean(outcome.brief for outcome in outcomes)
    calls = [tokens for outcome in outcomes for tokens in outcome.tokens_of_calls]
    request = statistics.mean(calls)
    results = [sum(outcome.tokens) for outcome in outcomes]
    source = [sum(map(is_source, outcome.shown)) for outcome in outcomes]
    rows = [["all changed files shown", f"{len(reached)} of {count}"]]
    rows += [
        [f"all shown after call {number}", f"{sum(at <= number for at in reached)} of {count}"]
        for number in (1, 2, 4, 8)
    ]
    rows += [
        ["at least one shown", f"{partly} of {count}"],
        ["calls, mean", f"{statistics.mean(len(outcome.tokens) for outcome in outcomes):.1f}"],
        ["tokens of results, mean", f"{statistics.mean(results):,.0f}"],
        ["tokens of results, most", f"{max(results):,}"],
        ["source files shown, mean", f"{statistics.mean(source):.0f}"],
        ["brief shows a changed file", f"{in_brief} of {count}"],
        ["brief with tools, tokens", f"{brief:,.0f}"],
        ["request of the conversation, mean tokens", f"{request:,.0f}"],
        ["brief before, tokens", f"{BRIEF_BEFORE:,}"],
    ]
    within = all(len(e.tokens) <= MOST_CALLS and sum(e.tokens) <= MOST_TOKENS for e in outcomes)
    verdicts = [
        Verdict("reading", target, measured, met)
        for target, measured, met in (
            ("reached in nine of ten", f"{len(reached)} of {count}", len(reached) >= 0.9 * count),
            ("12 calls and 30,000 tokens of results", f"at most {max(results):,} tokens", within),
            ("brief shows one in six of ten", f"{in_brief} of {count}", in_brief >= 0.6 * count),
            ("brief has half the tokens of before", f"{brief:,.0f}", brief <= BRIEF_BEFORE / 2),
            ("so has a request, in the mean", f"{request:,.0f}", request <= BRIEF_BEFORE / 2),
        )
    ]
    notes = [
        "A commit counts if every source file that it changed was shown, also by one line of a "
        "search: with 12 calls a worker sees lines of about half of all source files. The rows "
        "*after call* tell how early.",
        "Tokens are estimated: one for four bytes. Briefs and requests include the tools.",
        *_describe_misses(outcomes),
    ]
    title = f"{count} commits by their messages"
    return Result("reading", title, ["", "measured"], rows, verdicts, notes)


def _describe_misses(outcomes: Sequence[Outcome]) -> list[str]:
    return [
        f"Missed in {outcome.case.commit[:8]} ({outcome.case.message.partition(chr(10))[0]}): "
        f"{', '.join(outcome.missed)}"
        for outcome in outcomes
        if outcome.missed
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.team_reading", description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into FILE")
    parser.add_argument("--most", type=int, default=CASES, help="how many commits (default: 60)")
    parser.add_argument("--skip", type=int, default=0, help="leave out the newest of them")
    options = parser.parse_args(arguments)
    cases = read_cases(options.skip + options.most)[options.skip :]
    result = report(asyncio.run(measure(cases)))
    print(result.markdown(), *(verdict.line() for verdict in result.verdicts), sep="\n")
    if options.write:
        where = (
            f"Measured on {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python"
            f" {platform.python_version()}."
        )
        publish(options.write, where, [result], BEGIN, END)
    return int(any(verdict.met is False for verdict in result.verdicts))


if __name__ == "__main__":
    sys.exit(main())
