"""The call log: it stores every answer of an optimization before it is used, so that a killed
optimization resumes without asking anything twice."""

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
    """How many questions were answered by an LM (`calls`), from the log (`from_log`), and by an
    equal question in progress (`joined`). `earlier` is the usage of earlier processes for the
    answers that were read from the log, each counted once."""

    calls: int
    from_log: int
    joined: int
    earlier: Usage = field(default_factory=Usage)

    @property
    def repeated(self) -> int:
        """How many repeated questions were answered for free."""
        return self.from_log + self.joined - self.earlier.calls


class CallLog:
    """A file with all answers of an optimization: `CallLog("calls.sqlite")`.

    Pass it, or its path, as `calls=`. A repeated question is answered from the file, so if an
    optimization was killed, start it again with the same arguments: it ends with the same result.
    One file may serve many optimizations, since questions are compared by model, settings and
    prompt. The budget of an optimization is charged for answers from the file with the calls,
    tokens and cost of earlier processes. Its `seconds` count only this process.

    Answers of an LM without `settings`, such as a `ScriptedLM`, are not stored for other processes.
    Without a path, answers are kept only in this object.

    The file stays open until `aclose()`, `close()` or the end of an `async with` block.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._store = None if self.path is None else _Store(self.path, size=None)
        self._answers: dict[str, _Call] = {}
        """The answers that this process has read or asked for."""
        self._shared = SharedRequests()
        self._calls = self._from_log = 0
        self._earlier = Usage()
        self._budgets: WeakSet[Budget] = WeakSet()
        self._warned = False

    def __repr__(self) -> str:
        return f"CallLog({str(self.path)!r})" if self.path is not None else "CallLog()"

    def around(self, lm: LM | str, rollout: int | None = None) -> LoggedLM:
        """Wrap an LM in this log. Each `rollout` of the same question has its own answer."""
        logged = LoggedLM(lm, self, rollout)
        inner = innermost(logged)
        if isinstance(inner, LMAdapter) and not inner.has_settings:
            logged.is_stored = False
            if self.path and not self._warned:
                self._warned = True
                _log.warning(
                    "%s has no settings, so %s knows its answers in this process alone",
                    *(type(inner.lm).__name__, self.path),
                )
        return logged

    def statistics(self) -> CallStatistics:
        """Counts of the questions so far."""
        return CallStatistics(self._calls, self._from_log, self._shared.joined, self._earlier)

    async def open(self) -> int:
        """Open the file and return how many answers it has. Raises if the file cannot be used."""
        if self._store is None:
            return len(self._answers)
        with self._usable():
            return await self._store.count()

    def charge(self, budget: Budget) -> None:
        """From now on, charge this budget once for each answer of an earlier process that is read
        while the budget is active."""
        self._budgets.add(budget)

    async def aclose(self) -> None:
        """Close the file. It opens again when it is used again."""
        if self._store is not None:
            await self._store.aclose()

    def close(self) -> None:
        """`aclose` for sync callers."""
        if self._store is not None:
            self._store.close()

    async def __aenter__(self) -> Self:
        """Close the file at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the file."""
        await self.aclose()

    # For `LoggedLM`.

    async def answer(self, key: str, asks: LoggedLM, prompt: Prompt) -> tuple[Answer, Usage]:
        """The logged answer, the answer to an equal question in progress, or the LM's answer. Also
        returns the original usage of the answer."""
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
        """Charge the active budgets for an answer, once. A new answer is charged already, so it is
        passed without usage."""
        for budget in budgets_in_force():
            if budget in self._budgets:
                budget.carry(f"call {key}", used, 0.0)

    @contextmanager
    def _usable(self) -> Generator[None]:
        """Convert errors of the file to `bae-calls-unusable`."""
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
    """An LM asked through a call log, made by `CallLog.around`. `used` is the original usage of its
    answers, including answers from the log."""

    def __init__(self, lm: LM | str, calls: CallLog, rollout: int | None) -> None:
        super().__init__(lm)
        self.used = Usage()
        self.is_stored = True
        """Whether another process can recognize its answers."""
        self._log = calls
        self._rollout = rollout

    async def answer(self, prompt: Prompt) -> Answer:
        """The answer from the log, or from the LM."""
        key = cache_key(self.inner, prompt)
        if self._rollout is not None:
            key = sha256(f"{key} rollout {self._rollout}".encode()).hexdigest()
        answer, used = await self._log.answer(key, self, prompt)
        self.used += used
        return answer


@asynccontextmanager
async def log_of(
    calls: CallLog | str | Path | None, budget: Budget | None
) -> AsyncGenerator[CallLog]:
    """The call log for a block under a budget. A log that is opened here is closed at the end."""
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
    """The backend of an LM of bae, its name, a `dspy.LM`, or None for the default."""
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
    """The LM that a run asks for a node class: its pinned LM, or `lm`."""
    pinned = plan_of(cls).lm
    return lm if pinned is None else pinned


def with_log(metric: Metric | Judge | None, calls: CallLog, note: Callable[[str], None]) -> Any:
    """The metric with its judges asked through the log. An answer without a verdict counts 0 and
    gives a `note`."""

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
    """The store of a log, whose answers can be counted."""

    def close(self) -> None:
        self._close()

    async def count(self) -> int:
        def read(database: sqlite3.Connection) -> int:
            return int(database.execute("SELECT count(*) FROM answers").fetchone()[0])

        return await self._do(read)
