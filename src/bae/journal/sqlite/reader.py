"""The thread of a `SQLiteJournal` that reads, beside the one that writes: with the write-ahead log
neither waits for the other. `queries.py` has what it is asked to do."""

from __future__ import annotations

import asyncio
import sqlite3
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from typing import Any, TypeVar

from bae.exceptions import JournalError
from bae.journal.sqlite.errors import is_writable, told
from bae.journal.sqlite.file import connected, identity
from bae.journal.sqlite.threads import Worker, tell

T = TypeVar("T")

Question = tuple[Callable[[sqlite3.Connection | None], Any], "Future[Any]", AbstractEventLoop]


class Reader(Worker[Question]):
    """Answers one question after another. There may be no file yet: then it is asked with None."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self._busy_timeout = busy_timeout
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        super().__init__(path, "reads")

    def ask(self, question: Callable[[sqlite3.Connection | None], T]) -> Future[T]:
        """Have a question answered in the thread."""
        loop = asyncio.get_running_loop()
        future: Future[T] = loop.create_future()
        self.put((question, future, loop))
        return future

    def refuse(self, item: Question, error: JournalError) -> None:
        """Tell whoever asked that there is no answer."""
        tell(item[2], [(item[1], None, error)])

    def work(self) -> None:
        """Answer until told to stop."""
        try:
            while True:
                while self.queue:
                    self._take(self.queue.popleft())
                if self.stopping:
                    return
                self.wake.acquire()
        finally:
            self._let_go()

    def _take(self, item: Question) -> None:
        question, future, loop = item
        if not future.cancelled():
            tell(loop, [(future, *self._answer(question))])

    def _answer(
        self, question: Callable[[sqlite3.Connection | None], Any]
    ) -> tuple[Any, BaseException | None]:
        try:
            now = identity(self.path)
            if self._connection is not None and now != self._identity:
                self._let_go()
            if self._connection is None:
                self._connection = connected(self.path, self._busy_timeout, reading=True)
                self._identity = now
            answer = question(self._connection)
            if not is_writable(self.path):
                self._let_go()  # such a connection stays what it is when the file becomes writable
            return answer, None
        except sqlite3.Error as error:
            self._let_go()  # the next question finds what is there then
            return None, told(error, self.path)
        except Exception as error:
            return None, error

    def _let_go(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
