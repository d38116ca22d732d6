"""The work of `bae eval`: the journal opened, the cases run while their number is shown, and all of
it stopped by a signal, with what was done until then. `eval.py` prints what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bae.cli.improving.working import Ended, work
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.cli.improving.status import Status
    from bae.evals.case_runs import Contending
    from bae.evals.cases import Case
    from bae.evals.report import CaseResult, Evaluation
    from bae.graph import Graph
    from bae.lm.policies.budget import Budget

LINES: Final = 10
"""Lines of progress where no line can be drawn again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be evaluated, and how."""

    graph: Graph[Any, Any]
    cases: Sequence[Case]
    lms: Mapping[str, Contending]
    metric: Any
    node_metrics: Mapping[Any, Any]
    journal: str | None
    budget: Budget | None
    concurrency: int
    max_iters: int
    timeout: float


def evaluated(asked: Asked, *, quiet: bool) -> Ended[Evaluation]:
    """Evaluate; a signal ends it early, with the cases that were run until then."""
    from bae.cli.improving.status import status_for
    from bae.cli.printing import err

    status = status_for(err(), quiet=quiet)
    return work(lambda: _evaluated(asked, status), status, lambda: "")


async def _evaluated(asked: Asked, status: Status) -> Evaluation:
    from bae.cli.journals import open_to_write
    from bae.evals import evaluate

    progress = _Progress(status, len(asked.cases) * len(asked.lms))
    stop = asyncio.Event()
    async with AsyncExitStack() as opened:
        journal = None
        if asked.journal is not None:
            journal = await opened.enter_async_context(open_to_write(asked.journal))
        task = asyncio.ensure_future(
            evaluate(
                asked.graph,
                asked.cases,
                asked.lms,
                metric=asked.metric,
                node_metrics=asked.node_metrics,
                journal=journal,
                concurrency=asked.concurrency,
                max_iters=asked.max_iters,
                timeout=asked.timeout,
                budget=asked.budget,
                progress=progress.took,
                stop=stop,
            )
        )
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # It is over, and what was done is told: so no case is cut off without its place.
            stop.set()
            return await task
        finally:
            if not task.done():  # cancelled once more
                task.cancel()
                await asyncio.wait([task])


class _Progress:
    """How many cases are done, how many failed, and what they used."""

    def __init__(self, status: Status, total: int) -> None:
        self._status = status
        self._total = total
        self._failed = 0
        self._used = Usage()
        status.update(self._said(0), milestone=False)

    def took(self, done: int, total: int, contender: str, result: CaseResult) -> None:
        self._failed += result.failed
        self._used += result.usage + result.judging
        step = max(1, -(-self._total // LINES))
        self._status.update(self._said(done), milestone=done % step == 0 or done == self._total)

    def _said(self, done: int) -> str:
        from bae.cli.live.wording import cost, count

        said = [f"{done:,} of {count(self._total, 'case')}"]
        if self._failed:
            said.append(f"{self._failed:,} failed")
        if self._used.calls:
            said.append(count(self._used.calls, "LM call"))
        if self._used.tokens:
            said.append(count(self._used.tokens, "token"))
        said += filter(None, [cost(self._used)])
        return " · ".join(said)
