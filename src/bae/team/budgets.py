"""The budgets of a team: one for each task and one for a run. Every LLM call is reserved in the
store before the call is sent. So concurrent calls cannot exceed a budget, and a restart does not
reset a budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from bae import BudgetError
from bae.lm import Budget, Policy, Usage, metered
from bae.lm.policies.budget import estimate_tokens
from bae.team import tables
from bae.team.tables import sa

if TYPE_CHECKING:
    from bae import LM
    from bae.lm import Answer, Backend, Prompt
    from bae.team.models import Task
    from bae.team.store import Store

ANSWER_TOKENS: Final = 2000
"""The tokens reserved for an answer if the LM has no `max_tokens`."""
_NO_LIMITS: Final = Budget()
_LIMITS: Final = ("calls", "tokens", "cost")
_LEAST_DOLLARS: Final = 1e-6
"""The dollars that must be left before a coding program begins a turn."""
TASK_BUDGET: Final = Budget(tokens=1_000_000)
"""The default budget of a task."""

BudgetScope = Literal["task", "run"]


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent, including the reservations of calls in progress and of calls that a killed
    process did not finish."""

    calls: int = 0
    tokens: int = 0
    cost: float | None = 0.0
    """Dollars, without the `unpriced` calls. None if the cost of no call is known."""
    unpriced: int = 0
    """The number of calls whose cost is unknown."""


@dataclass(frozen=True, slots=True)
class RunSpending:
    """What a run spent, and the limits of the run's budget."""

    spent: Spent
    """What the run spent so far."""
    calls: int | None = None
    """The highest number of LLM calls. None means no limit."""
    tokens: int | None = None
    """The highest number of tokens. None means no limit."""
    cost: float | None = None
    """The most dollars. None means no limit."""


async def begin_run(store: Store, project_id: int, budget: Budget | None = None) -> int:
    """Begin a run with a budget, and return the run's number. If the last run did not finish, that
    run continues with the new budget, and what it spent counts."""
    limits = {name: getattr(budget, name) for name in _LIMITS if budget is not None}

    def begin(db: sa.Connection) -> int:
        last = sa.select(tables.runs).filter_by(project_id=project_id)
        last = last.order_by(tables.runs.c.id.desc()).limit(1)
        last_runs = tables.rows(db, last)
        if last_runs and not last_runs[0]["finished"]:
            number = last_runs[0]["id"]
            change = sa.update(tables.runs).filter_by(id=number).values(budget=limits or None)
            db.execute(change)
            return number
        values: dict[str, Any] = {"project_id": project_id, "finished": False}
        return tables.insert(db, tables.runs, **values, budget=limits or None)

    return await store.write(begin)


async def read_run_spending(store: Store, project_id: int) -> RunSpending | None:
    """Return what a project's last run spent, with its limits. None before the first run."""

    def read(db: sa.Connection) -> RunSpending | None:
        last = sa.select(tables.runs).filter_by(project_id=project_id)
        last_runs = tables.rows(db, last.order_by(tables.runs.c.id.desc()).limit(1))
        if not last_runs:
            return None
        limits: dict[str, Any] = last_runs[0]["budget"] or {}
        return RunSpending(_sum_spent(db, run_id=last_runs[0]["id"]), **limits)

    return await store.read(read)


async def finish_run(store: Store, run: int) -> None:
    """Store that a run is finished. The next run then starts with nothing spent."""
    change = sa.update(tables.runs).filter_by(id=run).values(finished=True)
    await store.write(lambda db: db.execute(change).rowcount)


async def read_spent(
    store: Store,
    *,
    project_id: int | None = None,
    task_id: int | None = None,
    run: int | None = None,
) -> Spent:
    """Return what was spent on a project, on a task, in a run, or on a task in a run. Without a
    filter, return what was spent in the whole store. Reservations are included."""
    filters = {"project_id": project_id, "task_id": task_id, "run_id": run}
    return await store.read(lambda db: _sum_spent(db, **filters))


async def read_spent_by_task(store: Store, project_id: int) -> dict[int, Spent]:
    """Return what was spent on each task of a project, by task id. Reservations are included. Tasks
    that spent nothing are left out."""
    task_id = tables.spending.c.task_id
    query = sa.select(task_id, *_SPENDING_SUMS).filter_by(project_id=project_id).group_by(task_id)
    rows = await store.read(lambda db: db.execute(query).all())
    return {task: _make_spent(*sums) for task, *sums in rows}


class Budgets:
    """Checks every LLM call of a run against two budgets. `per_run` limits all calls of the run.
    `per_task` limits all calls of one task, including calls in earlier runs. The limits are
    `calls`, `tokens` and `cost` of a `Budget`."""

    def __init__(
        self,
        store: Store,
        run: int,
        *,
        per_run: Budget | None = None,
        per_task: Budget | None = None,
    ) -> None:
        for budget in (per_run, per_task):
            if budget is not None and budget.seconds is not None:
                raise ValueError(f"{budget!r}: limit the time of a team with timeout=")
        self.store = store
        self.run = run
        self.per_run = per_run or _NO_LIMITS
        self.per_task = per_task or _NO_LIMITS
        self.refused: dict[int, BudgetScope] = {}
        """The budget that refused a call of a task, by task id."""
        self._in_progress = 0
        self._settled = asyncio.Event()

    def limit(self, task: Task, lm: LM) -> LM:
        """Return an LM that asks `lm` and charges each call to the budgets of a task."""
        return Reserved(lm, self, task)

    async def reserve(self, task: Task, backend: Policy, prompt: Prompt) -> ReservedCall:
        """Reserve the most that a call may spend, and return the reservation for `settle`. If the
        rest of a budget is reserved by calls in progress, wait until a call ends. Raises
        BudgetError if the call does not fit into the budgets. A call inside another call raises
        this error without waiting, because the outer call cannot end first."""
        input_tokens = estimate_tokens(prompt)
        innermost: Backend = backend
        while isinstance(innermost, Policy):
            innermost = innermost.inner
        answer_tokens: object = getattr(innermost, "max_tokens", None)
        answer_tokens = answer_tokens if isinstance(answer_tokens, int) else ANSWER_TOKENS
        cost = backend.least_cost(Usage(1, input_tokens, answer_tokens))
        if cost is None:
            for budget in (self.per_run, self.per_task):
                if budget.cost is not None:
                    raise budget.cost_unknown(backend.model)
        needed = Spent(1, input_tokens + answer_tokens, cost)
        while True:
            settled = self._settled
            reserved = await self.store.write(lambda db: self._reserve(db, task, needed))
            if isinstance(reserved, int):
                self._in_progress += 1
                return ReservedCall(self, task, needed, [reserved])
            if _call_in_progress.get() or (not self._in_progress and not settled.is_set()):
                self.refused[task.id], error = reserved
                raise error
            await settled.wait()

    async def reserve_round(self, call: ReservedCall) -> None:
        """Reserve one more request of a call in progress. The reserved tokens and dollars move from
        the earlier request to the new request, because the usage is known only when the call ends.
        Raises BudgetError if the request does not fit into the budgets."""

        def reserve(db: sa.Connection) -> int | tuple[BudgetScope, BudgetError]:
            earlier_round = sa.update(tables.spending).filter_by(id=call.numbers[-1])
            db.execute(earlier_round.values(tokens=0, cost=0.0))
            return self._reserve(db, call.task, call.needed)

        reserved = await self.store.write(reserve)
        if not isinstance(reserved, int):
            self.refused[call.task.id], error = reserved
            raise error
        call.numbers.append(reserved)

    async def settle(self, call: ReservedCall, used: Usage | None) -> None:
        """Replace a reservation with the usage of the call. If `used` is None, the usage is
        unknown, and the reservation stays. If `used` has no calls, no request was sent, and the
        reservation is deleted."""
        reservation, *rounds = call.numbers

        def settle(db: sa.Connection) -> None:
            if used is None:
                return
            for number in rounds:
                db.execute(sa.delete(tables.spending).filter_by(id=number))
            if not used.calls:
                db.execute(sa.delete(tables.spending).filter_by(id=reservation))
                return
            values: dict[str, Any] = {"tokens": used.tokens, "unpriced": used.cost is None}
            values |= {} if used.cost is None else {"cost": used.cost}
            db.execute(sa.update(tables.spending).filter_by(id=reservation).values(values))
            if used.calls > 1:  # the rounds of a conversation, or retries
                query = sa.select(tables.spending).filter_by(id=reservation)
                stored_row = tables.rows(db, query)[0]
                extra_row = {**stored_row, "tokens": 0, "cost": 0.0}
                del extra_row["id"]
                for _ in range(used.calls - 1):
                    tables.insert(db, tables.spending, **extra_row)

        try:
            await self.store.write(settle)
        finally:
            self._in_progress -= 1
            self._settled.set()
            self._settled = asyncio.Event()

    async def begin_turn(
        self, task: Task, program: str, *, knows_cost: bool
    ) -> tuple[int, float | None]:
        """Begin a turn of a coding program. A turn counts as one call. Returns the turn's number
        for `charge`, and the dollars that are left, or None if the cost is not limited. Raises
        BudgetError if a budget is spent, or if the cost is limited and the program does not report
        its cost."""
        limits = [
            limited_budget.cost
            for limited_budget in (self.per_run, self.per_task)
            if limited_budget.cost is not None
        ]
        if limits and not knows_cost:
            raise BudgetError(
                f"the cost is limited to ${min(limits):g}, and {program} does not report its cost",
                code="bae-budget-cost-unknown",
                limit="cost",
                bound=min(limits),
                used=0.0,
                scope=program,
                budget=self.per_run,
                fix="limit tokens instead, as with tokens=1000000",
            )

        def begin(db: sa.Connection) -> tuple[int, float | None] | tuple[BudgetScope, BudgetError]:
            reserved = self._reserve(db, task, Spent(1, 1, _LEAST_DOLLARS))
            if isinstance(reserved, tuple):
                return reserved
            scopes = (self.per_task, {"task_id": task.id}), (self.per_run, {"run_id": self.run})
            dollars_left = [
                budget.cost - (_sum_spent(db, **filters).cost or 0.0) + _LEAST_DOLLARS
                for budget, filters in scopes
                if budget.cost is not None
            ]
            return reserved, min(dollars_left, default=None)

        outcome = await self.store.write(begin)
        if isinstance(outcome[1], BudgetError):
            self.refused[task.id] = cast(BudgetScope, outcome[0])
            raise outcome[1]
        return cast("tuple[int, float | None]", outcome)

    async def charge(self, task: Task, turn: int, used: Usage) -> None:
        """Store what a program's turn has used so far. Raises BudgetError if a budget is exceeded.
        The caller must end the program then."""

        def charge(db: sa.Connection) -> tuple[BudgetScope, BudgetError] | None:
            cost = {"cost": used.cost or 0.0, "unpriced": used.cost is None}
            values = {"tokens": used.tokens, **cost}
            db.execute(sa.update(tables.spending).filter_by(id=turn).values(values))
            return self._find_refusal(db, task, Spent())

        refused = await self.store.write(charge)
        if refused is not None:
            self.refused[task.id], error = refused
            raise error

    def _find_refusal(
        self, db: sa.Connection, task: Task, needed: Spent
    ) -> tuple[BudgetScope, BudgetError] | None:
        spent = _sum_spent(db, task_id=task.id)
        if error := _find_excess(self.per_task, f"task {task.key!r}", spent, needed):
            return "task", error
        if error := _find_excess(self.per_run, "the run", _sum_spent(db, run_id=self.run), needed):
            return "run", error
        return None

    def _reserve(
        self, db: sa.Connection, task: Task, needed: Spent
    ) -> int | tuple[BudgetScope, BudgetError]:
        if refused := self._find_refusal(db, task, needed):
            return refused
        about = {"project_id": task.project_id, "task_id": task.id, "run_id": self.run}
        cost = {"cost": needed.cost or 0.0, "unpriced": needed.cost is None}
        return tables.insert(db, tables.spending, **about, tokens=needed.tokens, **cost)


@dataclass(slots=True)
class ReservedCall:
    """A call in progress, with its reservations in the budgets of a task."""

    budgets: Budgets
    task: Task
    needed: Spent
    """The most that one request may spend."""
    numbers: list[int]
    """The numbers of the stored reservations, one for each request."""
    rounds: int = 0
    """The number of rounds of a conversation that have begun in this call."""


_call_in_progress: ContextVar[ReservedCall | None] = ContextVar("bae_team_call", default=None)
"""The reserved call that the current code runs in, or None. If an LM asks another LM, the second
call is inside the first."""


async def reserve_round() -> None:
    """Reserve the next round of a conversation that runs inside one LM call, as with `ScriptedLM`.
    The call's own reservation covers the first round. Outside of a call this does nothing, because
    an LM that is called once for each round reserves each call. Raises BudgetError if the round
    does not fit into the budgets."""
    if (call := _call_in_progress.get()) is not None:
        call.rounds += 1
        if call.rounds > 1:
            await call.budgets.reserve_round(call)


class Reserved(Policy):
    """An LM for one task. It reserves every call in the budgets of the team before the call is
    sent."""

    def __init__(self, lm: LM | str, budgets: Budgets, task: Task) -> None:
        super().__init__(lm)
        self.team_budgets = budgets
        self.task = task

    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the inner LM. Raises BudgetError if the budgets have too little left."""
        call = await self.team_budgets.reserve(self.task, self, prompt)
        reset_token = _call_in_progress.set(call)
        used: Usage | None = None
        reported: list[Usage] = []
        try:
            with metered() as reported:  # requests that failed
                answer = await self.ask(prompt)
            used = self._estimate_usage(prompt, answer, reported)
            return answer
        except BaseException as error:
            # The usage of a request that was cut off is unknown, so its reservation stays. If no
            # request was sent, nothing is reported, and the reservation is deleted.
            cut_off = reported and not isinstance(error, Exception)
            unknown = cut_off or any(usage.cost is None for usage in reported)
            used = None if unknown else Usage.total(reported)
            raise
        finally:
            _call_in_progress.reset(reset_token)
            await self.team_budgets.settle(call, used)

    def _estimate_usage(self, prompt: Prompt, answer: Answer, reported: Iterable[Usage]) -> Usage:
        """Return the usage of a call, with estimates for tokens and cost that the LM did not
        report."""
        used = Usage.total([*reported, answer.usage])
        missing = used.calls and not used.input_tokens
        if missing:
            output_tokens = used.output_tokens or estimate_tokens(answer.text)
            used = replace(used, input_tokens=estimate_tokens(prompt), output_tokens=output_tokens)
        if used.cost is None:  # if the least cost is 0, the price is unknown
            return replace(used, cost=self.least_cost(used) or None)
        return replace(used, cost=used.cost or self.least_cost(used)) if missing else used


def _find_excess(budget: Budget, name: str, spent: Spent, needed: Spent) -> BudgetError | None:
    for limit in ("calls", "tokens", "cost"):
        bound = getattr(budget, limit)
        used, next_usage = getattr(spent, limit) or 0, getattr(needed, limit) or 0
        if bound is None or used + next_usage <= bound:
            continue
        unit = "$" if limit == "cost" else ""
        return BudgetError(
            f"{name} has a budget of {unit}{bound:g} {limit}, {unit}{used:g} of it are spent or"
            f" reserved, and the next call may take {unit}{next_usage:g}",
            code="bae-team-budget",
            limit=limit,
            bound=bound,
            used=used,
            scope=name,
            budget=budget,
            fix="raise the budget; nothing was sent",
        )
    return None


def _sum_spent(db: sa.Connection, **filters: int | None) -> Spent:
    query = sa.select(*_SPENDING_SUMS).select_from(tables.spending)
    query = query.filter_by(**{name: value for name, value in filters.items() if value is not None})
    return _make_spent(*db.execute(query).one())


def _make_spent(calls: int, tokens: int, cost: float, unpriced: int) -> Spent:
    return Spent(calls, tokens, None if unpriced and not cost else cost, unpriced)


_SPENDING_SUMS: Final = (
    sa.func.count(),
    sa.func.coalesce(sa.func.sum(tables.spending.c.tokens), 0),
    sa.func.coalesce(sa.func.sum(tables.spending.c.cost), 0.0),
    sa.func.count(sa.case((tables.spending.c.unpriced, 1))),
)
