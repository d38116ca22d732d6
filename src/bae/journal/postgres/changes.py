"""The changes of a Postgres journal that need several statements: forks, replacements, deletions
and answers with files. Each change is a transaction that first locks the row of the table
`changes`. So only one change runs at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final

from pydantic_core import to_json

from bae.journal.postgres.errors import error_of, refusal
from bae.journal.postgres.lease import PostgresClaim
from bae.journal.postgres.reading import PostgresReader, info_of
from bae.journal.run_checks import check_fork, not_replaced_error
from bae.journal.run_lists import labels_of
from bae.journal.sqlite.lease import has_died
from bae.journal.stored_runs import Claim, Line, ParkedGate, RunSummary, StoredRun, fork_info

_ADD_LINES: Final = """insert into {s}.lines (run, n, kind, at, path, step, data, version)
    values ($1, $2, $3, $4, $5, $6, $7, $8)"""
_HAS_FORK: Final = "select exists (select from {s}.runs where parent = $1 and run <> all ($2))"


async def add_fork(
    db: Any,
    reader: PostgresReader,
    key: int,
    run_id: str,
    new_id: str,
    upto: int,
    lines: Sequence[Line],
    thread: str | None,
) -> None:
    """Add the run `new_id`, a fork of the run `run_id`. The fork shares the first `upto` lines of
    that run without copying them, and continues with `lines`. `key` is the key of the fork."""
    row = await reader.row(db, run_id)
    check_fork(run_id, upto, await reader.count(db, row["run"]))
    for n, line in enumerate(lines, upto):
        if line.n != n:
            raise ValueError(f"run {new_id!r}: got line {line.n} where {n} is due")
    run = StoredRun(fork_info(info_of(row), new_id, lines, thread), "", tuple(lines), {})
    await _add_run(db, reader, run, key, parent=row["run"], shared=upto)


async def swap_runs(
    db: Any,
    reader: PostgresReader,
    keys: Sequence[int],
    runs: Sequence[StoredRun],
    claim_of_run: Mapping[str, Claim],
) -> None:
    """Store `runs`, and replace the stored runs that have the same ids. A run with a new id gets
    the key at its index in `keys`. `claim_of_run` has claims of the caller on runs, by run id."""
    old_keys: dict[str, int] = {}
    for run in runs:
        key = await _check_replaceable(
            db, reader, run.info.run_id, claim_of_run.get(run.info.run_id)
        )
        if key is not None:
            old_keys[run.info.run_id] = key
    replaced_keys = [*old_keys.values()]
    for key in replaced_keys:
        if await db.fetchval(reader.sql(_HAS_FORK), key, replaced_keys):
            raise not_replaced_error(runs[0].info.run_id, None)
    await db.execute(reader.sql("select {s}.remove_runs($1)"), replaced_keys)
    for run, new_key in zip(runs, keys, strict=True):
        key = old_keys.get(run.info.run_id, new_key)
        await _add_run(db, reader, run, key)
        await add_files(db, reader, key, run.files)


async def delete_free(db: Any, reader: PostgresReader, keys: Sequence[int]) -> int:
    """Delete the runs with these keys, and return how many were deleted. A run stays if its owner
    is alive, or if a fork of it stays."""
    query = "select run, owner from {s}.runs where run = any ($1) order by run desc for update"
    rows = await db.fetch(reader.sql(query), list(keys))
    owners = {row["owner"] for row in rows if row["owner"] is not None}
    living_owners = {owner for owner in owners if not await _is_free(db, reader, owner)}
    forks: dict[int, list[int]] = {}
    query = "select run, parent from {s}.runs where parent = any ($1)"
    for row in await db.fetch(reader.sql(query), list(keys)):
        forks.setdefault(row["parent"], []).append(row["run"])
    deleted: set[int] = set()
    for row in rows:  # newest first: a fork is newer than its parent, and is deleted before it
        if row["owner"] not in living_owners and deleted.issuperset(forks.get(row["run"], ())):
            deleted.add(row["run"])
    await db.execute(reader.sql("select {s}.remove_runs($1)"), [*deleted])
    return len(deleted)


async def drop_day(db: Any, reader: PostgresReader, day: date, keys: Sequence[int]) -> int | None:
    """Delete runs of a day by dropping the partition of the day, and return how many were deleted.
    A run stays if it has an owner, or if a fork of it stays. Lines of runs that stay are moved to
    `lines_kept`. If most runs of the day stay, or the day can still get runs, delete nothing and
    return None."""
    return await db.fetchval(reader.sql("select {s}.drop_day($1, $2)"), day, list(keys))


async def add_answer(
    db: Any, reader: PostgresReader, job: dict[str, Any], files: Mapping[str, bytes]
) -> bool:
    """Store the answer to a gate, and store the files of the answer as files of the run. `job` has
    the arguments of the database function `answer_gate`. Return False if the gate had an answer
    already."""
    text = await db.fetchval(reader.sql("select {s}.answer_gate($1)"), json.dumps(job))
    result = json.loads(text)
    if "code" in result:
        raise error_of(result["code"], reader.name, job["id"])
    if result["first"]:
        await add_files(db, reader, result["run"], files)
    return result["first"]


async def add_files(db: Any, reader: PostgresReader, key: int, files: Mapping[str, bytes]) -> None:
    """Store files, by hash, as files of the run with this key."""
    if files:
        await db.execute(
            reader.sql("select {s}.add_files($1, $2, $3, '{}')"),
            [key] * len(files),
            [*files],
            [*files.values()],
        )


def describe_run(run: StoredRun, *, parent: int | None = None, shared: int = 0) -> dict[str, Any]:
    """Return the arguments of the database function `create_run` for a new run, without its key."""
    info = run.info
    answers = [[gate, value, run.answered_by.get(gate, "")] for gate, value in run.answers.items()]
    return {
        "do": "create",
        "id": info.run_id,
        "graph": info.graph,
        "status": info.status,
        "started": info.started,
        "updated": run.lines[-1].at if run.lines else info.updated,
        "shape": run.shape,
        "shape_hash": info.shape,
        "waiting": dump_gates(info.waiting),
        "error": clean(info.error),
        "parent": parent,
        "shared": shared,
        "came_from": info.parent if parent is None else None,
        "thread": info.thread,
        "metadata": json.dumps(info.metadata) if info.metadata else "{}",
        "labels": searchable(labels_of(info.metadata, strict=False)) or None,
        "summary": dump_summary(info.summary),
        "answers": answers,
    }


def searchable(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels in a form that the database can search. The keys become JSON, because a
    Postgres text cannot contain a NUL."""
    return {json.dumps(key): value for key, value in labels.items()}


def clean(text: str) -> str:
    """Replace the characters of a text that Postgres refuses."""
    text = text.replace("\x00", "\ufffd")
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def dump_gates(waiting: Sequence[ParkedGate]) -> str:
    """Return the stored form of the gates that a run waits for."""
    if not waiting:
        return "[]"
    gates = [(gate.address, gate.place, gate.question, gate.deadline) for gate in waiting]
    return json.dumps(gates)


def dump_summary(summary: RunSummary | None) -> str | None:
    """Return the stored form of a summary."""
    return None if summary is None else to_json(summary).decode()


async def _add_run(
    db: Any,
    reader: PostgresReader,
    run: StoredRun,
    key: int,
    *,
    parent: int | None = None,
    shared: int = 0,
) -> None:
    job = {**describe_run(run, parent=parent, shared=shared), "run": key, "claim": 0}
    text = await db.fetchval(reader.sql("select {s}.create_run($1, null)"), json.dumps(job))
    result = json.loads(text)
    if "code" in result:
        raise refusal(result, reader.name, run.info.run_id)
    await db.executemany(reader.sql(_ADD_LINES), [(key, *line) for line in run.lines])


async def _is_free(db: Any, reader: PostgresReader, owner: str | None) -> bool:
    if owner is None:
        return True
    dead = [owner] if has_died(owner) else []
    return await db.fetchval(reader.sql("select {s}.bury($1, $2)"), owner, dead)


async def _check_replaceable(
    db: Any, reader: PostgresReader, run_id: str, claim: Claim | None
) -> int | None:
    """Return the key of a run that may be replaced, or None if there is no run with this id. Raise
    JournalError if the run has a living owner other than the caller, or if `claim` was lost."""
    query = reader.sql("select run, owner, claim from {s}.runs where id = $1 for update")
    row = await db.fetchrow(query, run_id)
    if claim is not None:
        assert isinstance(claim, PostgresClaim)
        if claim.lost is not None:
            raise claim.lost()
        if row is None or (row["owner"], row["claim"]) != (claim.owner, claim.number):
            why = "another process has it"
            raise error_of("bae-run-taken", reader.name, run_id, why=why)
    elif row is not None and not await _is_free(db, reader, row["owner"]):
        raise not_replaced_error(run_id, row["owner"])
    return None if row is None else row["run"]
