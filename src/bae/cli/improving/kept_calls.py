"""The log of calls in the directory that `bae optimize` writes to: what an optimisation has paid
for, for as long as the same command could make something of it. `locking.py` keeps the directory
to one at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from bae.cli.exits import refused
from bae.cli.improving.locking import Lock

if TYPE_CHECKING:
    from bae.lm import LM
    from bae.optimizer.calls import CallStatistics

T = TypeVar("T")

FOLDER: Final = ".calls"
"""Where the log is, in a folder that git ignores as a whole: calls hold what people have typed, and
the artefacts beside it belong into git."""
FILE: Final = "calls.db"
_LOCK: Final = "lock"
_IGNORE: Final = ".gitignore"


class KeptCalls:
    """The log of an optimisation that asks these LMs; a context manager, which has the directory to
    itself. `before` is what the calls of the log had used when this one began."""

    def __init__(self, directory: Path, asked: Iterable[LM | str]) -> None:
        from bae.optimizer import CallLog

        self.folder = directory / FOLDER
        self._directory = directory
        known, self.forgotten = _known(asked)
        self._made = not directory.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with ExitStack() as otherwise:
                self._lock = Lock(self.folder / _LOCK, directory)
                otherwise.callback(self._lock.release)
                (self.folder / _IGNORE).write_text("*\n", encoding="utf-8")
                otherwise.pop_all()
        except OSError as error:
            raise refused(
                f"{directory} is no directory that can be written to: {error.strerror}",
                fix="name one with -o DIR",
                cause=error,
            ) from error
        self._file = self.folder / FILE
        self._new = not self._file.exists()
        # Answers that nobody can be told to have given would lie there for nothing.
        self.calls = CallLog(self._file if known else None)
        self.before = 0
        self.stays = True
        """Whether the log stays; `let_go` decides."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    @property
    def statistics(self) -> CallStatistics:
        """How many calls were made, and how many came from the log."""
        return self.calls.statistics()

    @property
    def number(self) -> int:
        """How many calls the log keeps."""
        if self.calls.path is None:
            return 0
        return self.before + self.statistics.calls

    async def around(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work with the log open."""
        self.before = await self.calls.open()
        try:
            return await work()
        finally:
            await self.calls.aclose()

    def kept(self) -> str:
        """How many calls are kept, and where; nothing where none are."""
        from bae.cli.live.wording import count

        if not self.number:
            return ""
        are = "is" if self.number == 1 else "are"
        said = f"{count(self.number, 'call')} {are} kept in {self.folder}"
        if self.forgotten:
            said += f", those of {self.forgotten} to no use, whose settings nobody knows"
        return said

    def goes_on(self) -> str:
        """What to do where it was ended early."""
        if kept := self.kept():
            return f"{kept}: the same command goes on"
        if self.forgotten and self.statistics.calls:
            return (
                f"nothing is kept of {self.forgotten}, whose settings nobody knows: the same "
                "command begins anew"
            )
        return "nothing was answered yet, and nothing is kept"

    def let_go(self, *, useful: bool) -> None:
        """Take the log away where the same command would make nothing of it, or where it has
        nothing. What else was made for it goes too."""
        self.stays = useful and bool(self.number or not self._new)
        if self.stays:
            self._lock.release()
            return
        for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal", _IGNORE):
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)
        self._lock.release(remove=True)
        with suppress(OSError):  # somebody has put something there, or begins just now
            self.folder.rmdir()
            if self._made:
                self._directory.rmdir()


def _known(asked: Iterable[LM | str]) -> tuple[bool, str]:
    """Whether a log can know one of these again in another process, and those that it cannot."""
    from bae.lm.adapter import LMAdapter
    from bae.lm.policies.policy import innermost
    from bae.lm.registry import LazyLM
    from bae.optimizer.calls import backend_of

    known, forgotten = False, dict[str, None]()
    for lm in asked:
        if isinstance(lm, LazyLM):  # it may never be asked, and has a name if it is
            known = True
            continue
        inner = innermost(backend_of(lm, "it is asked"))
        if isinstance(inner, LMAdapter) and not inner.has_settings:
            forgotten[type(inner.lm).__name__] = None
        else:
            known = True
    return known, " and ".join(forgotten)
