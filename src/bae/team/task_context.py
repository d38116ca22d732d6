"""What a worker knows about its task before it writes: requirements, the work it builds on, the
repository, what was tried before and what people said, gathered at once and bounded in size."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bae.team.git import Checkout
from bae.team.models import May, Proof, Task, TaskAttempt, bounded
from bae.team.repository import Code, CodeReader

if TYPE_CHECKING:
    from bae.team.store import Store

LONGEST_CONTEXT: Final = 80_000
"""How many characters a context has at most."""


@dataclass(frozen=True)
class Context:
    """What a worker's LLM is shown of its task: `str` gives the text."""

    sections: Mapping[str, str]
    """Texts by their headings."""
    files: Mapping[str, str]
    """The files that the task is about, whole unless they are too long."""

    def __str__(self) -> str:
        return "\n\n".join(f"# {title}\n{text}" for title, text in self.sections.items() if text)


async def gather_context(
    task: Task,
    store: Store,
    reader: CodeReader,
    at: Checkout | None = None,
    *,
    longest: int = LONGEST_CONTEXT,
) -> Context:
    """All that a worker needs to know for a task, from the store and from the checkout that it
    works in, in at most `longest` characters. The parts are read concurrently."""
    try:
        async with asyncio.TaskGroup() as group:
            project = group.create_task(store.project(task.project_id))
            attempts = group.create_task(store.attempts(task.id))
            blockers = group.create_task(store.blockers(task.project_id))
            results = group.create_task(_results(task, store))
            code = group.create_task(reader.read(at))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    said = [
        f"Asked: {each.question}\nAnswer: {each.answer}"
        for each in blockers.result()
        if each.task_id == task.id and each.answer
    ]
    texts = {
        "Task": (describe_task(task), 0.2),
        "From the people you work for": ("\n\n".join((*said, *task.notes)), 0.05),
        "Requirements of the project": (project.result().requirements, 0.15),
        "Work that this task builds on": ("\n".join(text for text, _ in results.result()), 0.05),
        _ATTEMPTS: ("\n\n".join(filter(None, map(_describe_attempt, attempts.result()))), 0.15),
    }
    built_on = [name for _, files in results.result() for name in files]
    return await asyncio.to_thread(_assemble, task, texts, built_on, code.result(), longest)


_ATTEMPTS: Final = "Earlier attempts, all of them failed"
_RULE: Final = "-----"
_HEADS: Final = 500
_CUT: Final = 60
"""How much longer a text may be that says how much of it was left out."""
_SHORTEST: Final = 400


def _assemble(
    task: Task,
    texts: Mapping[str, tuple[str, float]],
    built_on: Sequence[str],
    code: Code,
    longest: int,
) -> Context:
    """The context of texts, each with its share of the length, and of code. Files have the rest,
    and what others do not need."""
    sections = {
        title: bounded(text.strip(), max(0, int(longest * share) - _CUT))
        for title, (text, share) in texts.items()
    }
    attempts = sections.pop(_ATTEMPTS)
    sections["Conventions"] = code.conventions(longest=longest // 20)
    query = "\n".join((task.title, task.description, *task.criteria, *task.files, *task.tests))
    found = [match.path for match in code.search(query, most=10)]
    order = [name for name in dict.fromkeys((*task.files, *built_on, *found)) if name in code.texts]
    sections["Outline of the repository"] = code.outline(order, longest=longest // 10)
    left = longest - _HEADS - len(attempts) - sum(map(len, sections.values()))
    files: dict[str, str] = {}
    for name in order:
        text, room = code.texts[name], left - len(name) - len(_RULE) - 4
        if len(text) > room and name in task.files and room > _SHORTEST:
            text = bounded(text, room - _CUT)
        if len(text) <= room:
            files[name] = text
            left = room - len(text)
    sections["Files"] = "\n\n".join(f"{_RULE} {name}\n{text}" for name, text in files.items())
    sections[_ATTEMPTS] = attempts
    return Context(sections, files)


async def _results(task: Task, store: Store) -> list[tuple[str, tuple[str, ...]]]:
    """What the tasks that this one depends on have done, and the files that they changed."""
    needed = [each for each in await store.tasks(task.project_id) if each.key in task.depends_on]
    attempts = await asyncio.gather(*(store.attempts(each.id) for each in needed))
    results: list[tuple[str, tuple[str, ...]]] = []
    for each, tried in zip(needed, attempts, strict=True):
        files = next((last.files for last in reversed(tried) if last.outcome == "passed"), ())
        changed = f" Changed: {', '.join(files)}." if files else ""
        results.append((f"- {each.key} ({each.status}): {each.title}.{changed}", files))
    return results


_PROOFS: Final[Mapping[Proof, str]] = {
    "new-tests": "Write at least one new test that fails without your change and passes with it.",
    "named-tests": "The tests that are named prove the work.",
    "none": "This needs no tests: change only text for people, and the files that are named.",
}
_LEVELS: Final[Mapping[May, str]] = {
    "add-tests": "Add to tests, but do not change, skip or remove tests that exist; remove one "
    "only together with all code that it tests.",
    "change-tests": "You may change and remove tests that exist, but not how tests are run.",
    "change-test-setup": "You may change tests that exist, and how tests are run.",
}


def describe_task(task: Task) -> str:
    """What is to be done, when it is done, and the rules that its work is judged by."""
    criteria = "\n".join(f"- {each}" for each in task.criteria)
    tests = f"{_PROOFS[task.proof]} {_LEVELS[task.may]}"
    named = f"These tests must pass: {', '.join(task.tests)}" if task.tests else ""
    done = f"Done when:\n{criteria}" if criteria else ""
    parts = (task.title, task.description, done, named, tests)
    return "\n\n".join(text for text in parts if text)


def _describe_attempt(attempt: TaskAttempt) -> str:
    if attempt.outcome == "passed":
        return ""
    files = f" of {', '.join(attempt.files)}" if attempt.files else ""
    return f"Attempt {attempt.number}{files}: {attempt.outcome}\n{attempt.failure}".rstrip()
