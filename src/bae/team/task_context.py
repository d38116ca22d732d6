"""What a worker knows about its task before it writes: requirements, the work it builds on, the
repository, what was tried before and what people said, gathered at once and bounded in size."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bae.team.git import Checkout, Repository
from bae.team.models import Attempt, Blocker, Project, Task, bounded
from bae.team.repository import Code, CodeReader

LONGEST_CONTEXT: Final = 80_000
"""How many characters a context has at most."""


class Records(Protocol):
    """What is known about a project's tasks. The store is one."""

    async def project(self, project_id: int, /) -> Project: ...

    async def tasks(self, project_id: int, /) -> Sequence[Task]: ...

    async def attempts(self, task_id: int, /) -> Sequence[Attempt]: ...

    async def blockers(self, project_id: int, /) -> Sequence[Blocker]: ...


@dataclass(frozen=True)
class Context:
    """What a worker's LLM is shown of its task: `str` gives the text."""

    task: str
    said: str
    """What people answered and noted."""
    attempts: str
    results: str
    requirements: str
    conventions: str
    outline: str
    files: Mapping[str, str]
    """The files that the task is about, whole unless they are too long."""

    def __str__(self) -> str:
        files = "\n\n".join(f"{_RULE} {name}\n{text}" for name, text in self.files.items())
        sections = {
            "Task": self.task,
            "From the people you work for": self.said,
            "Requirements of the project": self.requirements,
            "Work that this task builds on": self.results,
            "Conventions": self.conventions,
            "Outline of the repository": self.outline,
            "Files": files,
            "Earlier attempts, all of them failed": self.attempts,
        }
        return "\n\n".join(f"# {title}\n{text}" for title, text in sections.items() if text)


async def gather_context(
    task: Task,
    records: Records,
    repository: Repository | CodeReader,
    at: Checkout | None = None,
    *,
    longest: int = LONGEST_CONTEXT,
) -> Context:
    """All that a worker needs to know for a task, from the records and from the checkout that it
    works in, in at most `longest` characters. The parts are read concurrently."""
    reader = repository if isinstance(repository, CodeReader) else CodeReader(repository)
    try:
        async with asyncio.TaskGroup() as group:
            project = group.create_task(records.project(task.project_id))
            attempts = group.create_task(records.attempts(task.id))
            blockers = group.create_task(records.blockers(task.project_id))
            results = group.create_task(_results(task, records))
            code = group.create_task(reader.read(at))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    said = [
        f"Asked: {each.question}\nAnswer: {each.answer}"
        for each in blockers.result()
        if each.task_id == task.id and each.answer
    ]
    return await asyncio.to_thread(
        _assemble,
        task,
        "\n\n".join((*said, *task.notes)),
        "\n\n".join(_attempt(each) for each in attempts.result() if each.outcome != "passed"),
        results.result(),
        project.result().requirements,
        code.result(),
        longest,
    )


_RULE: Final = "-----"
_SHARES: Final = {
    "task": 0.2,
    "said": 0.05,
    "attempts": 0.15,
    "results": 0.05,
    "requirements": 0.15,
    "conventions": 0.05,
    "outline": 0.1,
}
"""How much of a context each part may have. Files have the rest, and what others do not need."""
_HEADS: Final = 500
_CUT: Final = 60
"""How much longer a text may be that says how much of it was left out."""
_SHORTEST: Final = 400


def _assemble(
    task: Task,
    said: str,
    attempts: str,
    results: Sequence[tuple[str, tuple[str, ...]]],
    requirements: str,
    code: Code,
    longest: int,
) -> Context:
    left = longest - _HEADS

    def part(text: str, share: float) -> str:
        nonlocal left
        short = bounded(text.strip(), max(0, int(longest * share) - _CUT))
        left -= len(short)
        return short

    shown_task = part(_described(task), _SHARES["task"])
    shown_said = part(said, _SHARES["said"])
    shown_attempts = part(attempts, _SHARES["attempts"])
    shown_results = part("\n".join(text for text, _ in results), _SHARES["results"])
    shown_requirements = part(requirements, _SHARES["requirements"])
    size = int(longest * _SHARES["conventions"])
    conventions = part(code.conventions(longest=size), _SHARES["conventions"] * 2)
    query = "\n".join((task.title, task.description, *task.criteria, *task.files, *task.tests))
    found = [match.path for match in code.search(query, most=10)]
    built_on = [name for _, files in results for name in files]
    order = [name for name in dict.fromkeys((*task.files, *built_on, *found)) if name in code.texts]
    outline = code.outline(order, longest=int(longest * _SHARES["outline"]))
    left -= len(outline)
    files: dict[str, str] = {}
    for name in order:
        text, room = code.texts[name], left - len(name) - len(_RULE) - 4
        if len(text) > room and name in task.files and room > _SHORTEST:
            text = bounded(text, room - _CUT)
        if len(text) <= room:
            files[name] = text
            left = room - len(text)
    return Context(
        task=shown_task,
        said=shown_said,
        attempts=shown_attempts,
        results=shown_results,
        requirements=shown_requirements,
        conventions=conventions,
        outline=outline,
        files=files,
    )


async def _results(task: Task, records: Records) -> list[tuple[str, tuple[str, ...]]]:
    """What the tasks that this one depends on have done, and the files that they changed."""
    needed = [each for each in await records.tasks(task.project_id) if each.key in task.depends_on]
    attempts = await asyncio.gather(*(records.attempts(each.id) for each in needed))
    results: list[tuple[str, tuple[str, ...]]] = []
    for each, tried in zip(needed, attempts, strict=True):
        files = next((last.files for last in reversed(tried) if last.outcome == "passed"), ())
        changed = f" Changed: {', '.join(files)}." if files else ""
        results.append((f"- {each.key} ({each.status}): {each.title}.{changed}", files))
    return results


def _described(task: Task) -> str:
    criteria = "\n".join(f"- {each}" for each in task.criteria)
    tests = "" if task.edits_tests else "Do not change, skip or remove tests that exist."
    named = f"These tests fail now, and must pass: {', '.join(task.tests)}" if task.tests else ""
    done = f"Done when:\n{criteria}" if criteria else ""
    parts = (task.title, task.description, done, named, tests)
    return "\n\n".join(text for text in parts if text)


def _attempt(attempt: Attempt) -> str:
    files = f" of {', '.join(attempt.files)}" if attempt.files else ""
    return f"Attempt {attempt.number}{files}: {attempt.outcome}\n{attempt.failure}".rstrip()
