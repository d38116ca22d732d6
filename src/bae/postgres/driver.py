"""The package asyncpg, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

NO_TABLES: Final = ("42P01", "3F000", "42883")
"""What Postgres says where tables, their schema or their functions are missing."""
_AGAIN: Final = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "57014", "08", "53300")
"""What Postgres says where the same may work a moment later: deadlocks, restarts, timeouts, lost
connections."""


def driver(missing: Callable[[BaseException], Exception]) -> Any:
    """The package asyncpg. Raises the error that `missing` makes where it is not installed."""
    try:
        return import_module("asyncpg")
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise  # it is installed, and lacks something itself
        raise missing(error) from error


def may_work_again(error: Exception) -> bool:
    """Whether the same may work a moment later: the connection was lost, say."""
    if isinstance(error, OSError | TimeoutError):
        return True
    state: str = getattr(error, "sqlstate", None) or ""
    return state.startswith(_AGAIN) if state else False


async def close(connection: Any) -> None:
    """Close a connection, which may be broken."""
    if connection is None:
        return
    with suppress(Exception):
        await connection.close(timeout=1)
    with suppress(Exception):
        connection.terminate()
