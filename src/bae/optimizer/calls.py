"""The log of calls: every answer that an optimisation was given, kept before it is used, so that
one which was killed goes on from there and asks nothing twice. `optimizing.py` and `comparing.py`
ask through it."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self
from uuid import uuid4
from weakref import WeakSet

from bae.exceptions import BaeError, BaeLMError
from bae.lm.adapter import LMAdapter
from bae.lm.backend import Answer, Prompt
from bae.lm.policies.budget import budgets_in_force
from bae.lm.policies.cache import SharedRequests
from bae.lm.policies.cache_stores import CacheStore, MemoryCache, SQLiteCache
from bae.lm.policies.policy import innermost
from bae.optimizer.call_records import CallRecord, Spans, record_in, record_of
from bae.optimizer.logged_lm import LoggedLM
from bae.tasks import finish_despite_cancel
from bae.usage import Usage, report

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.lm.policies.budget import Budget


_log = logging.getLogger("bae.optimizer")


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """How many questions were answered by an LM (`calls`), from the log (`from_log`), and by the
    answer to an equal one that was under way (`joined`), by this object. `earlier` is what the
    calls of earlier lives had used whose answers were read from the log, each counted once: what
    else came from it was asked before in this life."""

    calls: int
    from_log: int
    joined: int
    earlier: Usage = field(default_factory=Usage)


class CallLog:
    """A file of all answers that an optimisation was given: `CallLog("calls.sqlite")`.

    Give it, or its path, as `calls=`. A question that was answered before is answered from the
    file, and asks nobody: an optimisation that was killed and is started again with the same
    arguments ends as if nothing had happened. Questions are told apart by model, settings and
    everything the model is shown, so one file may serve many optimisations. The budget of an
    optimisation is charged what the answers that it reads from the file have cost in earlier lives,
    and nothing of what others have asked.

    Asked again are a judge's questions alone to which it gave no verdict in an earlier life. An LM
    that says nothing of its settings, such as a `ScriptedLM`, is known for this process alone.
    Without a path nothing outlives this object.

    The file stays open until `aclose()` or `close()`, or the end of a `with` or `async with` block.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._store: CacheStore = _Memory() if self.path is None else _File(self.path)
        self._name = "" if self.path is None else f"calls {self.path.resolve()}"
        self._shared = SharedRequests()
        self._calls = self._from_log = 0
        self.used: dict[str, Usage] = {}
        self._life = uuid4().hex
        self._since = monotonic()
        self._earlier: Usage | None = None
        self._budgets: WeakSet[Budget] = WeakSet()
        self._paid: set[str] = set()
        self._read_back = Usage()
        self._spans = Spans()
        self._warned = False

    def __repr__(self) -> str:
        return f"CallLog({str(self.path)!r})" if self.path is not None else "CallLog()"

    def around(
        self, lm: LM | str, rollout: int | None = None, *, hopeful: bool = False
    ) -> LoggedLM:
        """The LM, asked through this log. A `rollout` tells askings of the same question apart:
        each is answered anew, once. A `hopeful` one asks again what had no valid answer in an
        earlier life."""
        logged = LoggedLM(lm, self, rollout, hopeful)
        self._warn_of(logged)
        return logged

    def statistics(self) -> CallStatistics:
        """What was asked so far."""
        return CallStatistics(self._calls, self._from_log, self._shared.joined, self._read_back)

    async def open(self) -> Usage:
        """Read the file, and answer what its calls have used until then. Raises where it cannot be
        used: before anything is asked."""
        if self._earlier is None:
            store = self._store
            try:
                texts = await store.texts() if isinstance(store, _File) else []
            except BaeLMError as error:
                raise self._unusable(error) from error
            calls = [self._read(text) for text in texts]
            self._earlier = Usage.total(each.usage for each in calls if each.life != self._life)
        return self._earlier

    async def charge(self, budget: Budget) -> None:
        """From now on, charge to a budget what answers from the file have cost in earlier lives, as
        they are read while it is in force: each once, with the time that it took."""
        await self.open()
        self._budgets.add(budget)

    async def aclose(self) -> None:
        """Close the file. It is opened again when there is need."""
        await self._store.aclose()

    def close(self) -> None:
        """`aclose` for sync callers."""
        if isinstance(self._store, _File):
            self._store.close()

    async def __aenter__(self) -> Self:
        """Close the file at the end of the block."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        await self.aclose()

    def __enter__(self) -> Self:
        """Close the file at the end of the block, in sync code."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    # For the LM that asks through this.

    async def answered(self, key: str, asks: LoggedLM, prompt: Prompt) -> Answer:
        """The answer that is there, or the one that comes, or else that of the LM."""
        return await self._shared.answer(key, lambda: self._look_and_ask(key, asks, prompt))

    async def give_up(self, keys: list[str]) -> None:
        """Note that no answer to these was valid, which together are all askings of one
        question."""
        for key in keys:
            place, found = await self._found(key)
            if found is not None and not found.given_up:
                await self._keep(place, replace(found, given_up=self._life))

    async def _look_and_ask(self, key: str, asks: LoggedLM, prompt: Prompt) -> Answer:
        asked = key
        key, found = await self._found(key)
        if found is not None:
            self._from_log += 1
            self.used[asked] = found.usage
            self._charge(key, found)
            return Answer(found.text, Usage(models=found.usage.models), found.stop)
        began = monotonic() - self._since
        answer = await asks.ask(prompt)
        self._calls += 1
        self.used[asked] = answer.usage
        self._charge(key, None)
        kept = record_of(prompt, answer, self._life, began, monotonic() - self._since)
        if kept is not None:
            try:
                # It is paid for, so it is kept even where nobody waits for it any more.
                await finish_despite_cancel(self._keep(key, kept))
            except BaseException:
                report(answer.usage)
                raise
        return answer

    async def _found(self, key: str) -> tuple[str, CallRecord | None]:
        """The call of a question, if there is one, and the key that it has, or is to have."""
        while True:
            try:
                text = await self._store.get(key)
            except BaeLMError as error:
                raise self._unusable(error) from error
            found = None if text is None else self._read(text)
            if found is None or found.given_up in ("", self._life):
                return key, found
            # It stays in the file, since it was paid for, and what is asked now stands beside it.
            self._charge(key, found)
            key = sha256(f"{key} after {found.given_up}".encode()).hexdigest()

    def _charge(self, key: str, found: CallRecord | None) -> None:
        """Charge what was `found` to the budgets in force; what was asked just now is charged, and
        not to be charged again when it is read."""
        if key in self._paid:
            return
        self._paid.add(key)
        used, seconds = Usage(), 0.0
        if found is not None and found.life != self._life:
            used, seconds = found.usage, self._spans.add(found.life, found.began, found.ended)
            self._read_back += used
        for budget in budgets_in_force():
            if budget in self._budgets:
                budget.carry(f"{self._name} {key}", used, seconds)

    async def _keep(self, key: str, call: CallRecord) -> None:
        try:
            await self._store.put(key, call.written())
        except BaeLMError as error:
            raise self._unusable(error) from error

    def _read(self, text: str) -> CallRecord:
        found = record_in(text)
        if found is None:
            raise self._unusable(ValueError("it holds answers, but not of a log of calls"))
        return found

    def _warn_of(self, asks: LoggedLM) -> None:
        inner = innermost(asks)
        if self.path is None or self._warned:
            return
        if isinstance(inner, LMAdapter) and not inner.has_settings:
            self._warned = True
            _log.warning(
                "%s says nothing of its settings, so %s knows its answers for this process alone",
                type(inner.lm).__name__,
                self.path,
            )

    def _unusable(self, error: Exception) -> BaeError:
        cause = error.cause if isinstance(error, BaeError) and error.cause else error
        busy = isinstance(cause, sqlite3.OperationalError) and "locked" in str(cause)
        return BaeError(
            f"the log of calls {self.path} cannot be used",
            code="bae-calls-unusable",
            cause=cause,
            fix="another process has been writing to it for too long: wait for it to end"
            if busy
            else "name a file that does not exist yet, or the log of an earlier optimisation; "
            "check the path and its permissions",
        )


class _File(SQLiteCache):
    """The store of a log: answers of any age and number, all of which can be read at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, size=None)

    def close(self) -> None:
        self._close()

    async def texts(self) -> list[str]:
        def read(database: sqlite3.Connection) -> list[str]:
            return [str(row[0]) for row in database.execute("SELECT text FROM answers ORDER BY at")]

        return await self._do(read)


class _Memory(MemoryCache):
    def __init__(self) -> None:
        super().__init__(size=1_000_000)
