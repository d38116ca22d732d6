"""Values taken out of stored runs for good: the run and those that share its lines are read,
changed and stored again, held for that time so that nobody writes them meanwhile. `withholding.py`
knows where a run holds what; `Journal.redact` is the way in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from bae.exceptions import JournalError
from bae.journal.coding.off_loop import off_loop
from bae.journal.files.line_data import WITHHELD, Place
from bae.journal.files.same_text import SameText
from bae.journal.files.withholding import Opened
from bae.journal.shape.shapes import segments
from bae.journal.store import Claim, Journal, Rewrite, RunInfo, StoredRun
from bae.tasks import gone


@dataclass(frozen=True, slots=True)
class Redaction:
    """What `Journal.redact` has done.

    - `runs`: the runs that were redacted, the one that was named first.
    - `places`: the fields whose values are withheld now: those that were named, those that hold
      the same values by a Recall or a Dep, and with `copies=True` those with the same text.
    - `values`: how many values there were; `texts`: how many prompts, answers and messages.
    - `left`: the other fields that still hold the same text. Texts of less than four characters
      are not looked for.

    Hashes of prompts stay: they tell one prompt from another, and not what was in it.
    """

    runs: tuple[str, ...]
    places: tuple[str, ...]
    values: int
    texts: int
    left: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = (
            f"{_count(self.values, 'value')} of {', '.join(self.places)} and "
            f"{_count(self.texts, 'text')} of LM calls and errors are gone from "
            f"{_count(len(self.runs), 'run')}"
        )
        if self.left:
            said += f"\nthe same text is still in {', '.join(self.left)}: redact these too, or give"
            said += " copies=True"
        return said


async def redact(
    journal: Journal, run_id: str, places: Sequence[str], *, copies: bool = False
) -> Redaction:
    """Take the values of fields out of a run; see `Journal.redact`."""
    if not places:
        raise TypeError('redact(run_id) without a place: name a field, as "Person.email"')
    family = await _family(journal, run_id)
    held: list[tuple[Claim, RunInfo]] = []
    errors: dict[str, str] = {}
    try:
        for info in family:
            if info.status != "ended":  # which nobody goes on with
                held.append((await journal.claim(info.run_id), info))
        runs = [await journal.read(info.run_id) for info in family]
        done = await off_loop(
            sum(len(run.lines) for run in runs), _taken_out, runs, family, places, copies
        )
        # A claim wipes the error off a run; it is put back with the rest.
        errors = {i.run_id: WITHHELD if done.same.is_in(i.error) else i.error for i in family}
        await journal.rewrite(done.changes)
        return done.report
    finally:
        task = asyncio.ensure_future(_let_go(journal, held, errors))
        await gone([task])
        task.result()


def _opened(run: StoredRun, family: Sequence[RunInfo]) -> Opened:
    if run.info.parent not in [info.run_id for info in family]:
        return Opened(run)
    forks = [line.n for line in run.lines if line.kind == "RunForked" and not line.path]
    return Opened(run, forks[-1] if forks else 0)


@dataclass(frozen=True, slots=True)
class _Done:
    report: Redaction
    changes: list[Rewrite]
    same: SameText


def _taken_out(
    runs: Sequence[StoredRun], family: Sequence[RunInfo], places: Sequence[str], copies: bool
) -> _Done:
    opened = [_opened(run, family) for run in runs]
    wanted = _wanted(opened, places)
    taken: list[Any] = []
    while True:
        for each in opened:
            taken += each.withhold(wanted)
        same = SameText(taken)
        more = {place for each in opened for place in each.left(same, wanted)} - wanted
        more = {place for place in more if not isinstance(place, str)}
        if not (copies and more):
            break
        wanted |= more
    for each in opened:
        each.silence(wanted, same)
    left = {place for each in opened for place in each.left(same, wanted)}
    report = Redaction(
        tuple(each.run.info.run_id for each in opened),
        tuple(sorted(f"{cls}.{field}" for cls, field in wanted)),
        sum(each.values for each in opened),
        sum(each.texts for each in opened),
        tuple(sorted(place if isinstance(place, str) else ".".join(place) for place in left)),
    )
    changes = [
        Rewrite(each.run.info.run_id, each.changed(), each.answered(wanted)) for each in opened
    ]
    return _Done(report, changes, same)


def _wanted(opened: list[Opened], places: Sequence[str]) -> set[Place]:
    fields: dict[str, set[str]] = {}
    for each in opened:
        for cls, names in each.fields().items():
            fields.setdefault(cls, set()).update(names)
    wanted: set[Place] = set()
    for place in places:
        parts = segments(place) or ()
        named = parts[0] if len(parts) == 1 else None
        known = fields.get(named.node) if named is not None else None
        if named is None or known is None or (named.field and named.field not in known):
            raise _unknown(place, fields)
        if named.field:
            wanted.add((named.node, f"{named.field}{named.route}"))
        else:
            wanted |= {(named.node, name) for name in known}
    while True:
        more = {place for each in opened for place in each.related(wanted)} - wanted
        if not more:
            return wanted
        wanted |= more


def _unknown(place: str, fields: dict[str, set[str]]) -> JournalError:
    known = [f"{cls}.{name}" for cls, names in fields.items() for name in sorted(names)]
    near = get_close_matches(place, known, n=3, cutoff=0.5)
    return JournalError(
        f"the run has no field {place}, so nothing was redacted",
        code="bae-redact-unknown",
        fix=f"name one as {' or '.join(near) if near else 'Person.email'}, or a class for all of "
        f"its fields; there are {', '.join(known)}",
    )


async def _family(journal: Journal, run_id: str) -> list[RunInfo]:
    """The run, and those that share lines with it: the one it was forked from, those that were
    forked from it, and so on."""
    first = (await journal.read(run_id)).info
    related: dict[str, set[str]] = {}
    infos: dict[str, RunInfo] = {run_id: first}
    async for info in journal.every_run():
        infos[info.run_id] = info
        if info.parent is not None:
            related.setdefault(info.run_id, set()).add(info.parent)
            related.setdefault(info.parent, set()).add(info.run_id)
    family = [run_id]
    for each in family:
        family.extend(sorted(r for r in related.get(each, ()) if r not in family and r in infos))
    return [infos[each] for each in family]


async def _let_go(
    journal: Journal, held: list[tuple[Claim, RunInfo]], errors: dict[str, str]
) -> None:
    for claim, info in held:
        error = errors.get(info.run_id, info.error)
        await journal.release(claim, info.status, (), info.waiting, error)


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
