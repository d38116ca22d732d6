"""The budget of a team: reserved before each call, for concurrent calls, and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from bae import BaeLMError, BudgetError, Usage
from bae.lm import LM, Answer, Backend, Budget, Budgeted, Policy, Prompt
from bae.team.budgets import (
    Budgets,
    Spent,
    begin_run,
    finish_run,
    read_spent,
    read_spent_by_task,
)
from bae.team.models import PlannedTask, Project, Task
from bae.team.store import Store
from bae.testing import ScriptedLM
from policy_parts import REPLY, Ask, Held, Reply, graph, settle


class Priced(Backend):
    """Answers with a usage of its own: a dollar for a thousand tokens."""

    model = "priced"
    max_tokens = 400

    def __init__(self, *outcomes: Usage | BaseException) -> None:
        super().__init__(retries=0)
        self.outcomes = list(outcomes)

    async def answer(self, prompt: Prompt) -> Answer:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return Answer(REPLY, outcome)

    def least_cost(self, usage: Usage) -> float | None:
        return usage.tokens / 1000


class Watched(Held):
    """Tells when it is asked."""

    def __init__(self, usage: Usage | None = None) -> None:
        super().__init__(usage)
        self.is_asked = asyncio.Event()

    async def answer(self, prompt: Prompt) -> Answer:
        self.is_asked.set()
        return await super().answer(prompt)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[Store]:
    async with await Store.open(tmp_path / "team.db") as opened:
        yield opened


async def two_tasks(store: Store) -> tuple[Task, Task]:
    about = {"name": "shop", "root": "/shop", "branch": "bae/team"}
    project = await store.save_project(Project(id=0, **about, test_command=("pytest",)))
    planned = [PlannedTask(key=key, title=f"The {key}") for key in ("a", "b")]
    first, second = await store.add_tasks(project.id, planned)
    return first, second


async def ask(lm: LM) -> None:
    await graph.arun(Ask(), lm=lm)


async def test_the_usage_of_a_call_replaces_its_reservation(store: Store):
    task, _ = await two_tasks(store)
    run = await begin_run(store, task.project_id)
    lm = Budgets(store, run).limit(task, Priced(Usage(1, 100, 50, cost=0.15)))

    await ask(lm)

    assert await read_spent(store, task_id=task.id) == Spent(1, 150, 0.15)
    assert await read_spent(store, run=run) == Spent(1, 150, 0.15)


async def test_retries_inside_an_lm_are_counted(store: Store):
    task, _ = await two_tasks(store)
    budgets = Budgets(store, await begin_run(store, task.project_id), per_task=Budget(calls=3))

    await ask(budgets.limit(task, Priced(Usage(3, 300, 150, cost=0.45))))

    assert await read_spent(store, task_id=task.id) == Spent(3, 450, 0.45)
    with pytest.raises(BudgetError, match="3 of it are spent"):
        await ask(budgets.limit(task, Priced()))


async def test_a_call_that_may_exceed_the_budget_is_not_sent(store: Store):
    task, other = await two_tasks(store)
    lm = Priced(Usage(1, 100, 400, cost=0.5), Usage(1, 100, 400, cost=0.5))
    run = await begin_run(store, task.project_id)
    budgets = Budgets(store, run, per_task=Budget(cost=0.8), per_run=Budget(tokens=1200))

    await ask(budgets.limit(task, lm))
    with pytest.raises(BudgetError, match=r"task 'a' has a budget of \$0.8 cost, \$0.5 of it") as e:
        await ask(budgets.limit(task, lm))
    assert (e.value.code, e.value.limit, e.value.bound) == ("bae-team-budget", "cost", 0.8)
    await ask(budgets.limit(other, lm))
    budgets.per_task = Budget()
    with pytest.raises(BudgetError, match="the run has a budget of 1200 tokens, 1000 of it"):
        await ask(budgets.limit(other, lm))

    assert lm.outcomes == []
    assert budgets.refused == {task.id: "task", other.id: "run"}


async def test_a_restart_does_not_reset_a_budget(tmp_path: Path):
    backend = Watched()
    async with await Store.open(tmp_path / "team.db") as store:
        task, _ = await two_tasks(store)
        run = await begin_run(store, task.project_id)
        lm = Budgets(store, run).limit(task, backend)
        cut = asyncio.create_task(ask(lm))
        await backend.is_asked.wait()
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut

    async with await Store.open(tmp_path / "team.db") as store:
        assert await begin_run(store, task.project_id) == run
        assert (await read_spent(store, run=run)).tokens > 2000  # of a call that was cut off
        budgets = Budgets(store, run, per_run=Budget(calls=1))
        with pytest.raises(BudgetError, match="the run has a budget of 1 calls"):
            await ask(budgets.limit(task, backend))
        await finish_run(store, run)
        later = await begin_run(store, task.project_id)
        assert later != run
        assert await read_spent(store, run=later) == Spent()


async def test_concurrent_calls_wait_for_reservations_and_never_exceed_the_budget(store: Store):
    task, other = await two_tasks(store)
    lm = Watched(Usage(1, 10, 10))
    budgets = Budgets(store, await begin_run(store, 1), per_run=Budget(tokens=3000))

    async with asyncio.TaskGroup() as group:
        for charged_task in (task, other, task):
            group.create_task(ask(budgets.limit(charged_task, lm)))
        await lm.is_asked.wait()
        await read_spent(store)
        await settle()
        assert len(lm.asked) == 1  # the others may exceed the budget, or not: they wait
        lm.release()

    assert lm.most == 1
    assert await read_spent(store, run=budgets.run) == Spent(3, 60, 0.0)


async def test_a_lost_call_costs_its_maximum(store: Store):
    task, _ = await two_tasks(store)
    unsent, lost = BaeLMError("no key", sent=False), BaeLMError("cut off")
    lm = Budgets(store, await begin_run(store, 1)).limit(task, Priced(unsent, lost))

    with pytest.raises(BaeLMError):
        await ask(lm)
    assert await read_spent(store) == Spent()
    with pytest.raises(BaeLMError):
        await ask(lm)

    spent = await read_spent(store)
    assert spent.calls == 1
    assert spent.tokens > 400


async def test_an_lm_without_reported_usage_is_charged_an_estimate(store: Store):
    task, _ = await two_tasks(store)
    lm = ScriptedLM({Reply: [{"text": "this"}]})
    budgets = Budgets(store, await begin_run(store, 1), per_task=Budget(tokens=5000))

    await ask(budgets.limit(task, lm))

    spent = await read_spent(store, task_id=task.id)
    assert spent.calls == 1
    assert 10 < spent.tokens < 1000


async def test_an_answer_without_prompt_tokens_or_cost_is_charged_an_estimate(store: Store):
    task, _ = await two_tasks(store)
    budgets = Budgets(store, await begin_run(store, 1), per_task=Budget(tokens=5000, cost=9.0))

    await ask(budgets.limit(task, Priced(Usage(1, -500, 3))))

    spent = await read_spent(store, task_id=task.id)
    assert spent.tokens > 10
    assert spent.cost == spent.tokens / 1000


async def test_a_sum_counts_the_calls_with_unknown_cost(store: Store):
    class Unpriced(Priced):
        def least_cost(self, usage: Usage) -> float | None:
            return None

    task, other = await two_tasks(store)
    budgets = Budgets(store, await begin_run(store, 1))
    used = Usage(1, 100, 50, cost=None)

    await ask(budgets.limit(task, Unpriced(used)))
    await ask(budgets.limit(task, Unpriced(used)))
    lost = Unpriced(BaeLMError("cut off"))
    with pytest.raises(BaeLMError):
        await ask(budgets.limit(other, lost))
    turn, _ = await budgets.begin_turn(other, "codex", knows_cost=False)
    await budgets.charge(other, turn, Usage(1, 7, 3, cost=None))

    assert await read_spent(store, task_id=task.id) == Spent(2, 300, None, 2)
    assert (await read_spent_by_task(store, 1))[other.id].cost is None
    await ask(budgets.limit(task, Priced(Usage(1, 100, 50, cost=0.15))))
    assert await read_spent(store, task_id=task.id) == Spent(3, 450, 0.15, 2)
    assert (await read_spent(store)).unpriced == 4


async def test_a_free_model_costs_nothing(store: Store):
    task, _ = await two_tasks(store)
    budgets = Budgets(store, await begin_run(store, 1))
    await ask(budgets.limit(task, Priced(Usage(1, 100, 50, cost=0.0))))
    assert await read_spent(store) == Spent(1, 150, 0.0)


async def test_the_lm_of_a_task_lists_its_inner_budgets(store: Store):
    task, _ = await two_tasks(store)
    budgets = Budgets(store, await begin_run(store, 1))
    inside = Budget(calls=3)
    limited = budgets.limit(task, Budgeted(ScriptedLM({}), inside))
    assert isinstance(limited, Policy)
    assert limited.budgets() == [inside]


async def test_a_cost_limit_needs_a_price(store: Store):
    task, _ = await two_tasks(store)

    class Unknown(Held):
        def least_cost(self, usage: Usage) -> float | None:
            return None

    budgets = Budgets(store, await begin_run(store, 1), per_run=Budget(cost=1.0))
    with pytest.raises(BudgetError) as caught:
        await ask(budgets.limit(task, Unknown()))
    assert caught.value.code == "bae-budget-cost-unknown"
    with pytest.raises(ValueError, match="timeout="):
        Budgets(store, 1, per_run=Budget(seconds=5))


async def test_the_spending_of_a_dropped_task_stays_spent(store: Store):
    task, _ = await two_tasks(store)
    run = await begin_run(store, task.project_id)
    await ask(Budgets(store, run).limit(task, Priced(Usage(1, 100, 50, cost=0.15))))
    await store.drop_task(task.id)
    assert await read_spent(store, run=run) == Spent(1, 150, 0.15)
