"""What budgets promise: nothing is sent that does not fit, whatever runs at once; everything in the
block is counted, and once; and an error says which budget, which limit and how far."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae import LM, BaeLMError, Dep, Graph, Map, Node, NodeConfig, Usage
from bae.exceptions import BudgetError, LimitError
from bae.lm import Answer, Backend, Budget, Budgeted, Cached, Prompt, Retry, report_usage
from bae.lm.policies.budget import estimate_tokens
from bae.testing import ScriptedLM
from bounded import BOUND
from end_node import EndNode
from policy_parts import REPLY, Ask, Gated, Held, Reply, at_once, busy, graph, prompt, run, settle
from toy_backend import FourMethods, ToyBackend

CHEAP = Usage(calls=1, input_tokens=30, output_tokens=10, cost=0.01)


class Paid(Backend):
    """Answers everything, and says what that cost."""

    model = "paid"

    def __init__(self, usage: Usage = CHEAP, **options: Any) -> None:
        super().__init__(**options)
        self.usage = usage
        self.calls = 0

    async def answer(self, prompt: Prompt) -> Answer:
        self.calls += 1
        await asyncio.sleep(0)
        return Answer(REPLY, self.usage)

    def least_cost(self, usage: Usage) -> float | None:
        return 0.0


# --- usage that is no usage ---------------------------------------------------------------------

ODD = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.sampled_from([-1, 0, 10**400, -(10**400), True, "3", "much", b"", [], {}, object()]),
    st.sampled_from([1.7e308, Decimal("0.5")]),
)
REPORTED = st.builds(
    Usage,
    calls=ODD,
    input_tokens=ODD,
    output_tokens=ODD,
    cached_tokens=ODD,
    cost=ODD,
    attempts=ODD,
    seconds=ODD,
    models=st.one_of(st.just(()), st.lists(st.text() | ODD).map(tuple), st.text(), ODD),
)


class Reporting(FourMethods):
    """An LLM that is no backend, and reports the given usage."""

    def __init__(self, usages: list[Usage]) -> None:
        self.usages = usages
        self.calls = 0

    async def fill(self, target: Any, *rest: Any, **named: Any) -> Any:
        self.calls += 1
        report_usage(self.usages[self.calls % len(self.usages)])
        return target(text="this")


class Answering(Paid):
    """A backend that reports the given usage, with answers or with errors."""

    def __init__(self, usages: list[Usage], *, fails: bool = False) -> None:
        super().__init__(retries=0)
        self.usages = usages
        self.fails = fails

    async def answer(self, prompt: Prompt) -> Answer:
        self.calls += 1
        usage = self.usages[self.calls % len(self.usages)]
        if self.fails:
            raise busy(usage=usage)
        return Answer(REPLY, usage)

    def least_cost(self, usage: Usage) -> Any:
        return self.usages[self.calls % len(self.usages)].cost


@settings(max_examples=40)
@given(
    st.lists(REPORTED, min_size=1, max_size=5),
    st.sampled_from(["answers", "errors", "another LM"]),
    st.sampled_from([{"calls": 10}, {"cost": 1.0}, {"tokens": 1000}]),
)
def test_a_budget_never_grows_and_is_never_exceeded_for_any_reported_usage(
    usages: list[Usage], how: str, limits: dict[str, Any]
):
    lm: Any = Reporting(usages) if how == "another LM" else Answering(usages, fails=how == "errors")
    budget = Budget(**limits)
    before = [0.0, 0, 0]

    async def ask() -> None:
        for _ in range(15):
            left, called = budget.remaining.cost, lm.calls
            try:
                with budget:
                    await graph.arun(Ask(), lm)
            except BudgetError:
                break
            except BaeLMError:
                pass
            assert left != 0 or lm.calls == called
            used = budget.usage
            after = [used.cost or before[0], used.calls, used.tokens]
            assert all(new >= old for new, old in zip(after, before, strict=True))
            before[:] = after
        assert budget.usage.calls >= lm.calls
        json.dumps(budget.dump(), allow_nan=False)

    run(ask)
    assert lm.calls <= limits.get("calls", 15)


async def test_an_answer_from_a_backends_own_cache_is_not_charged_as_a_call():
    class Remembers(Paid):
        async def answer(self, prompt: Prompt) -> Answer:
            return replace(await super().answer(prompt), usage=Usage(), sent=False)

    with Budget(calls=1) as budget:
        for _ in range(3):
            await graph.arun(Ask(), Remembers())
    assert budget.usage.calls == 0


class Estimated(Paid):
    """Ten cents for a thousand tokens, of answers and of failures."""

    def __init__(self, given: Usage | BaeLMError | BaseException) -> None:
        super().__init__(retries=0)
        self.given = given

    async def answer(self, prompt: Prompt) -> Answer:
        if isinstance(self.given, BaseException):
            raise self.given
        return Answer(REPLY, self.given)

    def least_cost(self, usage: Usage) -> float | None:
        return usage.tokens / 10_000


NOT_REPORTED: list[dict[str, Any]] = [
    {},
    {"input_tokens": -400, "output_tokens": -1},
    {"input_tokens": None, "output_tokens": None},
    {"input_tokens": float("nan"), "output_tokens": "many"},
    {"input_tokens": True, "output_tokens": False},
    {"input_tokens": 0.3},
    {"input_tokens": -1, "output_tokens": 3},
]


@pytest.mark.parametrize("counts", NOT_REPORTED, ids=str)
@pytest.mark.parametrize("how", ["answer", "error", "another LM"])
async def test_a_request_without_token_counts_is_charged_its_estimate(
    counts: dict[str, Any], how: str
):
    usage = Usage(calls=1, **counts)
    asked = prompt("x" * 400)
    estimate = estimate_tokens(asked)
    budget = Budget(tokens=1000, cost=1.0)
    if how == "answer":
        await Budgeted(Estimated(usage), budget).answer(asked)
    elif how == "error":
        with pytest.raises(BaeLMError):
            await Budgeted(Estimated(busy(usage=usage)), budget).answer(asked)
    else:
        await Budgeted(Reporting([usage]), budget).answer(asked)
    assert budget.usage.tokens == estimate
    assert budget.usage.cost == (0 if how == "another LM" else pytest.approx(estimate / 10_000))


async def test_output_tokens_above_the_estimate_are_charged():
    budget = Budget(tokens=1000)
    await Budgeted(Estimated(Usage(calls=1, output_tokens=900)), budget).answer(prompt())
    assert budget.usage.tokens == 900


async def test_a_priced_answer_without_a_cost_is_charged_its_minimum():
    budget = Budget(cost=1.0)
    used = Usage(calls=1, input_tokens=500, output_tokens=100)
    await Budgeted(Estimated(used), budget).answer(prompt())
    assert budget.usage.cost == pytest.approx(0.06)


async def test_a_broken_request_is_charged_its_estimate():
    estimate = estimate_tokens(prompt())

    class Free(Estimated):
        free = True

    for error in (TimeoutError(), BaeLMError("it broke off", code="bae-lm-unavailable")):
        budget = Budget(tokens=1000)
        with pytest.raises(type(error)):
            await Budgeted(Free(error), budget).answer(prompt())
        assert (budget.usage.tokens, budget.usage.cost) == (estimate, 0)


# --- limits -------------------------------------------------------------------------------------


async def test_a_call_over_the_budget_is_not_sent():
    inner = Paid()
    lm = Budgeted(inner, Budget(calls=2, scope="triage"))
    for _ in range(2):
        await lm.answer(prompt())
    with pytest.raises(BudgetError) as caught:
        await lm.answer(prompt())
    assert inner.calls == 2
    error = caught.value
    assert isinstance(error, LimitError)
    assert (error.code, error.scope, error.limit) == ("bae-budget-spent", "triage", "calls")
    assert (error.bound, error.used, error.budget) == (2, 2, lm.budget)
    assert error.usage == lm.budget.usage
    assert str(error).startswith("[bae-budget-spent] triage: 2 of 2 calls spent\n")


async def test_a_prompt_over_the_remaining_token_budget_is_not_sent():
    inner = Paid()
    budget = Budget(tokens=100)
    lm = Budgeted(inner, budget)
    await lm.answer(prompt())
    assert (budget.usage.tokens, budget.remaining.tokens) == (40, 60)
    with pytest.raises(BudgetError, match=r"40 of 100 tokens spent, and this request is about \d"):
        await lm.answer(prompt("x" * 4 * 60))
    inner.usage = Usage(calls=1, output_tokens=5000)
    await lm.answer(prompt())
    assert (budget.usage.tokens, budget.remaining.tokens) == (5040, 0)
    with pytest.raises(BudgetError, match="5040 of 100 tokens"):
        await lm.answer(prompt())
    assert inner.calls == 2


async def test_a_prompt_over_the_remaining_cost_budget_is_not_sent():
    inner = Paid()
    lm = Budgeted(inner, Budget(cost=0.02))
    for _ in range(2):
        await lm.answer(prompt())
    with pytest.raises(BudgetError, match=r"\$0\.0200 of \$0\.0200 spent") as caught:
        await lm.answer(prompt())
    assert caught.value.limit == "cost"
    assert inner.calls == 2
    priced = Priced(REPLY)
    with pytest.raises(BudgetError, match="costs"):
        await Budgeted(priced, Budget(cost=0.05)).answer(prompt("x" * 4000))
    assert priced.calls == 0


async def test_a_call_after_the_time_budget_is_not_sent():
    now = 0.0
    budget = Budget(seconds=10, clock=lambda: now)
    lm = Budgeted(Paid(), budget)
    assert (budget.elapsed, budget.remaining.seconds) == (0, 10)
    now = 100.0
    await lm.answer(prompt())  # the clock starts here
    now = 104.0
    assert (budget.elapsed, budget.remaining.seconds) == (4, 6)
    now = 110.0
    with pytest.raises(BudgetError, match="the 10 s are over") as caught:
        await lm.answer(prompt())
    assert (caught.value.limit, caught.value.used) == ("seconds", 10)


async def test_work_in_progress_is_cancelled_at_the_end_of_the_time_budget():
    backend = Held()
    budget = Budget(seconds=0.02, clock=lambda: 0.0)  # all of it is left when the LM is asked
    with budget, pytest.raises(BudgetError, match="are over") as caught:
        await graph.arun(Ask(), backend)
    assert backend.cancelled
    assert backend.running == 0
    assert caught.value.journal is not None
    assert caught.value.journal.usage().calls == 1
    assert budget.usage.calls == 1


async def test_a_wait_between_retries_is_cancelled_at_the_end_of_the_time_budget():
    async def for_ever(seconds: float) -> None:
        await asyncio.Event().wait()

    with Budget(seconds=0.02), pytest.raises(BudgetError, match="are over"):
        await graph.arun(Ask(), Retry(ToyBackend(lambda _: busy()), sleep=for_ever))


async def test_failed_calls_are_charged():
    budget = Budget(calls=2)
    toy = ToyBackend(lambda _: busy(), retries=5)
    with budget, pytest.raises(BudgetError) as caught:
        await graph.arun(Ask(), Retry(toy, retries=5, sleep=at_once))
    assert toy.calls == 2
    assert "the provider is busy" in caught.value.__notes__[0]
    assert budget.usage.calls == 2


class Priced(ToyBackend):
    """Ten cents for a thousand tokens."""

    def least_cost(self, usage: Usage) -> float | None:
        return usage.tokens / 10_000


@pytest.mark.parametrize("limits", [{"cost": 0.06}, {"tokens": 600}], ids=str)
async def test_timed_out_requests_are_charged(limits: dict[str, Any]):
    given_up = BaeLMError("it did not answer", code="bae-lm-timeout", retryable=True)
    late = Priced(lambda _: given_up)
    budget = Budget(**limits)
    with budget, pytest.raises(BudgetError) as caught:
        await Retry(late, retries=1000, sleep=at_once).make(Ask(text="x" * 100), Reply)
    assert caught.value.limit == next(iter(limits))  # and not that the cost is unknown
    assert 1 < late.calls < 10
    assert budget.usage.calls == late.calls
    assert budget.usage.input_tokens > 20 * late.calls
    if "cost" in limits:
        assert budget.usage.cost == pytest.approx(budget.usage.tokens / 10_000, rel=0.1)


KNOWN = Usage(calls=1, input_tokens=500, output_tokens=20, cost=0.3)


@pytest.mark.parametrize(
    ("error", "charged"),
    [
        *((busy(status=status), (1, 0, 0.0)) for status in (400, 429, 529)),  # it was refused
        (busy(usage=KNOWN), (1, 520, 0.3)),
        (busy(sent=False), (0, 0, 0.0)),
    ],
    ids=repr,
)
async def test_a_failed_request_is_charged_its_known_usage(
    error: BaeLMError, charged: tuple[int, int, float]
):
    budget = Budget(cost=1, tokens=1000)
    with pytest.raises(BaeLMError):
        await Budgeted(Priced(error), budget).answer(prompt())
    used = budget.usage
    assert (used.calls, used.tokens, used.cost) == charged


async def test_an_unknown_cost_is_allowed_without_a_cost_limit():
    budget = Budget(calls=5)
    with pytest.raises(TimeoutError):
        await Budgeted(ToyBackend(TimeoutError()), budget).answer(prompt())
    assert (budget.usage.calls, budget.usage.cost) == (1, None)


@settings(max_examples=40)
@given(
    limit=st.integers(0, 6),
    callers=st.integers(1, 12),
    moves=st.lists(st.tuples(st.sampled_from(["answer", "fail", "cancel"]), st.integers(0, 11))),
)
def test_no_more_calls_are_sent_than_allowed_however_many_run_at_once(
    limit: int, callers: int, moves: list[tuple[str, int]]
):
    async def play() -> None:
        inner = Gated(Answer(REPLY, CHEAP))
        budget = Budget(calls=limit)
        lm = Budgeted(inner, budget)
        asking = [asyncio.create_task(lm.answer(prompt())) for _ in range(callers)]
        await settle()
        sent = len(inner.gates)
        assert sent == min(limit, callers)
        assert budget.remaining.calls == limit - sent
        for move, number in moves:
            if move == "cancel":
                asking[number % callers].cancel()
            elif sent:
                inner.open(number % sent, busy() if move == "fail" else None)
            await settle()
        for number in range(sent):
            inner.open(number)
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, BudgetError)]
        assert len(inner.gates) == sent == callers - len(refused)
        assert budget.usage.calls == sent
        assert budget.remaining.calls == limit - sent

    run(play)


def test_one_budget_holds_across_threads():
    budget = Budget(calls=50)
    lms = [Paid() for _ in range(4)]

    async def several(lm: Backend, seed: int) -> None:
        random = Random(seed)
        budgeted = Budgeted(lm, budget)
        for _ in range(40):
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
            try:
                await budgeted.answer(prompt())
            except BudgetError:
                return

    threads = [
        threading.Thread(target=asyncio.run, args=(several(lm, seed),))
        for seed, lm in enumerate(lms)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND)
    assert sum(lm.calls for lm in lms) == 50 == budget.usage.calls


# --- unknown cost -------------------------------------------------------------------------------


async def test_a_model_without_a_price_is_refused_under_a_cost_limit():
    toy = ToyBackend(REPLY)
    with pytest.raises(BudgetError, match="the price of toy is unknown") as caught:
        await Budgeted(toy, Budget(cost=1)).answer(prompt())
    assert caught.value.code == "bae-budget-cost-unknown"
    assert toy.calls == 0


async def test_an_answer_without_a_cost_ends_a_budget_with_a_cost_limit():
    unknown = Paid(Usage(calls=1, cost=None))
    budget = Budget(cost=1)
    with budget, pytest.raises(BudgetError) as caught:
        await graph.arun(Ask(), unknown)
    assert caught.value.code == "bae-budget-cost-unknown"
    assert caught.value.journal is not None
    used = caught.value.journal.usage()
    assert used == Usage(calls=1, cost=None, attempts=1, seconds=used.seconds, models=("paid",))
    with pytest.raises(BudgetError):
        await Budgeted(unknown, budget).answer(prompt())
    assert unknown.calls == 1


# --- scopes -------------------------------------------------------------------------------------


class Item(Node):
    n: int

    async def __call__(self) -> Reply: ...


async def ask_for_help(lm: LM) -> str:
    return (await lm.make(Ask(), Reply)).text


class Research(Node):
    items: list[int]
    replies: Annotated[list[Reply], Map(Graph(start=Item, end=Reply), over="items")]
    helped: Annotated[str, Dep(ask_for_help)]

    async def __call__(self) -> Pinned: ...


pinned = Paid()


class Pinned(EndNode):
    node_config = NodeConfig(lm=pinned)
    text: str


async def test_a_budget_block_includes_subgraphs_maps_dependencies_and_pinned_lms():
    lm = Paid()
    before = pinned.calls
    with Budget(calls=20) as budget:
        await Graph(start=Research).arun(Research(items=[1, 2, 3]), lm)
    assert (lm.calls, pinned.calls - before) == (4, 1)
    assert budget.usage.calls == 5
    assert budget.usage.tokens == 200


def test_a_budget_block_covers_a_sync_run():
    with Budget(calls=1) as budget:
        graph.run(Ask(), Paid())
        with pytest.raises(BudgetError):
            graph.run(Ask(), Paid())
    assert budget.usage.calls == 1


async def test_nested_budget_blocks_are_each_charged_once():
    with Budget(calls=10, scope="outer") as outer:
        with Budget(calls=1, scope="inner") as inner:
            await graph.arun(Ask(), Paid())
            with pytest.raises(BudgetError, match="inner: 1 of 1 call") as caught:
                await graph.arun(Ask(), Paid())
            assert caught.value.budget is inner
        with outer:
            await graph.arun(Ask(), Budgeted(Budgeted(Paid(), outer), Budget(within=outer)))
    assert (inner.usage.calls, outer.usage.calls) == (1, 2)
    inner = Budget(calls=5)
    with Budget(calls=0, scope="outer"), inner, pytest.raises(BudgetError, match="outer"):
        await graph.arun(Ask(), Paid())
    assert inner.remaining.calls == 5  # what the outer one refuses takes nothing of it


async def test_a_budget_within_another_is_charged_to_both():
    whole = Budget(calls=3, scope="whole")
    parts = [Budget(calls=2, scope=name, within=whole) for name in ("one", "two")]
    for part in parts[:1] * 2 + parts[1:]:
        await Budgeted(Paid(), part).answer(prompt())
    assert [part.usage.calls for part in parts] == [2, 1]
    with pytest.raises(BudgetError, match="whole: 3 of 3"):
        await Budgeted(Paid(), parts[1]).answer(prompt())


async def test_a_quiet_budget_suppresses_only_its_own_error():
    with Budget(calls=1, quiet=True) as budget:
        for _ in range(3):
            await graph.arun(Ask(), Paid())
    assert isinstance(budget.error, BudgetError)
    assert budget.usage.calls == 1

    other = Budget(calls=0)
    with pytest.raises(BudgetError), Budget(calls=1, quiet=True) as budget:
        await graph.arun(Ask(), Budgeted(Paid(), other))
    assert budget.error is None

    with pytest.raises(ZeroDivisionError), Budget(calls=1, quiet=True):
        1 / 0


async def test_a_budget_spent_in_a_dependency_raises_a_budget_error():
    with pytest.raises(BudgetError, match="of 2 calls") as caught, Budget(calls=2):
        await Graph(start=Research).arun(Research(items=[1, 2, 3]), Paid())
    assert caught.value.path is not None
    assert caught.value.path.startswith(("Research.replies", "Research.helped"))
    with Budget(calls=2, quiet=True) as budget:
        await Graph(start=Research).arun(Research(items=[1, 2, 3]), Paid())
    assert budget.error is not None
    assert budget.usage.calls <= 2


async def test_a_budget_block_that_ends_in_another_context_is_an_error():
    budget = Budget(calls=3)

    async def enter() -> None:
        budget.__enter__()

    await asyncio.create_task(enter())
    with pytest.raises(RuntimeError, match=r"the block of Budget\(calls=3.* in another context"):
        budget.__exit__(None, None, None)
    error = ValueError("what went wrong in it")
    assert not budget.__exit__(ValueError, error, None)
    assert "another context" in error.__notes__[0]


# --- what counts --------------------------------------------------------------------------------


async def test_every_retry_is_charged_in_any_order_of_policies():
    for wrap in (
        lambda lm, b: Retry(Budgeted(lm, b), sleep=at_once),
        lambda lm, b: Budgeted(Retry(lm, sleep=at_once), b),
    ):
        budget = Budget(calls=10)
        await wrap(ToyBackend(busy(), busy(), REPLY), budget).answer(prompt())
        assert budget.usage.calls == 3


async def test_a_cached_answer_is_not_charged():
    for wrap in (lambda lm, b: Cached(Budgeted(lm, b)), lambda lm, b: Budgeted(Cached(lm), b)):
        budget = Budget(calls=1)
        lm = wrap(Paid(), budget)
        for _ in range(3):
            await lm.answer(prompt())
        seconds = budget.usage.seconds
        assert budget.usage == Usage(
            1, 30, 10, cost=0.01, attempts=1, seconds=seconds, models=("paid",)
        )


async def test_a_custom_lm_is_charged_its_reported_usage():
    class Mine(ScriptedLM):
        async def fill(self, *args: Any, **options: Any) -> Any:
            report_usage(Usage(calls=2, input_tokens=7, cost=0.5))
            return Reply(text="this")

    budget = Budget(cost=1)
    await Budgeted(Mine(), budget).make(Ask(), Reply)
    assert (budget.usage.calls, budget.usage.tokens, budget.usage.cost) == (2, 7, 0.5)


async def test_a_budget_block_covers_a_custom_lm_and_written_bodies():
    class Written(Node):
        async def __call__(self, lm: LM) -> Reply:
            assert lm.asked == []  # type: ignore[attr-defined]  # it has what is its own
            return await lm.make(Ask(), Reply)

    lm = ScriptedLM([{"text": "one"}, {"text": "two"}, {"text": "three"}])
    with Budget(calls=2) as budget:
        await Graph(start=Written).arun(Written(), lm)
        assert (await graph.arun(Ask(), lm)).usage.calls == 1
        with pytest.raises(BudgetError):
            await graph.arun(Ask(), lm)
    assert budget.usage.calls == 2
    assert len(lm.asked) == 2


async def test_an_lm_that_delegates_to_a_backend_is_charged_once():
    inner = Paid()

    class Router(ScriptedLM):
        async def fill(self, *args: Any, **options: Any) -> Any:
            return await inner.fill(*args, **options)

    budget = Budget(calls=1)
    await Budgeted(Router(), budget).make(Ask(), Reply)
    assert (inner.calls, budget.usage.calls) == (1, 1)
    with pytest.raises(BudgetError):
        await Budgeted(Router(), budget).make(Ask(), Reply)
    assert (budget.usage.calls, budget.remaining.calls) == (1, 0)


async def test_a_restored_budget_continues_with_its_spent_amounts():
    now = 0.0
    budget = Budget(calls=3, tokens=500, cost=1, seconds=60, scope="job", clock=lambda: now)
    with budget:
        now = 7.0
        await graph.arun(Ask(), Paid())
        dumped = json.loads(json.dumps(budget.dump()))
    again = Budget.restored(dumped)
    assert (again.usage, again.elapsed, again.scope) == (budget.usage, 7, "job")
    assert again.dump() == budget.dump()
    with again:
        for _ in range(2):
            await graph.arun(Ask(), Paid())
        with pytest.raises(BudgetError, match="3 of 3 calls"):
            await graph.arun(Ask(), Paid())


@pytest.mark.parametrize("limit", ["calls", "tokens", "cost", "seconds"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_invalid_budget_limits_are_refused(limit: str, value: float):
    with pytest.raises(ValueError, match=f"Budget\\({limit}="):
        Budget(**{limit: value})


def test_the_tokens_of_a_text_are_estimated_by_its_bytes_and_are_at_least_one():
    assert [estimate_tokens(text) for text in ("", "word" * 10, "ä" * 10)] == [1, 10, 5]
