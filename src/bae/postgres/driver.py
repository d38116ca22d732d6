"""Imports the package asyncpg, and says which of its errors are temporary."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

NO_TABLES: Final = ("42P01", "3F000", "42883")
"""Codes of Postgres for missing tables, schemas and functions."""
_TEMPORARY: Final = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "57014", "08", "53300")
"""Codes of Postgres for temporary errors: deadlocks, restarts, timeouts, lost connections."""


def driver(missing: Callable[[BaseException], Exception]) -> Any:
    """Import asyncpg. If it is not installed, raise the error that `missing` makes."""
    try:
        return import_module("asyncpg")
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise  # asyncpg is installed, but lacks another package
        raise missing(error) from error


def may_work_again(error: Exception) -> bool:
    """Whether another attempt may succeed, for example after a lost connection."""
    if isinstance(error, OSError | TimeoutError):
        return True
    state: str = getattr(error, "sqlstate", None) or ""
    return state.startswith(_TEMPORARY) if state else False


async def close(connection: Any) -> None:
    """Close a connection, even if it is broken. Do nothing if it is None."""
    if connection is None:
        return
    with suppress(Exception):
        await connection.close(timeout=1)
    with suppress(Exception):
        connection.terminate()
