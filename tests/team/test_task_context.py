"""The context of a task: its content, its order, and its maximum length."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bae.team.git import Repository
from bae.team.models import Blocker, Project, Task, TaskAttempt, TaskStatus
from bae.team.repository import CodeReader
from bae.team.task_context import gather_context
from git_repositories import make_repository


@dataclass
class Known:
    """Records of a project that are known beforehand; all four are read at the same time."""

    requirements: str = ""
    known_tasks: list[Task] = field(default_factory=list[Task])
    tried: list[TaskAttempt] = field(default_factory=list[TaskAttempt])
    questions: list[Blocker] = field(default_factory=list[Blocker])
    barrier: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(4))
    passed: bool = False

    async def _together(self) -> None:
        if not self.passed:
            await self.barrier.wait()
            self.passed = True

    async def project(self, project_id: int, /) -> Project:
        await self._together()
        return Project(
            id=project_id,
            name="shop",
            root="/",
            branch="bae/team",
            test_command=("pytest",),
            requirements=self.requirements,
        )

    async def tasks(self, project_id: int, /) -> Sequence[Task]:
        await self._together()
        return self.known_tasks

    async def attempts(self, task_id: int, /) -> Sequence[TaskAttempt]:
        await self._together()
        return [attempt for attempt in self.tried if attempt.task_id == task_id]

    async def blockers(self, project_id: int, /) -> Sequence[Blocker]:
        await self._together()
        return self.questions


async def open_reader(root: Path, files: dict[str, str]) -> CodeReader:
    return CodeReader(await Repository.open(make_repository(root, files)))


def make_task(**values: Any) -> Task:
    return Task(**{"id": 2, "project_id": 1, "key": "pay", "title": "Charge a card", **values})


FILES = {
    "shop/cart.py": "class Cart:\n    def total(self): ...\n",
    "shop/payment.py": "def charge(card, amount): ...\n",
    "shop/label.py": "def print_label(order): ...\n",
    "AGENTS.md": "Use plain words.\n",
}


async def test_a_context_contains_all_known_facts_and_reads_them_concurrently(tmp_path: Path):
    reader = await open_reader(tmp_path / "project", FILES)
    cart = make_task(id=1, key="cart", title="Make a cart", status=TaskStatus.COMPLETED)
    known = Known(
        requirements="People can pay by card.",
        known_tasks=[cart, make_task(id=3, key="other", title="Unrelated")],
        tried=[
            TaskAttempt(task_id=1, number=1, outcome="failed", files=("bad.py",)),
            TaskAttempt(task_id=1, number=2, outcome="passed", files=("shop/cart.py",)),
            TaskAttempt(task_id=2, number=1, outcome="failed", failure="AssertionError: 1 != 2"),
        ],
        questions=[
            Blocker(id=1, task_id=2, question="Which currency?", answer="Euro"),
            Blocker(id=2, task_id=3, question="Of another?", answer="No"),
            Blocker(id=3, task_id=2, question="Still open?"),
        ],
    )
    task = make_task(criteria=("cards are charged",), notes=("mind cents",), depends_on=("cart",))

    async with asyncio.timeout(10):
        context = await gather_context(task, known, reader)

    text = str(context)
    for part in ("Charge a card", "- cards are charged", "People can pay by card.", "mind cents"):
        assert part in text
    assert "Asked: Which currency?\nAnswer: Euro" in text
    assert "Of another?" not in text
    assert "Still open?" not in text
    assert "- cart (completed): Make a cart. Changed: shop/cart.py." in text
    assert "Unrelated" not in text
    assert "# The last attempt failed\nAssertionError: 1 != 2" in text
    assert "1 != 2" not in str(context.without_failure())
    assert "AGENTS.md:\nUse plain words." in text
    assert list(context.files)[:2] == ["shop/cart.py", "shop/payment.py"]
    assert "do not change, skip or remove tests" in text
    may_edit = await gather_context(make_task(edits_tests=True), known, reader)
    assert "do not change" not in str(may_edit)


async def test_a_context_is_never_longer_than_its_bound(tmp_path: Path):
    long = "word " * 20_000
    files = {f"m{n}.py": f"def charge_{n}(card): ...\n" * 200 for n in range(60)}
    files["AGENTS.md"] = long
    reader = await open_reader(tmp_path / "project", files)
    tried = [TaskAttempt(task_id=2, number=n, outcome="failed", failure=long) for n in range(3)]
    questions = [Blocker(id=1, task_id=2, question=long, answer=long)]
    task = make_task(description="x " * 10_000, files=("m7.py",), notes=(long,))

    for longest in (10_000, 16_000, 40_000):
        known = Known(requirements=long, tried=tried, questions=questions)
        context = await gather_context(task, known, reader, longest=longest)

        assert len(str(context)) <= longest
        assert next(iter(context.files)) == "m7.py"
        assert len(str(context)) > longest * 0.6


async def test_a_context_that_cannot_be_read_raises_its_own_error(tmp_path: Path):
    reader = await open_reader(tmp_path / "project", FILES)

    class Broken(Known):
        async def project(self, project_id: int, /) -> Project:
            raise LookupError("no such project")

    with pytest.raises(LookupError, match="no such project"):
        await gather_context(make_task(), Broken(), reader)


async def test_a_context_starts_with_the_common_part_and_repeats_the_task_at_the_end(
    tmp_path: Path,
):
    files = FILES | {"pyproject.toml": '[project]\nrequires-python = ">=3.11"\n'}
    reader = await open_reader(tmp_path / "project", files)

    one = await gather_context(make_task(), Known(), reader)
    other = await gather_context(make_task(title="Print a label"), Known(), reader)

    constant, _, rest = str(one).partition("# Task\n")
    assert str(other).startswith(constant)
    for part in ("without a network: `pytest`", 'requires-python = ">=3.11"', "Use plain words."):
        assert part in constant
    assert "shop/cart.py: Cart" in constant
    assert rest.startswith("Charge a card\n")
    assert one.reminder.startswith("# In short\nCharge a card. Write at least one new test")


async def test_a_context_shows_functions_in_tags_and_gives_a_file_at_most_a_quarter(tmp_path: Path):
    pytest.importorskip("tree_sitter_python")
    charge = "def charge(card):\n    return card.charge()\n"
    files = {
        "shop/payment.py": "".join(f"def other{n}(): ...\n\n\n" for n in range(500)) + charge,
        "shop/many.py": "".join(charge.replace("charge(", f"charge_{n}(") for n in range(900)),
        "CHANGELOG.md": "Charge a card\n" * 50,
        "uv.lock": "Charge a card\n" * 50,
    }
    reader = await open_reader(tmp_path / "project", files)

    context = await gather_context(make_task(), Known(), reader, longest=16_000)

    shown = context.files["shop/payment.py"]
    assert f'<file path="shop/payment.py" lines="1501-1502">\n{charge}</file>' in shown
    assert "def other3()" not in shown
    assert 1_000 < len(context.files["shop/many.py"]) < 4_500
    assert set(context.files) == {"shop/payment.py", "shop/many.py"}
    named = await gather_context(make_task(files=("shop/payment.py",)), Known(), reader)
    assert "def other3()" in named.files["shop/payment.py"]
