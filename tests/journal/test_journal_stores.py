"""What every journal promises, whatever it keeps its runs in."""

import asyncio
from dataclasses import replace as with_other

import pytest

from bae import JournalError
from bae.journal import MemoryJournal, ParkedGate, SQLiteJournal, store
from bae.journal.store import Rewrite
from journal_parts import SHAPE, begun, ended, ids, line, lines, numbers, refused

pytestmark = pytest.mark.once

GATE = ParkedGate("2:Refund.approved", "Refund.approved", "May I?", 2000.0)


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request, tmp_path):
    made = MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "runs.db")
    async with made:
        yield made


async def test_a_run_is_read_back_as_it_was_written(journal):
    first = line(0, '{"run": "ä \\u2028 \U0001f600"}', kind="RunStarted", at=12.5)
    claim = await journal.create("run", "Trip", SHAPE, "hash", [first])
    more = [line(1, '{"deep": [1, {"a": null}]}', path="2:Report.x[3]", step=7, kind="FillEnded")]
    await journal.append(claim, more)
    stored = await journal.read("run")
    assert stored.lines == (first, *more)
    assert (stored.shape, stored.answers) == (SHAPE, {})
    info = stored.info
    assert (info.run_id, info.graph, info.status, info.shape) == ("run", "Trip", "running", "hash")
    assert (info.started, info.updated) == (12.5, more[-1].at)
    assert info.owner == claim.owner
    assert info.lease_until is not None
    assert not info.is_interrupted(0.0)


async def test_lines_are_taken_in_at_the_call_and_in_order(journal):
    claim = await begun(journal)
    waiting = [journal.append(claim, [line(n)]) for n in range(1, 40)]
    await waiting[-1]
    assert await numbers(journal) == list(range(40))
    for each in waiting[:-1]:
        await each


async def test_a_line_out_of_order_is_refused_and_leaves_no_gap(journal):
    claim = await begun(journal)
    for wrong in ([line(2)], [line(0)], [line(1), line(3)]):
        with pytest.raises(ValueError, match="is due"):
            await journal.append(claim, wrong)
    await journal.append(claim, [line(1)])
    assert await numbers(journal) == [0, 1]
    with pytest.raises(ValueError, match="1"):
        await journal.create("other", "Trip", SHAPE, "hash", [line(1)])
    assert await ids(journal) == ["run"]


async def test_a_run_id_is_given_once(journal):
    await begun(journal, count=2)
    with refused("bae-run-exists") as error:
        await begun(journal, count=1)
    assert error.value.run_id == "run"
    assert await numbers(journal) == [0, 1]


async def test_a_run_that_is_not_there_is_unknown(journal):
    for asked in (
        journal.read("none"),
        journal.claim("none"),
        journal.answer("none", "gate", "1"),
        journal.fork("none", "new", 0, []),
        journal.replace("none", []),
        journal.runs(before="none"),
    ):
        with refused("bae-run-unknown"):
            await asked


async def test_a_run_has_one_owner(journal):
    claim = await begun(journal)
    with refused("bae-run-owned") as error:
        await journal.claim("run")
    assert claim.owner in str(error.value)
    await journal.append(claim, [line(1)])


async def test_a_released_run_says_how_it_came_out_and_can_be_claimed(journal):
    claim = await begun(journal)
    journal.note(claim, line(1))
    await journal.release(claim, "waiting", [line(2)], [GATE], "one line")
    info = (await journal.read("run")).info
    assert (info.status, info.waiting, info.error) == ("waiting", (GATE,), "one line")
    assert (info.owner, info.lease_until) == (None, None)
    assert await numbers(journal) == [0, 1, 2]
    again = await journal.claim("run")
    info = (await journal.read("run")).info
    assert (info.status, info.waiting, info.error) == ("running", (), "")
    await journal.append(again, [line(3)])
    assert await numbers(journal) == [0, 1, 2, 3]


async def test_a_claim_that_was_given_up_is_good_for_nothing(journal):
    claim = await begun(journal)
    await journal.release(claim, "cancelled", [])
    journal.note(claim, line(1))
    with refused("bae-run-taken"):
        await journal.append(claim, [line(1)])
    with refused("bae-run-taken"):
        await journal.release(claim, "failed", [line(1)])
    new = await journal.claim("run")
    with refused("bae-run-taken"):
        await journal.append(claim, [line(1)])
    await journal.append(new, [line(1)])
    assert await numbers(journal) == [0, 1]


async def test_a_run_that_has_ended_is_claimed_no_more(journal):
    await ended(journal, count=3)
    before = await journal.read("run")
    with refused("bae-run-ended") as error:
        await journal.claim("run")
    assert error.value.run_id == "run"
    assert await journal.read("run") == before


async def test_a_gate_that_was_answered_is_listed_so(journal):
    claim = await begun(journal)
    other = ParkedGate("3:Refund.sum", "Refund.sum", "How much?")
    await journal.release(claim, "waiting", [], [GATE, other])
    assert [gate.answered for gate in (await journal.runs())[0].waiting] == [False, False]
    await journal.answer("run", GATE.address, "true")
    waiting = (with_other(GATE, answered=True), other)
    assert (await journal.runs(status="waiting"))[0].waiting == waiting
    assert (await journal.read("run")).info.waiting == waiting


async def test_interrupted_runs_are_listed_alone(journal):
    for number in range(7):
        claim = await begun(journal, f"r{number}", graph="AB"[number % 2])
        await journal.release(claim, "running", [])
    claims = [await journal.claim(run_id) for run_id in ("r1", "r4")]
    await ended(journal, "over")
    assert await ids(journal, status="interrupted") == ["r6", "r5", "r3", "r2", "r0"]
    assert await ids(journal, status="interrupted", limit=2, before="r5") == ["r3", "r2"]
    assert await ids(journal, status="interrupted", graph="B") == ["r5", "r3"]
    assert len(await ids(journal, status="running")) == 7
    for claim in claims:
        await journal.release(claim, "failed", [])
    assert len(await ids(journal, status="interrupted")) == 5


async def test_a_status_that_there_is_not_is_refused_with_those_there_are(journal):
    await ended(journal)
    for asked in (
        journal.runs(status="nope"),
        journal.prune(older_than=0, statuses=["nope"]),
        anext(aiter(journal.every_run(status="nope"))),
    ):
        with pytest.raises(ValueError, match="'nope': give one of running, waiting, ended"):
            await asked
    assert await ids(journal) == ["run"]


async def test_every_run_is_met_once_though_some_are_deleted_meanwhile(journal, monkeypatch):
    monkeypatch.setattr(store, "_PAGE", 10)
    for number in range(35):
        await ended(journal, f"r{number}", graph="AB"[number % 2])
    newest = [f"r{number}" for number in reversed(range(35))]
    assert [info.run_id async for info in journal.every_run()] == newest
    even = [info.run_id async for info in journal.every_run(status="ended", graph="A")]
    assert even == newest[::2]
    assert [info async for info in journal.every_run(status="failed")] == []
    met = []
    async for info in journal.every_run():
        met.append(info.run_id)
        if len(met) == 10:  # the last of a page, and the one before it
            await journal.delete(met[-2:])
    assert met == newest


async def test_a_run_takes_the_place_of_another_or_that_one_stays(journal):
    await ended(journal, count=5, data='{"old": 1}')
    await journal.answer("run", "g", "1")
    other = MemoryJournal()
    await journal.release(await begun(journal, "mine"), "failed", [])
    await ended(other, count=2, data='{"new": 1}', status="failed")
    new = await other.read("run")
    with refused("bae-run-exists"):
        await journal.put(new)
    wrong = with_other(new, lines=(new.lines[0], new.lines[1]._replace(data="\ud800")))
    if isinstance(journal, SQLiteJournal):
        with pytest.raises((JournalError, UnicodeError)):
            await journal.put(wrong, replace=True)
        assert await numbers(journal) == [0, 1, 2, 3, 4]
        assert (await journal.read("run")).answers == {"g": "1"}
    await journal.put(new, replace=True)
    assert await journal.read("run") == new
    await journal.put(with_other(new, info=with_other(new.info, run_id="none")), replace=True)
    assert await ids(journal) == ["none", "run", "mine"]


async def test_a_run_that_was_put_keeps_when_it_began_and_what_it_was_forked_from(journal):
    await ended(journal, "p", 2, at=50.0)
    info = with_other((await journal.read("p")).info, run_id="f", started=7.0, parent="elsewhere")
    await journal.put(with_other(await journal.read("p"), info=info))
    assert (await journal.read("f")).info == info
    assert (await journal.runs())[0] == info


async def test_several_runs_are_rewritten_together_or_not_at_all(journal):
    for run_id in ("a", "b"):
        await ended(journal, run_id, 3)
        await journal.answer(run_id, "g", "1")
    changes = [Rewrite("a", [line(1, '{"new": 1}')], ["g"]), Rewrite("b", [line(3)], ["g"])]
    before = [await journal.read(run_id) for run_id in ("a", "b")]
    with pytest.raises(ValueError, match="no line 3"):
        await journal.rewrite(changes)
    assert [await journal.read(run_id) for run_id in ("a", "b")] == before
    await journal.rewrite([changes[0], Rewrite("b", [line(2, '{"new": 2}')])])
    read = [await journal.read(run_id) for run_id in ("a", "b")]
    assert [run.lines[n].data for run, n in zip(read, (1, 2), strict=True)] == [
        '{"new": 1}',
        '{"new": 2}',
    ]
    assert [run.answers for run in read] == [{}, {"g": "1"}]


async def test_a_claim_of_another_journal_is_refused(journal, tmp_path):
    for other in (MemoryJournal(), SQLiteJournal(tmp_path / "other.db")):
        async with other:
            claim = await begun(other)
            with pytest.raises(JournalError):
                await journal.append(claim, [line(1)])
            journal.note(claim, line(1))
            with pytest.raises(JournalError):
                await journal.release(claim, "ended", [])
            assert await numbers(other) == [0]
    assert await ids(journal) == []


async def test_the_newest_runs_are_listed_first_page_by_page(journal):
    for number in range(7):
        await ended(journal, f"r{number}", graph="AB"[number % 2], at=float(number))
    held = await begun(journal, "last", graph="A")
    await journal.release(await begun(journal, "parked", graph="B"), "waiting", [], [GATE])
    names = ["parked", "last", *(f"r{n}" for n in reversed(range(7)))]
    assert await ids(journal) == names
    assert await ids(journal, limit=3) == names[:3]
    assert await ids(journal, limit=3, before="r6") == ["r5", "r4", "r3"]
    assert await ids(journal, limit=0) == []
    assert await ids(journal, status="ended", limit=2) == ["r6", "r5"]
    assert await ids(journal, status="running") == ["last"]
    assert await ids(journal, graph="A") == ["last", "r6", "r4", "r2", "r0"]
    assert await ids(journal, graph="A", limit=2, before="r4") == ["r2", "r0"]
    assert await ids(journal, graph="B", status="waiting") == ["parked"]
    assert await ids(journal, graph="B", status="ended", before="r5") == ["r3", "r1"]
    assert await ids(journal, graph="C") == []
    assert (await journal.runs(status="waiting"))[0].waiting == (GATE,)
    with pytest.raises(ValueError, match="limit"):
        await journal.runs(limit=-1)
    await journal.release(held, "ended", [])


async def test_one_answer_to_a_gate_wins(journal):
    await ended(journal, status="waiting")
    results = await asyncio.gather(*(journal.answer("run", "g", str(n)) for n in range(5)))
    assert sorted(results) == [False, False, False, False, True]
    assert await journal.answer("run", "other", '"x"') is True
    stored = await journal.read("run")
    assert stored.answers == {"g": str(results.index(True)), "other": '"x"'}


async def test_a_fork_shares_what_came_before_and_goes_on_by_itself(journal):
    claim = await begun(journal, count=5)
    await journal.answer("run", "g", "1")
    forked = line(3, '{"parent": "run"}', kind="RunForked", at=5000.0)
    await journal.fork("run", "new", 3, [forked])
    await journal.append(claim, [line(5)])
    await journal.answer("run", "later", "2")
    new = await journal.read("new")
    assert new.lines == (*lines(0, 3), forked)
    assert (new.answers, new.shape) == ({}, SHAPE)
    info = new.info
    assert (info.graph, info.status, info.parent, info.owner) == ("Trip", "running", "run", None)
    assert (info.started, info.updated) == (forked.at, forked.at)
    assert info.is_interrupted(0.0)
    mine = await journal.claim("new")
    await journal.append(mine, [line(4)])
    assert await numbers(journal, "new") == [0, 1, 2, 3, 4]
    assert await numbers(journal) == [0, 1, 2, 3, 4, 5]


async def test_a_fork_can_be_forked_before_and_after_where_it_began(journal):
    await ended(journal, "a", 5, data='{"of": "a"}')
    await journal.fork("a", "b", 3, lines(3, 6, data='{"of": "b"}'))
    await journal.fork("b", "c", 5, lines(5, 6, data='{"of": "c"}'))
    await journal.fork("c", "d", 2, lines(2, 3, data='{"of": "d"}'))
    await journal.fork("d", "e", 0, [])
    await journal.fork("c", "f", 6, [])

    async def text(run_id):
        return "".join(each.data[8] for each in (await journal.read(run_id)).lines)

    assert [await text(each) for each in "abcdef"] == [
        "aaaaa",
        "aaabbb",
        "aaabbc",
        "aad",
        "",
        "aaabbc",
    ]
    claim = await journal.claim("f")
    await journal.append(claim, [line(6)])
    assert await numbers(journal, "f") == list(range(7))


async def test_a_fork_that_makes_no_sense_changes_nothing(journal):
    await ended(journal, count=3)
    await ended(journal, "other")
    with refused("bae-run-exists"):
        await journal.fork("run", "other", 1, [])
    for upto, own in ((4, []), (-1, []), (2, [line(3)]), (2, [line(1)])):
        with pytest.raises(ValueError):
            await journal.fork("run", "new", upto, own)
    assert await ids(journal) == ["other", "run"]


async def test_replaced_lines_are_others_wherever_they_are_shared(journal):
    await ended(journal, "a", 5)
    await journal.fork("a", "b", 3, lines(3, 5))
    await journal.fork("b", "c", 4, [])
    await journal.answer("b", "g", "1")
    await journal.answer("b", "h", "2")
    new = [line(1, '{"new": 1}'), line(3, '{"new": 3}', kind="Other", at=7.0)]
    await journal.replace("c", new, ["g"])
    for run_id, changed in (("a", [1]), ("b", [1, 3]), ("c", [1, 3])):
        stored = await journal.read(run_id)
        assert [each.n for each in stored.lines if "new" in each.data] == changed
    assert (await journal.read("b")).lines[3] == new[1]
    assert (await journal.read("b")).answers == {"g": "1", "h": "2"}
    await journal.replace("b", [], ["g", "none"])
    assert (await journal.read("b")).answers == {"h": "2"}


async def test_a_run_whose_lines_are_shared_is_deleted_with_or_after_its_forks(journal):
    for name in ("a", "z"):
        await ended(journal, name, 3)
    await journal.fork("a", "b", 2, [])
    await journal.fork("b", "c", 1, [])
    assert await journal.delete(["a", "b"]) == 0
    assert await journal.delete(["none", "c"]) == 1
    assert await journal.delete(["a"]) == 0
    assert await journal.delete(["a", "b", "a"]) == 2
    assert await ids(journal) == ["z"]
    assert await numbers(journal, "z") == [0, 1, 2]


async def test_a_deleted_run_is_gone_with_its_answers_and_its_id_is_free(journal):
    await ended(journal, count=3)
    await journal.answer("run", "g", "1")
    assert await journal.delete(["run"]) == 1
    with refused("bae-run-unknown"):
        await journal.read("run")
    await ended(journal, count=1, data='{"new": 1}')
    stored = await journal.read("run")
    assert (stored.lines, stored.answers) == ((line(0, '{"new": 1}'),), {})


async def test_a_run_that_somebody_is_at_work_on_is_not_deleted(journal):
    claim = await begun(journal)
    assert await journal.delete(["run"]) == 0
    await journal.append(claim, [line(1)])
    await journal.release(claim, "ended", [])
    assert await journal.delete(["run"]) == 1


async def test_runs_are_pruned_by_age_and_status(journal):
    now = 4e9  # after everything here was written, but for what is written now
    await ended(journal, "old", at=10.0)
    await ended(journal, "failed", at=20.0, status="failed")
    await ended(journal, "parked", at=10.0, status="waiting")
    await ended(journal, "new", at=now)
    claim = await begun(journal, "late", at=10.0)
    await journal.release(claim, "ended", [line(1, at=now)])
    assert sorted(await journal.older(15.0, ["ended", "waiting"])) == ["old", "parked"]
    assert await journal.older(10.0, ["ended"]) == []
    assert await journal.prune(older_than=3600) == 2
    assert await ids(journal) == ["late", "new", "parked"]
    assert await journal.prune(older_than=3600, statuses=["waiting"]) == 1


async def test_many_runs_write_at_once_and_none_gets_the_lines_of_another(journal):
    async def one(name):
        claim = await begun(journal, name, 0)
        for n in range(12):
            if n % 3:
                journal.note(claim, line(n, f'{{"of": "{name}"}}'))
            else:
                await journal.append(claim, [line(n, f'{{"of": "{name}"}}')])
        await journal.release(claim, "ended", [])

    names = [f"run-{number}" for number in range(30)]
    await asyncio.gather(*(one(name) for name in names))
    for name in names:
        stored = await journal.read(name)
        assert stored.lines == tuple(lines(0, 12, data=f'{{"of": "{name}"}}'))
        assert stored.info.status == "ended"


async def test_a_closed_journal_says_so_whatever_it_is_asked(journal):
    claim = await begun(journal)
    journal.note(claim, line(1))
    await journal.close()
    await journal.close()
    journal.note(claim, line(2))
    for asked in (
        begun(journal, "other"),
        journal.append(claim, [line(2)]),
        journal.release(claim, "ended", []),
        journal.claim("run"),
        journal.read("run"),
        journal.runs(),
        journal.answer("run", "g", "1"),
        journal.fork("run", "new", 0, []),
        journal.replace("run", []),
        journal.delete(["run"]),
        journal.older(1.0, ["ended"]),
    ):
        with refused("bae-journal-closed"):
            await asked


async def _replace(store, claims, run, first):
    await store.replace(run, [line(first, '{"new": 1}')])
