"""The rows that a hand-written store of runs needs: the rows of bae's journal, in plain tables.
Each step has a row with the node as JSON. The run has a row that is updated at its end.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

SCHEMA = """
pragma journal_mode = wal;
pragma synchronous = full;
create table runs (
    id integer primary key, run_id text unique, graph text, status text, started real, updated real
);
create table lines (
    run integer, n integer, kind text, at real, path text, step integer, data text,
    primary key (run, n)
) without rowid;
"""
ADD_RUN = "insert into runs values (?, ?, ?, ?, ?, ?)"
END_RUN = "update runs set status = 'ended', updated = ? where id = ?"
ADD_LINE = "insert into lines values (?, ?, ?, ?, ?, ?, ?)"


def connect(folder: Path) -> sqlite3.Connection:
    """Make a new file with the tables. Each statement is its own transaction, unless the caller
    begins one."""
    connection = sqlite3.connect(folder / "store.db", isolation_level=None, check_same_thread=False)
    connection.executescript(SCHEMA)
    return connection


def node_data(kind: str, fields: str) -> str:
    """Return the data of a line for a node, from its fields as JSON."""
    return f'{{"node":{{"type":"{kind}","fields":{fields}}}}}'
