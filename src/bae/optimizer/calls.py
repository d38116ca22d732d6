"""The call log stores each LLM answer of an optimization. If the optimization is killed, it resumes
without asking a question twice."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast
from weakref import WeakSet

from pydantic import TypeAdapter

from bae.evals.judge import Judge
from bae.exceptions import BaeError, BaeLMError
from bae.lm.adapter import LMAdapter
from bae.lm.backend import Answer, Prompt
from bae.lm.extras import load_dspy
from bae.lm.policies.budget import budgets_in_force
from bae.lm.policies.cache import (
    SharedRequests,
    cache_key,
    calls_to_store,
    text_to_store,
    with_stored_calls,
)
from bae.lm.policies.cache_stores import SQLiteCache
from bae.lm.policies.policy import Policy, innermost
from bae.plan import plan_of
from bae.tasks import finish_despite_cancel
from bae.usage import Usage, report_usage

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budget
    from bae.node import Node
    from bae.optimizer.metrics import Metric

FORMAT: Final = "bae-call-1"
_log = logging.getLogger("bae.optimizer")


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """How the questions of an optimization were answered."""

    calls: int
    """Questions that an LM answered."""
    from_log: int
    """Questions answered from the log."""
    joined: int
    """Questions that shared the answer to an equal question in progress."""
    earlier: Usage = field(default_factory=Usage)
    """What earlier processes spent on the answers read from the log. Each answer counts once."""

    @property
    def repeated(self) -> int:
        """Questions that this process repeated. Their answers cost nothing."""
        return self.from_log + self.joined - self.earlier.calls


class CallLog:
    """A file with all LLM answers of an optimization: `CallLog("calls.sqlite")`.

    Pass the log, or its path, as `calls=`. A repeated question is answered from the file. If an
    optimization was killed, start it again with the same arguments: it ends with the same result.
    Several optimizations may use the same file, because questions are compared by model, settings
    and prompt.

    An answer from the file still counts against the budget, with the calls, tokens and cost of the
    process that asked for it. The `seconds` of the budget count only this process.

    If an LM has no `settings`, such as a `ScriptedLM`, its answers are not stored in the file.
    Without a path, all answers are stored only in this object.

    The file stays open until `aclose()`, `close()` or the end of an `async with` block.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._store = None if self.path is None else _Store(self.path, size=None)
        self._answers: dict[str, _Call] = {}
        """The answers that this process has read from the file or asked an LM for."""
        self._shared = SharedRequests()
        self._calls = self._from_log = 0
        self._earlier = Usage()
        self._budgets: WeakSet[Budget] = WeakSet()
        self._warned = False

    def __repr__(self) -> str:
        return f"CallLog({str(self.path)!r})" if self.path is not None else "CallLog()"

    def around(self, lm: LM | str, rollout: int | None = None) -> LoggedLM:
        """Wrap an LM, so that it is asked through this log. Each `rollout` of a question has its
        own answer."""
        logged = LoggedLM(lm, self, rollout)
        inner = innermost(logged)
        if isinstance(inner, LMAdapter) and not inner.has_settings:
            logged.is_stored = False
            if self.path and not self._warned:
                self._warned = True
                _log.warning(
                    "%s has no settings, so its answers are not stored in %s for other processes",
                    *(type(inner.lm).__name__, self.path),
                )
        return logged

    def statistics(self) -> CallStatistics:
        """Return how the questions so far were answered."""
        return CallStatistics(self._calls, self._from_log, self._shared.joined, self._earlier)

    async def open(self) -> int:
        """Open the file and return the number of its answers. Raises `bae-calls-unusable` if the
        file cannot be used."""
        if self._store is None:
            return len(self._answers)
        with self._usable():
            return await self._store.count()

    def charge(self, budget: Budget) -> None:
        """Charge a budget for answers of earlier processes. From now on, each such answer counts
        once if it is read while the budget is active."""
        self._budgets.add(budget)

    async def aclose(self) -> None:
        """Close the file. The next use opens it again."""
        if self._store is not None:
            await self._store.aclose()

    def close(self) -> None:
        """Close the file, for sync callers."""
        if self._store is not None:
            self._store.close()

    async def __aenter__(self) -> Self:
        """Return this log. The end of the block closes the file."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the file."""
        await self.aclose()

    # `LoggedLM` calls this.

    async def answer(self, key: str, asks: LoggedLM, prompt: Prompt) -> tuple[Answer, Usage]:
        """Return the stored answer, the answer to an equal question in progress, or a new answer of
        the LM. Also return the usage of the LM call that gave the answer."""
        answer = await self._shared.answer(key, lambda: self._look_and_ask(key, asks, prompt))
        call = self._answers.get(key)
        return answer, answer.usage if call is None else call.usage

    async def _look_and_ask(self, key: str, asks: LoggedLM, prompt: Prompt) -> Answer:
        logged = await self._look_up(key)
        if logged is not None:
            self._from_log += 1
            answer = Answer(logged.text, Usage(models=logged.usage.models), logged.stop)
            return with_stored_calls(answer, logged.tools)
        answer = await asks.ask(prompt)
        self._calls += 1
        text = text_to_store(prompt, answer)
        if text is not None:
            tools = calls_to_store(answer)
            self._answers[key] = call = _Call(text, answer.stop, answer.usage, tools)
            self._charge(key, Usage())
            if self._store is not None and asks.is_stored:
                line = json.dumps({"format": FORMAT, **asdict(call)})
                try:
                    with self._usable():
                        # The answer is paid for, so store it even if no caller is left.
                        await finish_despite_cancel(self._store.put(key, line))
                except BaseException:
                    report_usage(answer.usage)
                    raise
        return answer

    async def _look_up(self, key: str) -> _Call | None:
        call = self._answers.get(key)
        if call is None and self._store is not None:
            with self._usable():
                line = await self._store.get(key)
                if line is None:
                    return None
                if json.loads(line)["format"] != FORMAT:
                    raise ValueError("it holds answers, but not of a call log")
                call = self._answers[key] = _call_adapter().validate_json(line)
            self._earlier += call.usage
            self._charge(key, call.usage)
        return call

    def _charge(self, key: str, used: Usage) -> None:
        """Charge the active budgets for an answer, once for each `key`. The call for a new answer
        has already charged them, so its `used` is empty."""
        for budget in budgets_in_force():
            if budget in self._budgets:
                budget.carry(f"call {key}", used, 0.0)

    @contextmanager
    def _usable(self) -> Generator[None]:
        """Raise errors of the file as `bae-calls-unusable`."""
        try:
            yield
        except (BaeLMError, ValueError, TypeError, KeyError, RecursionError) as error:
            cause = error.cause if isinstance(error, BaeError) and error.cause else error
            busy = isinstance(cause, sqlite3.OperationalError) and "locked" in str(cause)
            raise BaeError(
                f"the call log {self.path} cannot be used",
                code="bae-calls-unusable",
                cause=cause,
                fix="another process has been writing to it for too long: wait for it to end"
                if busy
                else "name a file that does not exist yet, or the log of an earlier optimization; "
                "check the path and its permissions",
            ) from error


class LoggedLM(Policy):
    """An LM that is asked through a call log. `CallLog.around` makes it."""

    def __init__(self, lm: LM | str, calls: CallLog, rollout: int | None) -> None:
        super().__init__(lm)
        self.used = Usage()
        """The usage of the LM calls that gave its answers. Answers from the log count with the
        usage of their original call."""
        self.is_stored = True
        """Whether the file stores its answers for other processes. False for an LM without
        settings."""
        self._log = calls
        self._rollout = rollout

    async def answer(self, prompt: Prompt) -> Answer:
        """Return the answer from the log, or ask the LM."""
        key = cache_key(self.inner, prompt)
        if self._rollout is not None:
            key = sha256(f"{key} rollout {self._rollout}".encode()).hexdigest()
        answer, usage = await self._log.answer(key, self, prompt)
        self.used += usage
        return answer


@asynccontextmanager
async def log_of(
    calls: CallLog | str | Path | None, budget: Budget | None
) -> AsyncGenerator[CallLog]:
    """Open the call log for a block, and make the budget active inside the block. If `calls` is not
    a `CallLog`, the new log is closed at the end."""
    log = calls if isinstance(calls, CallLog) else CallLog(calls)
    try:
        await log.open()
        if budget is not None:
            log.charge(budget)
        with budget or nullcontext():
            yield log
    finally:
        if log is not calls:
            await log.aclose()


def backend_of(lm: LM | str | Any, why: str) -> Backend:
    """Return the backend of an LM. `lm` may also be an LM name, a `dspy.LM`, or None for the
    default LM."""
    from bae.lm.policies.policy import as_backend
    from bae.lm.registry import cached_lm, find_default_lm

    if lm is None:
        lm = find_default_lm(why)
    elif isinstance(lm, str):
        lm = cached_lm(lm)
    elif isinstance(lm, load_dspy("optimize_node").BaseLM):
        from bae.lm.dspy_backend import DSPyBackend

        lm = DSPyBackend(lm)
    return as_backend(lm)


def student_for(cls: type[Node], lm: LM | str | Any) -> LM | str | Any:
    """Return the LM that a run asks for a node class: the LM pinned to the class, or `lm`."""
    pinned = plan_of(cls).lm
    return lm if pinned is None else pinned


def with_log(metric: Metric | Judge | None, calls: CallLog, note: Callable[[str], None]) -> Any:
    """Return a metric whose judges are asked through the log. If a judge gives no verdict, the
    answer scores 0 and `note` is called with a message."""

    def through(scorer: Any) -> Any:
        if not isinstance(scorer, Judge):
            return scorer
        return scorer.asking(calls.around(backend_of(scorer.lm, "it is to judge")), note)

    if isinstance(metric, Mapping):
        metrics = cast("Mapping[type[Node], Any]", metric)
        return {cls: through(scorer) for cls, scorer in metrics.items()}
    return through(metric)


@dataclass(frozen=True, slots=True)
class _Call:
    """An answer in the log."""

    text: str
    stop: Literal["end", "cut-off", "refused"]
    usage: Usage
    tools: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The tool calls of the answer."""


@cache
def _call_adapter() -> TypeAdapter[_Call]:
    return TypeAdapter(_Call)


class _Store(SQLiteCache):
    """The SQLite store of a log. It can count its answers."""

    def close(self) -> None:
        self._close()

    async def count(self) -> int:
        def read(database: sqlite3.Connection) -> int:
            return int(database.execute("SELECT count(*) FROM answers").fetchone()[0])

        return await self._do(read)
