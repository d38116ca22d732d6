"""What a worker's LLM reads about its task, in a bounded length: requirements, finished work that
the task builds on, the repository, earlier attempts and notes of people."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bae.team.git import Checkout
from bae.team.models import May, Project, Proof, Task, TaskAttempt, bounded, headline
from bae.team.repository import Chunk, Code, CodeReader, FileKind
from bae.team.test_runs import write_command

if TYPE_CHECKING:
    from bae.team.store import Store

LONGEST_CONTEXT: Final = 36_000
"""How many characters a context has at most if the LLM is asked once."""
LOOP_CONTEXT: Final = 16_000
"""How many characters a context has at most if the LLM can look at files itself."""
FROM_PEOPLE: Final = "From the people you work for"
LAST_FAILURE: Final = "The last attempt failed"


@dataclass(frozen=True)
class Context:
    """The context of a task, for a worker's prompt. `str(context)` is its text.

    Parts that all tasks of a project share come first, so that providers can cache them."""

    sections: Mapping[str, str]
    """The text below each heading."""
    files: Mapping[str, str]
    """The text of each relevant file by its path: complete files, or excerpts."""
    reminder: str = ""
    """A short form of the task and its rules, for the end of a brief."""

    def __str__(self) -> str:
        return "\n\n".join(f"# {title}\n{text}" for title, text in self.sections.items() if text)

    def without_failure(self) -> Context:
        """Return a copy without the last attempt's failure, for a brief that shows the failure
        elsewhere."""
        rest = {title: text for title, text in self.sections.items() if title != LAST_FAILURE}
        return replace(self, sections=rest)


async def gather_context(
    task: Task,
    store: Store,
    reader: CodeReader,
    at: Checkout | None = None,
    *,
    longest: int = LONGEST_CONTEXT,
) -> Context:
    """Gather the context of a task from the store, and from the code at the checkout `at`.

    The context has at most `longest` characters."""
    try:
        async with asyncio.TaskGroup() as group:
            project = group.create_task(store.project(task.project_id))
            attempts = group.create_task(store.attempts(task.id))
            blockers = group.create_task(store.blockers(task.project_id))
            results = group.create_task(_read_results(task, store))
            code = group.create_task(reader.read(at))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    answers = [
        f"Asked: {blocker.question}\nAnswer: {blocker.answer}"
        for blocker in blockers.result()
        if blocker.task_id == task.id and blocker.answer
    ]
    failed_attempts = [attempt for attempt in attempts.result() if attempt.outcome != "passed"]
    texts = {
        "Requirements of the project": (project.result().requirements, 0.15),
        "Task": (describe_task(task), 0.2),
        FROM_PEOPLE: ("\n\n".join((*answers, *task.notes)), 0.05),
        "Work that this task builds on": ("\n".join(text for text, _ in results.result()), 0.05),
        _ATTEMPTS: (
            "\n".join(_describe_attempt(attempt) for attempt in failed_attempts[:-1]),
            0.05,
        ),
        LAST_FAILURE: (failed_attempts[-1].failure if failed_attempts else "", 0.15),
    }
    built_on = [name for _, files in results.result() for name in files]
    rules = describe_rules(project.result())
    return await asyncio.to_thread(
        _assemble_context, task, rules, texts, built_on, code.result(), longest
    )


_ATTEMPTS: Final = "Attempts before that, which failed too"
_HEADS: Final = 700
"""Characters reserved for headings."""
_CUT: Final = 60
"""Characters reserved in each text for a note that the text was cut."""
_TAG: Final = 40
"""Characters reserved for the tags around an excerpt."""
_SEARCHED: Final = 25
"""How many files are searched for functions, besides files that the task names."""


def _assemble_context(
    task: Task,
    rules: str,
    texts: Mapping[str, tuple[str, float]],
    built_on: Sequence[str],
    code: Code,
    longest: int,
) -> Context:
    """Assemble a context from texts and code. Each text may fill its share of `longest`, and code
    gets the rest."""
    bounded_texts = {
        title: bounded(text.strip(), max(0, int(longest * share) - _CUT))
        for title, (text, share) in texts.items()
    }
    rules = "\n".join((rules, *code.versions()))
    constant = {
        "How your work is judged": bounded(rules, longest // 10),
        "Conventions": code.conventions(longest=longest // 20),
        "Files of the repository": code.list_folder(longest=longest // 8),
    }
    room = longest - _HEADS - sum(map(len, (*constant.values(), *bounded_texts.values())))
    files = _choose_files(task, built_on, code, room - len(describe_in_short(task)))
    excerpts = "\n\n".join(files.values())
    requirements, described, *rest = bounded_texts.items()
    sections = constant | dict([requirements, described, ("Files", excerpts), *rest])
    return Context(sections, files, describe_in_short(task))


def _choose_files(task: Task, built_on: Sequence[str], code: Code, room: int) -> dict[str, str]:
    """Choose relevant files and functions that fit into `room` characters. Return excerpts by path.

    Complete files come first: files that the task names, and files of the work that the task builds
    on. Then come the best functions of other files, and last small complete files. A file that the
    task does not name gets at most a quarter of the room."""
    query = "\n".join((task.title, task.description, *task.criteria, *task.files, *task.tests))
    named_files = [name for name in dict.fromkeys(task.files) if name in code.texts]
    best_files = [
        match.path
        for match in code.search(query, most=2 * _SEARCHED)
        if match.path in code.texts and code.kind(match.path) is not FileKind.DATA
    ]
    names = list(
        dict.fromkeys((*named_files, *(n for n in built_on if n in code.texts), *best_files))
    )
    room_by_file = dict.fromkeys(names[: _SEARCHED + len(named_files)], room // 4)
    room_by_file |= dict.fromkeys(
        named_files, max(room // 4, room * 2 // 3 // max(1, len(named_files)))
    )
    ranks = {name: rank for rank, name in enumerate(room_by_file)}
    chosen: dict[str, list[Chunk]] = {}
    sizes = dict.fromkeys(room_by_file, 0)

    def choose(name: str, chunks: list[Chunk]) -> None:
        """Choose `chunks` for a file in place of its earlier chunks, if there is room."""
        nonlocal room
        size = sum(len(chunk.text) + len(name) + _TAG for chunk in chunks)
        if size <= room_by_file[name] and size - sizes[name] <= room:
            room -= size - sizes[name]
            chosen[name], sizes[name] = chunks, size

    def choose_whole(names: Iterable[str]) -> None:
        for name in names:
            text = code.texts[name].rstrip("\n")
            choose(name, [Chunk(name, 1, text.count("\n") + 1, text)])

    choose_whole(name for name in (*named_files, *built_on) if name in room_by_file)
    whole_files = frozenset(chosen)
    scored_chunks = [chunk for chunk in code.search_chunks(query, room_by_file) if chunk.score]
    # Among equal functions, functions of better files come first.
    scored_chunks.sort(key=lambda chunk: -chunk.score / (1 + 0.1 * ranks[chunk.path]))
    for chunk in scored_chunks:
        if chunk.path not in whole_files:
            choose(chunk.path, [*chosen.get(chunk.path, ()), chunk])
    # Small files, if there is room.
    choose_whole(name for name in room_by_file if name not in whole_files)
    return {name: _show_chunks(chosen[name]) for name in chosen}


def _show_chunks(chunks: Sequence[Chunk]) -> str:
    """Write the chunks of one file in tags, in the order of their lines. Adjacent chunks are
    joined."""
    joined: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.first):
        previous = joined[-1] if joined else None
        if previous is not None and chunk.first - previous.last <= _GAP:
            gap = "\n" * (chunk.first - previous.last)
            joined[-1] = previous._replace(
                last=chunk.last, text=f"{previous.text}{gap}{chunk.text}"
            )
        else:
            joined.append(chunk)
    return "\n".join(
        f'<file path="{chunk.path}" lines="{chunk.first}-{chunk.last}">\n{chunk.text}\n</file>'
        for chunk in joined
    )


_GAP: Final = 3
"""Two chunks are joined if the second begins at most so many lines after the end of the first."""


def describe_rules(project: Project) -> str:
    """Describe how the work of every task in a project is judged."""
    where = f" in the folder {project.folder}" if project.folder else ""
    languages = f" Languages: {', '.join(project.languages)}." if project.languages else ""
    return (
        f"- The tests run in a fresh copy of the repository{where}, without a network: "
        f"`{write_command(project.test_command)}`.{languages}\n"
        "- Nothing can be installed: use the packages that the project has.\n"
        "- Work is merged only if the tests pass with it, and the proof that its task asks for is "
        "there. Tests that fail already may still fail, and so do the acceptance tests of a task "
        "that writes these.\n"
        "- Change what the task needs, and nothing else. A person is asked before changes to files "
        "that run on their machine or that instruct later workers are merged."
    )


async def _read_results(task: Task, store: Store) -> list[tuple[str, tuple[str, ...]]]:
    """Return a text about each prerequisite of a task, with the files that the prerequisite
    changed."""
    needed = [
        prerequisite
        for prerequisite in await store.tasks(task.project_id)
        if prerequisite.key in task.depends_on
    ]
    attempts = await asyncio.gather(*(store.attempts(prerequisite.id) for prerequisite in needed))
    results: list[tuple[str, tuple[str, ...]]] = []
    for prerequisite, task_attempts in zip(needed, attempts, strict=True):
        files = next(
            (last.files for last in reversed(task_attempts) if last.outcome == "passed"), ()
        )
        changed = f" Changed: {', '.join(files)}." if files else ""
        results.append(
            (f"- {prerequisite.key} ({prerequisite.status}): {prerequisite.title}.{changed}", files)
        )
    return results


_PROOFS: Final[Mapping[Proof, str]] = {
    "new-tests": "Write at least one new test that fails without your change and passes with it.",
    "named-tests": "The tests that are named prove the work.",
    "failing-tests": "Write acceptance tests before the work of others: tests of each criterion, "
    "all of which load and fail now because the behavior is missing. Write the interfaces that "
    "they import as stubs with signatures and types, whose bodies raise NotImplementedError, and "
    "no other code.",
    "none": "This needs no tests: change only text for people, and the files that are named.",
}
_LEVELS: Final[Mapping[May, str]] = {
    "add-tests": "Add to tests, but do not change, skip or remove tests that exist; remove one "
    "only together with all code that it tests.",
    "change-tests": "You may change and remove tests that exist, but not how tests are run.",
    "change-test-setup": "You may change tests that exist, and how tests are run.",
}


def describe_task(task: Task) -> str:
    """Describe a task, its criteria and its rules for tests."""
    criteria = "\n".join(f"- {criterion}" for criterion in task.criteria)
    tests = f"{_PROOFS[task.proof]} {_LEVELS[task.may]}"
    named_tests = f"These tests must pass: {', '.join(task.tests)}" if task.tests else ""
    done_when = f"Done when:\n{criteria}" if criteria else ""
    parts = (task.title, task.description, done_when, named_tests, tests)
    return "\n\n".join(text for text in parts if text)


def describe_in_short(task: Task) -> str:
    """Describe a task and its rules for tests in a few lines."""
    return f"# In short\n{task.title}. {_PROOFS[task.proof]} {_LEVELS[task.may]}"


def _describe_attempt(attempt: TaskAttempt) -> str:
    files = f" of {', '.join(attempt.files)}" if attempt.files else ""
    return f"- Attempt {attempt.number}{files}: {attempt.outcome}. {headline(attempt.failure)}"
