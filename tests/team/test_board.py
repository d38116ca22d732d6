"""The board of a team: its display at two widths, and its protection from hostile texts."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("rich")

from rich.cells import cell_len
from rich.console import Console

from bae.cli.live.drawing import ASCII
from bae.cli.team_board import Board, read_board, watch
from bae.cli.team_output import spent_text
from bae.team import tables
from bae.team.budgets import Spent, begin_run
from bae.team.events import ActivityUpdate, CommitCreated, CorrectionAttempt, TestResult
from bae.team.models import AgentInfo, PlannedTask, Project, TaskStatus
from bae.team.store import Store

PENDING, READY, IN_PROGRESS = TaskStatus.PENDING, TaskStatus.READY, TaskStatus.IN_PROGRESS
BLOCKED, FAILED, COMPLETED = TaskStatus.BLOCKED, TaskStatus.FAILED, TaskStatus.COMPLETED
COMMIT = "c0ffee" * 6 + "beef"
KEYS = ("add-store", "add-api", "add-page", "add-tests", "write-docs", "release")


@pytest.fixture(autouse=True)
def _clock_in_london(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with await Store.open(tmp_path / "team.db") as opened:
        project = Project(id=0, name="shop", root="/shop", branch="b", test_command=("pytest",))
        await opened.save_project(project)
        planned = [PlannedTask(key=key, title=f"The {key} of the shop") for key in KEYS[:-1]]
        await opened.add_tasks(1, planned)
        await opened.add_tasks(
            1, [PlannedTask(key="release", title="The end", depends_on=KEYS[:2])]
        )
        yield opened


async def start(store: Store, task_id: int) -> None:
    await store.move(task_id, PENDING, READY)
    await store.move(task_id, READY, IN_PROGRESS)


async def work(store: Store) -> None:
    """What happens in a team on one day."""
    for task_id in (1, 2, 3, 4):
        await start(store, task_id)
    spent: Any = {"run_id": await begin_run(store, 1), "project_id": 1, "task_id": 1}
    spent |= {"tokens": 1204, "cost": 0.0041}
    await store.write(lambda db: tables.insert(db, tables.spending, **spent))
    await store.save_agent(1, AgentInfo(id="backend-1", kind="backend"))
    agent = AgentInfo(id="backend-2", kind="backend", status="working", task_id=2)
    await store.save_agent(1, agent)
    about: Any = {"project_id": 1, "task_id": 1}
    await store.add_events(
        [
            TestResult(**about, passed=True, counts={"passed": 12, "failed": 0}),
            CommitCreated(**about, commit=COMMIT, files=("store.py", "test_store.py")),
        ]
    )
    await store.move(1, IN_PROGRESS, COMPLETED, commit=COMMIT)
    about["task_id"] = 2
    await store.add_events(
        [
            ActivityUpdate(**about, text="writes api.py", agent_id="backend-2"),
            TestResult(**about, passed=False, counts={"passed": 3, "failed": 1}),
            CorrectionAttempt(**about, attempt=2, failure="def test_get():\n>  assert 1 == 2"),
        ]
    )
    await store.add_blocker(3, "Which color should the button of the page have, and why?")
    await store.move(3, IN_PROGRESS, BLOCKED, reason="it waits for an answer")
    await store.move(4, IN_PROGRESS, FAILED, reason="the same failure three times: no such table")


async def board_of(store: Store) -> tuple[Board, float]:
    """The board, and a moment 4 s after the last event, which was at 12:00:00."""
    board = await read_board(store, 1)
    events = await store.events(1)
    board.add_events([event.model_copy(update={"at": 43_200.0}) for event in events])
    return board, 43_204.0


def lines_of(board: Board, width: int, height: int = 50, now: float = 0) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with console.capture() as shown:
        console.print(board.draw(width, height, now))
    return [line.rstrip() for line in shown.get().splitlines()]


# The board


@pytest.mark.parametrize("width", [80, 160])
async def test_the_board_has_tasks_with_reasons_agents_questions_and_events(
    store: Store, width: int
):
    await work(store)
    board, now = await board_of(store)
    expected = (Path(__file__).parent / "boards" / f"{width}.txt").read_text("utf-8")
    assert lines_of(board, width, now=now) == expected.splitlines()


def test_a_sum_with_unknown_costs_is_shown_as_a_minimum():
    assert spent_text(Spent(2, 1204, 0.42)) == "2 LM calls, 1,204 tokens, $0.42"
    assert spent_text(Spent(2, 1204, 0.42, 1)) == "2 LM calls, 1,204 tokens, at least $0.42"
    assert spent_text(Spent(2, 1204, None, 2)) == "2 LM calls, 1,204 tokens, cost unknown"
    assert spent_text(Spent(2, 1204, 0.0)) == "2 LM calls, 1,204 tokens"


async def test_a_low_terminal_shows_the_most_important_tasks(store: Store):
    await work(store)
    board, now = await board_of(store)
    lines = lines_of(board, 80, 12, now)
    assert len(lines) <= 12
    assert lines[2].startswith("⠋ in progress  add-api")
    assert lines[4] == "… 4 more: 1 failed, 2 pending, 1 completed"
    assert "bae team answer 1" in lines[-1]


async def test_a_terminal_without_unicode_gets_ascii(store: Store):
    await work(store)
    board, now = await board_of(store)
    board.signs = ASCII
    assert "".join(lines_of(board, 80, now=now)).isascii()


HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\u202edrowssap\x9b31m\ud800[bold]x[/bold]"


async def test_hostile_text_cannot_control_the_terminal(store: Store):
    await start(store, 1)
    await store.move(2, PENDING, BLOCKED, reason=HOSTILE)
    await store.add_blocker(1, HOSTILE)
    about: Any = {"project_id": 1, "task_id": 1}
    said = HOSTILE.replace("\ud800", "")
    await store.add_events(
        [
            ActivityUpdate(**about, text=said),
            TestResult(**about, passed=False, counts={said: 1}, problem=said),
            CorrectionAttempt(**about, attempt=1, failure=said),
        ]
    )
    board, now = await board_of(store)
    lines = lines_of(board, 160, now=now)
    assert len(lines) > 10
    assert all(cell_len(line) <= 160 for line in lines)
    lines += [
        line.plain for event in await store.events(1) if (line := board.describe_event(event))
    ]
    assert [line for line in lines if not line.isprintable()] == []
    assert sum("[bold]x[/bold]" in line for line in lines) > 4  # no markup is read


# Watching


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def until(output: io.StringIO, text: str) -> None:
    async with asyncio.timeout(20):
        while text not in output.getvalue():  # noqa: ASYNC110  a thread draws
            await asyncio.sleep(0.01)


async def test_events_are_printed_as_lines_without_a_terminal(store: Store):
    await start(store, 1)
    output = io.StringIO()
    task = asyncio.create_task(watch(store, 1, Console(file=output, width=40), after=3))
    await until(output, "in progress")
    async with await Store.open(store.path) as other:  # as another process does
        await other.add_blocker(1, "Which color should the button have?")
    await until(output, "color")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    lines = [line[10:] for line in output.getvalue().splitlines()]
    assert lines == [
        "add-store  in progress",
        'add-store  asks: Which color should the button have? (bae team answer 1 "...")',
    ]


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
async def test_the_last_events_before_the_end_are_shown(store: Store, kind: type[io.StringIO]):
    output = kind()
    console = Console(file=output, width=80, height=30, color_system=None)
    task = asyncio.create_task(watch(store, 1, console, after=0))
    await store.move(1, PENDING, READY)
    await until(output, "ready")
    await store.move(1, READY, IN_PROGRESS)
    await store.move(1, IN_PROGRESS, COMPLETED, commit=COMMIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "completed" in output.getvalue().splitlines()[-1]


async def test_the_board_shows_changes_of_another_process_at_once(store: Store):
    output = Terminal()
    console = Console(file=output, width=80, height=30, color_system=None)
    task = asyncio.create_task(watch(store, 1, console))
    await until(output, "6 pending")
    async with await Store.open(store.path) as other:
        await other.add_tasks(1, [PlannedTask(key="shipping", title="Ship it")], approved=False)
        await until(output, "added: shipping")
        await other.approve_tasks([7], by="ana")
        await until(output, "approved by ana: shipping")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "shop: 7 pending" in output.getvalue()


async def test_the_final_board_stays_on_the_terminal(store: Store):
    output = Terminal()
    console = Console(file=output, width=80, height=30, force_terminal=True, color_system=None)
    task = asyncio.create_task(watch(store, 1, console))
    await until(output, "6 pending")
    await start(store, 1)
    await until(output, "1 in progress, 5 pending")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    last = output.getvalue().rpartition("shop: ")[2]
    assert last.startswith("1 in progress, 5 pending")
    assert "\x1b" not in last  # nothing is drawn over it
