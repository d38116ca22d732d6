"""`check_journal`, which checks that a store keeps the promises of `Journal`. Each promise is a
function that checks a store. If a store breaks a promise, the error quotes the function's
docstring."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from typing import Any, Final, cast

from bae.exceptions import JournalError, describe
from bae.journal.store import Journal, keeps_files
from bae.journal.stored_runs import Claim, Line, ParkedGate, RunInfo, RunSummary, StoredRun

SECONDS: Final = 30.0
"""The seconds that a store may take for each promise."""

_SHAPE: Final = '{"nodes": []}'
_GATE: Final = ParkedGate("2:Refund.approved", "Refund.approved", "May I?", 2000.0)
_USED: Final = RunSummary(3, "Refund", 2, 140, None)


async def check_journal(
    make_store: Callable[[], Journal], *, reopen: Callable[[Any], Journal] | None = None
) -> None:
    """Check that a store keeps every promise of a journal:
    `await check_journal(lambda: MyJournal(new_database()))`.

    Raises an AssertionError that lists each broken promise and what happened instead. The cause of
    the AssertionError is an exception group with the single errors.

    Args:
        make_store: Returns a new, empty store at each call. `check_journal` closes the store.
        reopen: Opens a store a second time, as another process would, such as
            `reopen=lambda store: MyJournal(store.database)`. Pass it if runs outlive the process.
    """
    checks: list[tuple[str, Callable[[Journal], Awaitable[None]]]] = [
        (_sentence(promise), promise) for promise in PROMISES
    ]
    if reopen is not None:
        checks += [(_sentence(check), _with_reopened(check, reopen)) for check in SHARED_PROMISES]
    broken: list[Exception] = []
    texts: list[str] = []
    name = "the store"
    for sentence, check in checks:
        journal = make_store()
        name = type(journal).__name__
        try:
            async with asyncio.timeout(SECONDS), journal:
                await check(journal)
        except Exception as error:
            broken.append(error)
            texts.append(f"{len(broken)}. {sentence}\n   {_what_happened(error)}")
    if broken:
        listed = "\n".join(texts)
        raise AssertionError(
            f"{name} breaks {len(broken)} of {len(checks)} promises of a journal:\n{listed}"
        ) from ExceptionGroup("the broken promises", broken)


# --- one store ----------------------------------------------------------------------------------


async def _reads_back(journal: Journal) -> None:
    """A run is read back exactly as it was written."""
    first = _line(0, '{"run": "ä \\u2028 \U0001f600"}', kind="RunStarted", at=12.5)
    run = _run("run", [first], thread="t", metadata={"team": ["a", 1]})
    claim = await _check_claim(journal.create(run))
    more = [_line(1, '{"deep": [1, {"a": null}]}', path="2:Report.x[3]", step=7)]
    await journal.append(claim, more)
    stored = await journal.read("run")
    _same("its lines", stored.lines, (first, *more))
    _same("its shape and answers", (stored.shape, stored.answers), (_SHAPE, {}))
    owned = replace(stored.info, owner=None, lease_until=None)
    _same("its entry", owned, replace(run.info, updated=more[-1].at))
    _same("its owner", stored.info.owner, claim.owner)
    _true("a run with an owner has a lease that lasts", not stored.info.is_interrupted())


async def _takes_at_the_call(journal: Journal) -> None:
    """`append` takes its lines when it is called, in order, even if the caller does not await
    it."""
    claim = await _begin_run(journal)
    waiting = [journal.append(claim, [_line(n)]) for n in range(1, 40)]
    (last,) = await asyncio.gather(waiting.pop(), return_exceptions=True)
    stored = await _numbers(journal)
    results = await asyncio.gather(*waiting, return_exceptions=True)
    _same("the numbers of its lines when the last is stored", stored, [*range(40)])
    _same("the errors of the calls", [error for error in (*results, last) if error], [])


async def _leaves_no_gap(journal: Journal) -> None:
    """`create` and `append` raise ValueError if a line does not have the next number. The call then
    stores nothing."""
    claim = await _begin_run(journal)
    for wrong in ([_line(2)], [_line(0)], [_line(1), _line(3)]):
        with _expect_refusal(f"append of {[line.n for line in wrong]} after line 0", ValueError):
            await journal.append(claim, wrong)
    await journal.append(claim, [_line(1)])
    _same("the numbers of its lines", await _numbers(journal), [0, 1])
    with _expect_refusal("create with a first line of number 1", ValueError):
        await journal.create(_run("other", [_line(1)]))
    _same("the runs", await _ids(journal), ["run"])


async def _notes(journal: Journal) -> None:
    """A line from `note` is stored before the lines of later calls, even if a thread without an
    event loop calls `note`."""
    claim = await _begin_run(journal)
    journal.note(claim, _line(1))
    thread = threading.Thread(target=journal.note, args=(claim, _line(2)))
    thread.start()
    thread.join()
    await journal.append(claim, [_line(3)])
    _same("the numbers of its lines", await _numbers(journal), [0, 1, 2, 3])
    await journal.release(claim, "failed", [])
    journal.note(claim, _line(4))  # under a lost claim, `note` drops the line without an error
    _same("the numbers of its lines", await _numbers(journal), [0, 1, 2, 3])


async def _gives_an_id_once(journal: Journal) -> None:
    """`create` refuses a run with the id of an existing run with bae-run-exists. The existing run
    does not change."""
    await _begin_run(journal, count=2)
    for claim in (True, False):
        with _expect_refusal("create of an id that exists", "bae-run-exists"):
            await journal.create(_run("run", [_line(0)]), claim=claim)
    _same("the numbers of its lines", await _numbers(journal), [0, 1])


async def _knows_its_runs(journal: Journal) -> None:
    """A call for a run that does not exist is refused with bae-run-unknown."""
    for what, ask in {
        "read": lambda: journal.read("none"),
        "claim": lambda: journal.claim("none"),
        "answer": lambda: journal.answer("none", "gate", "1"),
        "fork": lambda: journal.fork("none", "new", 0, []),
        "info": lambda: journal.info("none"),
        "runs(before=…)": lambda: journal.runs(before="none"),
    }.items():
        with _expect_refusal(f"{what} of a run that does not exist", "bae-run-unknown"):
            await ask()


async def _has_one_owner(journal: Journal) -> None:
    """A run has one owner: a second claim is refused with bae-run-owned, which names the owner."""
    claim = await _begin_run(journal)
    with _expect_refusal("a second claim", "bae-run-owned") as raised:
        await journal.claim("run")
    _true("the error names the owner", claim.owner in str(raised[0]))
    await journal.append(claim, [_line(1)])


async def _queues(journal: Journal) -> None:
    """A run with the status "queued" that is created without a claim has no owner and is listed as
    "queued". Its claim changes its status to "running"."""
    returned = await journal.create(_run("run", [_line(0)], status="queued"), claim=False)
    _same("what create returns without a claim", returned, None)
    info = (await journal.read("run")).info
    _same("its status and owner", (info.status, info.owner), ("queued", None))
    _same("the queued runs", await _ids(journal, status="queued"), ["run"])
    _same("the interrupted runs", await _ids(journal, status="interrupted"), [])
    claim = await journal.claim("run")
    await journal.append(claim, [_line(1)])
    _same("its status", (await journal.read("run")).info.status, "running")
    _same("the queued runs", await _ids(journal, status="queued"), [])


async def _keeps_entries(journal: Journal) -> None:
    """A run that is created without a claim is stored with its complete entry and its answers."""
    run = _run("run", _lines(0, 3), status="waiting", waiting=(_GATE,), error="why", summary=_USED)
    info = replace(run.info, started=7.0, parent="elsewhere", thread="t", metadata={"a": [1]})
    run = replace(run, info=info, answers={"other": "[1]"}, answered_by={"other": "ana"})
    await journal.create(run, claim=False)
    _same("the run", await journal.read("run"), run)
    _same("its entry in the list", await journal.runs(), [info])


async def _releases(journal: Journal) -> None:
    """A released run has no owner and can be claimed. It has the status, gates and error of the
    release, and its summary. A release without a summary keeps the old summary."""
    claim = await _begin_run(journal)
    await journal.release(claim, "waiting", [_line(1)], [_GATE], "one line", _USED)
    info = (await journal.read("run")).info
    stored = (info.status, info.waiting, info.error, info.summary)
    _same("its entry", stored, ("waiting", (_GATE,), "one line", _USED))
    _same("its owner and lease", (info.owner, info.lease_until), (None, None))
    again = await journal.claim("run")
    info = (await journal.read("run")).info
    _same("its entry", (info.status, info.waiting, info.error), ("running", (), ""))
    await journal.append(again, [_line(2)])
    await journal.release(again, "failed", [])
    _same("its summary", (await journal.read("run")).info.summary, _USED)
    _same("the numbers of its lines", await _numbers(journal), [0, 1, 2])


async def _fences(journal: Journal) -> None:
    """A call with a released or replaced claim is refused with bae-run-taken and stores nothing. A
    claim of another store is refused too."""
    claim = await _begin_run(journal)
    await journal.release(claim, "cancelled", [])
    with _expect_refusal("append under a claim that was released", "bae-run-taken"):
        await journal.append(claim, [_line(1)])
    with _expect_refusal("release under a claim that was released", "bae-run-taken"):
        await journal.release(claim, "failed", [_line(1)])
    new = await journal.claim("run")
    with _expect_refusal("append under a claim that another claim has replaced", "bae-run-taken"):
        await journal.append(claim, [_line(1)])
    await journal.append(new, [_line(1)])
    _same("the numbers of its lines", await _numbers(journal), [0, 1])
    with _expect_refusal("append under a claim of another store", JournalError):
        await journal.append(Claim("run", "another process"), [_line(2)])


async def _ends(journal: Journal) -> None:
    """`claim` refuses an ended run with bae-run-ended. The run does not change."""
    await _end_run(journal, count=3)
    before = await journal.read("run")
    with _expect_refusal("a claim of an ended run", "bae-run-ended"):
        await journal.claim("run")
    _same("the run", await journal.read("run"), before)


async def _answers_once(journal: Journal) -> None:
    """`answer` stores the first answer to a gate with the name of the person who gave it. For later
    answers it returns False. The gate of a parked run is then listed as answered."""
    claim = await _begin_run(journal)
    other = ParkedGate("3:Refund.sum", "Refund.sum", "How much?")
    await journal.release(claim, "waiting", [], [_GATE, other])
    answers = (journal.answer("run", _GATE.address, str(n), f"person {n}") for n in range(5))
    results = await asyncio.gather(*answers)
    _same("what `answer` returned", sorted(results), [False, False, False, False, True])
    stored = await journal.read("run")
    _same("its answers", stored.answers, {_GATE.address: str(results.index(True))})
    by = {_GATE.address: f"person {results.index(True)}"}
    _same("who answered", dict(stored.answered_by), by)
    _same("its answers alone", await journal.answers("run"), stored.answers)
    waiting = (replace(_GATE, answered=True), other)
    _same("its gates", stored.info.waiting, waiting)
    _same("its gates in the list", (await journal.runs())[0].waiting, waiting)


async def _keeps_answers_of_threads(journal: Journal) -> None:
    """`thread_answers` returns the answers of a graph's runs in a thread, by run id."""
    for n, (graph, thread) in enumerate((("A", "t"), ("A", "t"), ("B", "t"), ("A", "other"))):
        run = _run(f"r{n}", [_line(0)], status="ended", graph=graph, thread=thread)
        await journal.create(run, claim=False)
        await journal.answer(f"r{n}", "a gate", str(n))
    of_thread = await journal.thread_answers("t", "A")
    _same("the answers", of_thread, {"r0": {"a gate": "0"}, "r1": {"a gate": "1"}})
    _same("the answers of an empty thread", await journal.thread_answers("none", "A"), {})


async def _lists(journal: Journal) -> None:
    """`runs` lists the newest runs first, page by page. It filters by status, graph and thread."""
    for n in range(7):
        await _end_run(journal, f"r{n}", graph="AB"[n % 2], thread="t" if n < 2 else None)
    running = await _begin_run(journal, "last", graph="A")
    await journal.release(await _begin_run(journal, "parked", graph="B"), "waiting", [], [_GATE])
    names = ["parked", "last", *(f"r{n}" for n in reversed(range(7)))]
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, names),
        ({"limit": 3}, names[:3]),
        ({"limit": 3, "before": "r6"}, ["r5", "r4", "r3"]),
        ({"limit": 0}, []),
        ({"status": "ended", "limit": 2}, ["r6", "r5"]),
        ({"status": "running"}, ["last"]),
        ({"graph": "A", "limit": 2, "before": "r4"}, ["r2", "r0"]),
        ({"graph": "B", "status": "waiting"}, ["parked"]),
        ({"graph": "B", "status": "ended", "before": "r5"}, ["r3", "r1"]),
        ({"graph": "C"}, []),
        ({"thread": "t"}, ["r1", "r0"]),
        ({"thread": "t", "graph": "A"}, ["r0"]),
    ]
    for arguments, expected in cases:
        _same(f"runs({arguments})", await _ids(journal, **arguments), expected)
    await journal.release(running, "ended", [])


async def _finds_metadata(journal: Journal) -> None:
    """`runs(metadata=…)` lists the runs that have all of the given keys with the given values. A
    text never equals a number, and a number never equals a bool."""
    metadata_of_runs: list[dict[str, Any]] = [
        {"user": "ana", "plan": 1},
        {"user": "ana", "plan": True, "note": "ä '\""},
        {"user": "ben", "plan": 1, "more": {"deep": [1]}},
        {"user": None, "plan": 1.5},
        {"user": "1", "more": [1]},
    ]
    for n, metadata in enumerate(metadata_of_runs):
        run = _run(f"r{n}", [_line(0)], status="ended", metadata=metadata, thread=f"t{n % 2}")
        await journal.create(run, claim=False)
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({"metadata": {}}, ["r4", "r3", "r2", "r1", "r0"]),
        ({"metadata": {"user": "ana"}}, ["r1", "r0"]),
        ({"metadata": {"user": "ana", "plan": 1}}, ["r0"]),
        ({"metadata": {"plan": True}}, ["r1"]),
        ({"metadata": {"plan": 1}}, ["r2", "r0"]),
        ({"metadata": {"plan": 1}, "limit": 1, "before": "r2"}, ["r0"]),
        ({"metadata": {"plan": 1}, "thread": "t1"}, []),
        ({"metadata": {"plan": 1.5}}, ["r3"]),
        ({"metadata": {"user": None}}, ["r3"]),
        ({"metadata": {"user": "1"}, "status": "ended"}, ["r4"]),
        ({"metadata": {"note": "ä '\""}}, ["r1"]),
        ({"metadata": {"none": None}}, []),
    ]
    for arguments, expected in cases:
        _same(f"runs({arguments})", await _ids(journal, **arguments), expected)
    with _expect_refusal("runs(metadata=…) with a list", ValueError):
        await journal.runs(metadata=cast(Any, {"more": [1]}))
    await journal.delete(["r0"])
    _same("the runs that are left", await _ids(journal, metadata={"user": "ana"}), ["r1"])


async def _keeps_threads(journal: Journal) -> None:
    """At most one run of a thread is "running" or "waiting", even if several start at once.
    `create`, `claim` and `fork` refuse a second run with bae-thread-busy, which names the first
    run."""
    starts = (_begin_run(journal, f"r{n}", thread="t") for n in range(5))
    results = await asyncio.gather(*starts, return_exceptions=True)
    claims = [result for result in results if isinstance(result, Claim)]
    errors = [result for result in results if isinstance(result, JournalError)]
    _same("the number of runs that start, of five in a thread", len(claims), 1)
    refused = {(error.code, error.run_id) for error in errors}
    _same("the errors of the other runs", refused, {("bae-thread-busy", claims[0].run_id)})
    _same("the runs", await _ids(journal), [claims[0].run_id])
    await _begin_run(journal, "elsewhere", thread="other")
    await journal.create(_run("queued", [_line(0)], status="queued", thread="t"), claim=False)
    await journal.create(_run("loaded", [_line(0)], status="ended", thread="t"), claim=False)
    await journal.create(_run("failed", [_line(0)], status="failed", thread="t"), claim=False)
    claim, status = claims[0], "running"
    for status in ("waiting", "running"):
        with _expect_refusal(f"create with a {status} run of the thread", "bae-thread-busy"):
            await journal.create(_run("new", [_line(0)], thread="t"))
        for run_id in ("queued", "failed"):
            with _expect_refusal(f"claim of a {run_id} run of the thread", "bae-thread-busy"):
                await journal.claim(run_id)
        with _expect_refusal("fork into the thread", "bae-thread-busy"):
            await journal.fork("loaded", "fork", 1, [], thread="t")
        await journal.release(claim, cast(Any, status), [], [_GATE] if status == "waiting" else [])
        claim = await journal.claim(claim.run_id)
    await journal.release(claim, "ended", [])
    await journal.fork("loaded", "fork", 1, [], thread="t")
    _same("the thread of the fork", (await journal.read("fork")).info.thread, "t")
    with _expect_refusal("create beside an interrupted run of the thread", "bae-thread-busy"):
        await journal.create(_run("new", [_line(0)], thread="t"))
    await journal.release(await journal.claim("fork"), "cancelled", [])
    await journal.release(await journal.claim("queued"), "ended", [])


async def _lists_interrupted(journal: Journal) -> None:
    """`runs(status="interrupted")` lists the runs that are "running" without an owner."""
    for n in range(5):
        claim = await _begin_run(journal, f"r{n}", graph="AB"[n % 2])
        await journal.release(claim, "running", [])
    await journal.claim("r1")
    await _end_run(journal, "over")
    interrupted = await _ids(journal, status="interrupted")
    _same("the interrupted runs", interrupted, ["r4", "r3", "r2", "r0"])
    page = await _ids(journal, status="interrupted", limit=2, before="r4")
    _same("a page of interrupted runs", page, ["r3", "r2"])
    _same(
        "the interrupted runs of a graph",
        await _ids(journal, status="interrupted", graph="B"),
        ["r3"],
    )
    _same("the number of running runs", len(await _ids(journal, status="running")), 5)


async def _refuses_bad_pages(journal: Journal) -> None:
    """`runs` raises ValueError for invalid arguments. To check them, a store can call `check_page`
    or `list_runs`."""
    nonsense: list[dict[str, Any]] = [
        {"status": "nope"},
        {"limit": -1},
        {"before": "r", "after": 1},
    ]
    for arguments in nonsense:
        with _expect_refusal(f"runs({arguments})", ValueError):
            await journal.runs(**arguments)


async def _numbers_changes(journal: Journal) -> None:
    """`runs(after=…)` lists the runs that have changed since a change number, in the order of the
    changes. Each change gets a greater number than all earlier changes."""
    numbers: list[int] = []

    async def follow(what: str, *expected: str) -> None:
        changed = await journal.runs(after=numbers[-1] if numbers else 0)
        _same(f"runs(after=…) after {what}", [info.run_id for info in changed], [*expected])
        numbers.extend(info.change for info in changed)
        _same(f"the order of changes after {what}", numbers, sorted(set(numbers)))

    claim, other = await _begin_run(journal, "a"), await _begin_run(journal, "b")
    await follow("create", "a", "b")
    await journal.append(claim, [_line(1)])
    await follow("append, which changes no entry")
    await journal.release(claim, "waiting", [], [_GATE])
    await follow("release", "a")
    await journal.answer("a", _GATE.address, "1")
    await follow("answer", "a")
    await journal.release(other, "failed", [])
    await journal.claim("a")
    await follow("release and claim", "b", "a")
    await journal.fork("b", "c", 1, [])
    await follow("fork", "c")
    await journal.delete(["c"])
    await journal.create(_run("d", [_line(0)], status="queued"), claim=False)
    await follow("the newest change was deleted and a run queued", "d")
    _same("runs(after=…, limit=1)", await _ids(journal, after=0, limit=1), ["b"])
    _same("runs(after=…, status=…)", await _ids(journal, after=0, status="running"), ["a"])


async def _forks(journal: Journal) -> None:
    """A fork has the parent's lines before the fork point, and then its own lines. Parent and fork
    continue independently."""
    claim = await _begin_run(journal, count=5)
    await journal.answer("run", "g", "1")
    forked = _line(3, '{"parent": "run"}', kind="RunForked", at=5000.0)
    await journal.fork("run", "new", 3, [forked])
    await journal.append(claim, [_line(5)])
    new = await journal.read("new")
    _same("its lines", new.lines, (*_lines(0, 3), forked))
    _same("its answers and shape", (new.answers, new.shape), ({}, _SHAPE))
    info = new.info
    entry = (info.graph, info.status, info.parent, info.owner, info.started, info.updated)
    _same("its entry", entry, ("Trip", "running", "run", None, forked.at, forked.at))
    _same("its thread, by default", info.thread, None)
    _same("its entry from `info`", await journal.info("new"), info)
    await journal.append(await journal.claim("new"), [_line(4)])
    _same("the numbers of its lines", await _numbers(journal, "new"), [0, 1, 2, 3, 4])
    _same("the numbers of its parent's lines", await _numbers(journal), [0, 1, 2, 3, 4, 5])


async def _forks_forks(journal: Journal) -> None:
    """A fork can be forked, before and after its own fork point. A call of `fork` with wrong
    arguments changes nothing."""
    await _end_run(journal, "a", 5, data='{"of": "a"}')
    await journal.fork("a", "b", 3, _lines(3, 6, data='{"of": "b"}'))
    await journal.fork("b", "c", 5, _lines(5, 6, data='{"of": "c"}'))
    await journal.fork("c", "d", 2, _lines(2, 3, data='{"of": "d"}'))
    await journal.fork("c", "e", 6, [])
    for run_id, text in {"a": "aaaaa", "b": "aaabbb", "c": "aaabbc", "d": "aad"}.items():
        lines = (await journal.read(run_id)).lines
        _same(f"who wrote the lines of {run_id}", "".join(line.data[8] for line in lines), text)
    await journal.append(await journal.claim("e"), [_line(6)])
    with _expect_refusal("a fork with an id that exists", "bae-run-exists"):
        await journal.fork("a", "b", 1, [])
    for upto, new_lines in ((6, []), (-1, []), (2, [_line(3)]), (2, [_line(1)])):
        with _expect_refusal(f"a fork at line {upto} with {new_lines}", ValueError):
            await journal.fork("a", "new", upto, new_lines)
    _same("the runs", await _ids(journal), ["e", "d", "c", "b", "a"])


async def _deletes(journal: Journal) -> None:
    """`delete` removes a run with its answers, and the id can be used again. A run with an owner is
    not deleted. If a fork needs the lines of its parent, the fork keeps these lines, or the parent
    is not deleted."""
    claim = await _begin_run(journal, count=3)
    _same("what delete of an owned run returns", await journal.delete(["run"]), 0)
    await journal.append(claim, [_line(3)])
    await journal.answer("run", "g", "1")
    await journal.release(claim, "ended", [])
    await journal.fork("run", "fork", 2, [])
    await journal.delete(["run"])
    _same("the lines of the fork", await _numbers(journal, "fork"), [0, 1])
    await journal.delete(["fork", "none", "run"])
    _same("the runs", await _ids(journal), [])
    with _expect_refusal("read of a deleted run", "bae-run-unknown"):
        await journal.read("run")
    await _end_run(journal, data='{"new": 1}')
    stored = await journal.read("run")
    _same("a new run of its id", (stored.lines, stored.answers), ((_line(0, '{"new": 1}'),), {}))
    _same("what delete returns", await journal.delete(["run", "run", "none"]), 1)


async def _prunes(journal: Journal) -> None:
    """`prune` deletes runs by age and status. It deletes the runs of a thread only together, when
    every run of the thread is old enough and has one of the statuses."""
    now = 4e9  # a time in the future, so that `prune` never deletes these runs
    for thread, newest, status in (("a", 10.0, "failed"), ("b", now, "ended")):
        await _end_run(journal, f"{thread}1", at=10.0, thread=thread)
        await _end_run(journal, f"{thread}2", at=newest, thread=thread, status=status)
    await _end_run(journal, "c1", at=10.0, thread="c")
    await _end_run(journal, "c2", at=10.0, thread="c", status="waiting")
    old = await journal.older(15.0, ["ended", "failed"])
    _same("older(15, ended or failed), by threads", old, ["a1", "a2"])
    _same("what prune of a thread returns", await journal.prune(older_than=3600), 2)
    await journal.delete(["b1", "b2", "c1", "c2"])
    await _end_run(journal, "old", at=10.0)
    await _end_run(journal, "failed", at=20.0, status="failed")
    await _end_run(journal, "parked", at=10.0, status="waiting")
    await _end_run(journal, "new", at=now)
    old = await journal.older(15.0, ["ended", "waiting"])
    _same("older(15, ended or waiting)", old, ["old", "parked"])
    _same("older(10, ended)", await journal.older(10.0, ["ended"]), [])
    _same("what prune returns", await journal.prune(older_than=3600), 2)
    _same("the runs that are left", await _ids(journal), ["new", "parked"])


async def _keeps_runs_apart(journal: Journal) -> None:
    """If many runs write at once, each run has exactly its own lines."""

    async def write(name: str) -> None:
        claim = await _check_claim(journal.create(_run(name, [])))
        for n in range(12):
            line = _line(n, f'{{"of": "{name}"}}')
            if n % 3:
                journal.note(claim, line)
            else:
                await journal.append(claim, [line])
        await journal.release(claim, "ended", [])

    names = [f"run-{number}" for number in range(30)]
    await asyncio.gather(*map(write, names))
    for name in names:
        stored = await journal.read(name)
        _same(f"the lines of {name}", stored.lines, (*_lines(0, 12, data=f'{{"of": "{name}"}}'),))


async def _replaces(journal: Journal) -> None:
    """`replace` replaces either all of the given runs or none, and releases their claims. A store
    without `replace` refuses redaction and load(existing="replace")."""
    if type(journal).replace is Journal.replace:
        await _end_run(journal)
        with _expect_refusal("redaction", "bae-journal-replace"):
            await journal.redact("run", "Person.email")
        return
    for run_id in ("a", "b"):
        await _end_run(journal, run_id, 3, status="failed")
        await journal.answer(run_id, "g", "1")
    await _begin_run(journal, "owned")
    claim, owned_run = await journal.claim("b"), await journal.read("owned")
    old = [await journal.read("a"), await journal.read("b")]
    lines = _line(0), _line(1, '{"new": 1}')
    new = [replace(run, lines=lines, answers={}) for run in old]
    new = [replace(run, info=replace(run.info, updated=lines[-1].at)) for run in new]
    with _expect_refusal("replace of a run that a process works on", "bae-run-owned"):
        await journal.replace([new[0], owned_run], [])
    _same("a, after a refusal", await journal.read("a"), old[0])
    info = replace(new[1].info, status="failed", owner=None, lease_until=None)
    new[1] = replace(new[1], info=info)
    await journal.replace(new, [claim])
    _same("a and b", [await journal.read("a"), await journal.read("b")], new)
    _same("the runs, in their order", await _ids(journal), ["owned", "b", "a"])
    with _expect_refusal("append under a claim that replace has released", "bae-run-taken"):
        await journal.append(claim, [_line(2)])
    await journal.put(replace(new[0], info=replace(new[0].info, run_id="c")), replace=True)
    _same("the runs, with a new one", await _ids(journal), ["c", "owned", "b", "a"])


async def _keeps_files(journal: Journal) -> None:
    """A file is stored no later than the first line that refers to it. The file stays as long as a
    run refers to it. A store without `put_files` refuses files."""
    one, two = b"one", b"two"
    files = {_hash(one): one}
    if not keeps_files(journal):
        with _expect_refusal("a run with a file", "bae-journal-files"):
            await journal.put(replace(_run("run", [_line(0)]), files=files))
        return
    claim = await _check_claim(journal.create(replace(_run("run", [_line(0)]), files=files)))
    _same("the files that it was created with", (await journal.read("run")).files, files)
    files[_hash(two)] = two
    journal.put_files(claim, {_hash(two): two})
    journal.note(claim, _line(1, f'{{"hash": "{_hash(one)}"}}'))
    await journal.append(claim, [_line(2, f'{{"hash": "{_hash(two)}"}}')])
    _same("its files", (await journal.read("run")).files, files)
    journal.put_files(claim, files)
    await journal.append(claim, [_line(3)])
    _same("its files, stored a second time", (await journal.read("run")).files, files)
    await journal.fork("run", "fork", 2, [_line(2)])
    _same("the files of a fork", (await journal.read("fork")).files, {_hash(one): one})
    for hash, run_id, expected in (
        (_hash(one), "run", one),
        (_hash(one), "fork", one),
        (_hash(two), "run", two),
        (_hash(two), "fork", None),
        (_hash(two), "other", None),
    ):
        data = await journal.find_file(hash, lambda info, seen=run_id: info.run_id == seen)
        _same(f"a file that the reader of {run_id} may see", data, expected)
    three = b"three"
    answer = "run", "1:Refund.approved", "true", "ana"
    _same("the first answer", await journal.answer(*answer, {_hash(three): three}), True)
    _same("another answer", await journal.answer(*answer, {_hash(b"four"): b"four"}), False)
    files[_hash(three)] = three
    _same("its files, with the file of an answer", (await journal.read("run")).files, files)
    await journal.release(claim, "ended", [])
    await journal.put(replace(_run("copy", [_line(0)]), files={_hash(two): two}))
    await journal.delete(["run", "fork"])
    _same("the files of a copy", (await journal.read("copy")).files, {_hash(two): two})
    await _end_run(journal, "other")
    _same("the files of another run", (await journal.read("other")).files, {})
    lost = await _begin_run(journal, "lost")
    await journal.release(lost, "failed", [])
    await _check_claim(journal.claim("lost"))
    journal.put_files(lost, {_hash(one): one})
    with _expect_refusal("a line after a file, under a claim that was given up", "bae-run-taken"):
        await journal.append(lost, [_line(1)])
    _same("the files of a run that was taken over", (await journal.read("lost")).files, {})


async def _closes(journal: Journal) -> None:
    """If a store has a `close`, it refuses every call after `close` with bae-journal-closed."""
    claim = await _begin_run(journal)
    await journal.close()
    await journal.close()
    if type(journal).close is Journal.close:
        return
    journal.note(claim, _line(1))
    for what, ask in {
        "create": lambda: journal.create(_run("other", [])),
        "append": lambda: journal.append(claim, [_line(1)]),
        "release": lambda: journal.release(claim, "ended", []),
        "claim": lambda: journal.claim("run"),
        "read": lambda: journal.read("run"),
        "runs": lambda: journal.runs(),
        "answer": lambda: journal.answer("run", "g", "1"),
        "delete": lambda: journal.delete(["run"]),
    }.items():
        with _expect_refusal(f"{what} after close", "bae-journal-closed"):
            await ask()


PROMISES: Final[Sequence[Callable[[Journal], Awaitable[None]]]] = (
    _reads_back,
    _takes_at_the_call,
    _leaves_no_gap,
    _notes,
    _gives_an_id_once,
    _knows_its_runs,
    _has_one_owner,
    _queues,
    _keeps_entries,
    _releases,
    _fences,
    _ends,
    _answers_once,
    _lists,
    _finds_metadata,
    _keeps_threads,
    _keeps_answers_of_threads,
    _lists_interrupted,
    _refuses_bad_pages,
    _numbers_changes,
    _forks,
    _forks_forks,
    _deletes,
    _prunes,
    _keeps_runs_apart,
    _replaces,
    _keeps_files,
    _closes,
)
"""The promises that `check_journal` checks with one store."""


# --- two stores of the same runs ----------------------------------------------------------------


async def _shares(one: Journal, two: Journal) -> None:
    """Another process can read everything that a store has acknowledged as stored."""
    claim = await _begin_run(one)
    await one.append(claim, [_line(1)])
    _same("the numbers of its lines", await _numbers(two), [0, 1])
    _same("its owner", (await two.read("run")).info.owner, claim.owner)
    await two.answer("run", "g", "1")
    _same("a second answer, from elsewhere", await one.answer("run", "g", "2"), False)
    before = (await one.runs())[0].change
    await two.create(_run("new", [_line(0)], status="queued"), claim=False)
    _same("the changes by another process", await _ids(one, after=before), ["new"])


async def _respects_owners(one: Journal, two: Journal) -> None:
    """A store does not claim, delete or replace a run that another process owns. When the owner
    closes its store, other processes can claim the run and continue."""
    claim = await _begin_run(one)
    with _expect_refusal("a claim of a run that another process owns", "bae-run-owned"):
        await two.claim("run")
    _same("what delete returns", await two.delete(["run"]), 0)
    if type(two).replace is not Journal.replace:
        with _expect_refusal("replace of a run that another process owns", "bae-run-owned"):
            await two.replace([await two.read("run")])
    await one.append(claim, [_line(1)])
    await one.close()
    await two.append(await two.claim("run"), [_line(2)])
    _same("the numbers of its lines", await _numbers(two), [0, 1, 2])


async def _shares_threads(one: Journal, two: Journal) -> None:
    """At most one run of a thread is in progress in all processes together."""
    starts = [
        _begin_run(journal, f"r{n}", thread="t") for n, journal in enumerate((one, two, one, two))
    ]
    results = await asyncio.gather(*starts, return_exceptions=True)
    codes = sorted(getattr(result, "code", "") for result in results)
    _same("the errors of four runs of a thread", codes, ["", *(["bae-thread-busy"] * 3)])


SHARED_PROMISES: Final[Sequence[Callable[[Journal, Journal], Awaitable[None]]]] = (
    _shares,
    _respects_owners,
    _shares_threads,
)
"""The promises of a store that several processes share. `check_journal` checks them with two
stores of the same runs."""


# --- parts --------------------------------------------------------------------------------------


def _with_reopened(
    promise: Callable[[Journal, Journal], Awaitable[None]], reopen: Callable[[Any], Journal]
) -> Callable[[Journal], Awaitable[None]]:
    async def check(journal: Journal) -> None:
        async with reopen(journal) as other:
            await promise(journal, other)

    return check


def _hash(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def _line(
    n: int, data: str = '{"x": 1}', *, kind: str = "StepStarted", at: float = 1000.0, **where: Any
) -> Line:
    return Line(n, kind, at + n, where.get("path", ""), where.get("step", 0), data)


def _lines(first: int, end: int, **parts: Any) -> list[Line]:
    return [_line(n, **parts) for n in range(first, end)]


def _run(run_id: str, lines: Iterable[Line], **parts: Any) -> StoredRun:
    run_lines = tuple(lines)
    first, last = (run_lines[0].at, run_lines[-1].at) if run_lines else (1000.0, 1000.0)
    graph, status = parts.pop("graph", "Trip"), parts.pop("status", "running")
    return StoredRun(
        RunInfo(run_id, graph, status, first, last, "hash", **parts), _SHAPE, run_lines, {}
    )


async def _check_claim(created: Awaitable[Claim | None]) -> Claim:
    claim = await created
    if claim is None:
        raise AssertionError("create returned no claim")
    return claim


async def _begin_run(
    journal: Journal, run_id: str = "run", count: int = 1, *, graph: str = "Trip", **parts: Any
) -> Claim:
    """Create a run with `count` lines and return its claim."""
    thread = parts.pop("thread", None)
    run = _run(run_id, _lines(0, count, **parts), graph=graph, thread=thread)
    return await _check_claim(journal.create(run))


async def _end_run(
    journal: Journal, run_id: str = "run", count: int = 1, *, status: Any = "ended", **parts: Any
) -> None:
    """Create a run with `count` lines and release it with `status`."""
    await journal.release(await _begin_run(journal, run_id, count, **parts), status, [])


async def _numbers(journal: Journal, run_id: str = "run") -> list[int]:
    return [line.n for line in (await journal.read(run_id)).lines]


async def _ids(journal: Journal, **filters: Any) -> list[str]:
    return [info.run_id for info in await journal.runs(**filters)]


def _same(what: str, actual: Any, expected: Any) -> None:
    if actual != expected:
        raise AssertionError(_difference(what, actual, expected))


def _difference(what: str, actual: Any, expected: Any) -> str:
    """Describe the first difference between two values."""
    if type(actual) is type(expected) and is_dataclass(actual):
        for field in fields(actual):
            mine, other = getattr(actual, field.name), getattr(expected, field.name)
            if field.compare and mine != other:
                return _difference(f"{what}, {field.name}", mine, other)
    if isinstance(actual, list | tuple) and isinstance(expected, list | tuple):
        pairs = zip(cast("Sequence[Any]", actual), cast("Sequence[Any]", expected), strict=False)
        for number, (mine, other) in enumerate(pairs):
            if mine != other and (is_dataclass(mine) or isinstance(mine, Line)):
                return _difference(f"{what}, number {number}", mine, other)
    return f"{what}: expected {expected!r}, got {actual!r}"


def _true(what: str, actual: bool) -> None:
    if not actual:
        raise AssertionError(f"expected that {what}")


@contextmanager
def _expect_refusal(what: str, by: str | type[Exception]) -> Generator[list[Exception]]:
    """Raise AssertionError unless the block raises the error `by`: the code of a `JournalError`, or
    a class of exceptions."""
    raised: list[Exception] = []
    expected = f"{what} must be refused with {by if isinstance(by, str) else by.__name__}"
    try:
        yield raised
    except Exception as error:
        code = getattr(error, "code", None)
        if (code != by) if isinstance(by, str) else not isinstance(error, by):
            raise AssertionError(f"{expected}, but it raised {describe(error)}") from error
        raised.append(error)
    else:
        raise AssertionError(f"{expected}, but it succeeded")


def _sentence(promise: Callable[..., Any]) -> str:
    return " ".join((promise.__doc__ or "").split())


def _what_happened(error: Exception) -> str:
    if isinstance(error, AssertionError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"it took longer than {SECONDS:.0f} s"
    return f"the store raised {describe(error)}"
