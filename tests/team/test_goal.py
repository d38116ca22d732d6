"""One goal of a team from its tasks to merged code: with a diamond of dependencies, corrections, a
conflict, a question to a person and a task that fails. Real git and real tests; only the LLM is
scripted."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bae.exceptions import BaeLMError
from bae.team.models import PlannedTask, TaskStatus
from bae.team.store import Store
from bae.team.test_runs import run_tests
from bounded import BOUND
from git_repositories import git, list_leftovers
from team_parts import JEST, a_project, edits
from team_scripts import TeamScript, run_team

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

S = TaskStatus


def with_test(name: str, call: str, expected: str) -> dict[str, str]:
    said = f'said="$({call})"\n[ "$said" = "{expected}" ] || {{ echo "{name}: $said"; exit 1; }}\n'
    return {f"{name}.test.sh": f". ./{name}.sh\n{said}"}


SETTINGS = "name=shop\ntax=\n"
FILES = {**JEST, "settings.sh": SETTINGS, "shop.test.sh": "true\n"}
MONEY = {
    "money.sh": 'cents() { echo "${1%.*}${1#*.}"; }\n',
    **with_test("money", "cents 1.10", "110"),
}
CART = {
    "cart.sh": ". ./money.sh\n"
    'total() { sum=0; for each; do sum=$((sum + $(cents "$each"))); done; echo $sum; }\n',
    **with_test("cart", "total 1.10 2.00", "310"),
}
TAX = {
    "settings.sh": SETTINGS.replace("tax=", "tax=20"),
    "tax.sh": ". ./settings.sh\nadd() { echo $(($1 + $1 * tax / 100)); }\n",
    **with_test("tax", "add 100", "120"),
}
CURRENCY = {
    "settings.sh": SETTINGS.replace("tax=", "tax=  # percent\ncurrency=EUR"),
    "currency.sh": '. ./settings.sh\nshow() { echo "$1 $currency"; }\n',
    **with_test("currency", "show 110", "110 EUR"),
}
RESOLVED = {"settings.sh": "name=shop\ntax=20  # percent\ncurrency=EUR\n"}
CHECKOUT = {
    "checkout.sh": '. ./cart.sh\n. ./tax.sh\npay() { add "$(total "$@")"; }\n',
    **with_test("checkout", "pay 1.00", "120"),
}
ANSWER = "Yes, it is 5.00."
SHIPPING = {
    "shipping.sh": "price() { echo 500; }\n",
    **with_test("shipping", "price", "500"),
}
PLAN = [
    PlannedTask(key="money", title="Read amounts of money"),
    PlannedTask(key="cart", title="Add up a cart", depends_on=("money",)),
    PlannedTask(key="tax", title="Add tax", depends_on=("money",)),
    PlannedTask(key="checkout", title="Pay", depends_on=("cart", "tax")),
    PlannedTask(key="currency", title="Show amounts", depends_on=("money",)),
    PlannedTask(key="shipping", title="Price of shipping"),
    PlannedTask(key="warehouse", title="Talk to the warehouse"),
    PlannedTask(key="stock", title="Show what is in stock", depends_on=("warehouse",)),
]
SCRIPT = {
    "money": edits(MONEY),
    "cart": [
        edits({**CART, "cart.sh": CART["cart.sh"].replace("sum + ", "")}),
        edits({**CART, "cart.sh": CART["cart.sh"].replace("sum +", "sum -")}),
        edits({"cart.sh": CART["cart.sh"]}),
    ],
    "tax": edits(TAX),
    "checkout": edits(CHECKOUT),
    "currency": [edits(CURRENCY), edits(RESOLVED)],
    "shipping": lambda prompt: (
        edits(SHIPPING) if ANSWER in prompt else "QUESTION: Is shipping a flat price, and which?"
    ),
    "warehouse": [BaeLMError("the model cannot be reached")],
}


class Watcher:
    """Sees the events of a team, as a person at a board does."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._seen: dict[tuple[str, str], asyncio.Event] = {}

    async def broadcast(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.event(message["type"], message.get("task_id"), message.get("status")).set()

    def event(self, *what: Any) -> asyncio.Event:
        return self._seen.setdefault(what, asyncio.Event())


async def test_a_team_completes_a_goal_of_eight_tasks(tmp_path: Path) -> None:
    watcher = Watcher()
    async with a_project(tmp_path, *PLAN, files=FILES, update_checkout=True) as (
        store,
        project,
        added,
    ):
        ids = {task.key: task.id for task in added}

        async def told(key: str, attempt: int) -> None:
            if (key, attempt) == ("currency", 1):  # so that it starts before tax is merged
                await watcher.event("task_status_changed", ids["tax"], S.COMPLETED).wait()

        async def answer() -> None:
            await watcher.event("task_status_changed", ids["shipping"], S.BLOCKED).wait()
            async with await Store.open(store.path) as other:  # as another process does
                (asked,) = [
                    blocker
                    for blocker in await other.blockers(project.id, open_only=True)
                    if blocker.task_id == ids["shipping"]
                ]
                assert asked.question == "Is shipping a flat price, and which?"
                await other.answer_blocker(asked.id, ANSWER)

        lm = TeamScript(SCRIPT, told)
        async with asyncio.timeout(BOUND * 8), asyncio.TaskGroup() as group:
            group.create_task(answer())
            summary = await run_team(
                project, store, lm, ws_manager=watcher, max_agents=6, wait=True
            )
        tasks = {task.key: task for task in await store.tasks(project.id)}
        attempts = {key: await store.attempts(id) for key, id in ids.items()}
        events = await store.events(project.id)
    done = {"money", "cart", "tax", "checkout", "currency", "shipping"}
    assert {key for key, task in tasks.items() if task.status is S.COMPLETED} == done
    assert tasks["warehouse"].status is S.FAILED
    assert "the model cannot be reached" in tasks["warehouse"].reason
    assert tasks["stock"].status is S.BLOCKED
    assert "warehouse" in tasks["stock"].reason
    assert summary is not None
    # Corrected, and told why.
    outcomes = {key: [attempt.outcome for attempt in tried] for key, tried in attempts.items()}
    assert outcomes["cart"] == ["failed", "failed", "passed"]
    assert outcomes["currency"][0] == "conflict"
    assert "cart: 200" in attempts["cart"][0].failure
    again = next(p for p, asked in zip(lm.prompts, lm.asked, strict=True) if asked == ("cart", 2))
    assert "cart: 200" in again
    resolving = lm.prompts[lm.asked.index(("currency", 2))]
    assert "<<<<<<<" in resolving
    times = Counter(key for key, _ in lm.asked)
    assert times == {"cart": 3, "currency": 2, "shipping": 2, "warehouse": 2} | dict.fromkeys(
        ("money", "tax", "checkout"), 1
    )
    # One commit a task, in the order of the dependencies; the tests of the whole pass.
    root = Path(project.root)
    log = git(root, "log", "--format=%s", "--reverse").split("\n")
    assert sorted(log[1:]) == sorted(row.title for row in PLAN if row.key in done)
    order = [next(row.key for row in PLAN if row.title == title) for title in log[1:]]
    for planned_task in PLAN:
        for needed in planned_task.depends_on if planned_task.key in done else ():
            assert order.index(needed) < order.index(planned_task.key)
    report = await run_tests(project, root, timeout=BOUND)
    assert report.passed
    assert len(report.cases) == 7
    assert git(root, "status", "--porcelain") == ""
    assert list_leftovers(root) == []
    assert [event.number for event in events] == list(range(1, len(events) + 1))
