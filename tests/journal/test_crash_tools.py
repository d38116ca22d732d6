"""A process is killed while three tools of a round are in flight: the run is resumed in another
process and ends as it would have. No call that has ended is made again, nor any call that must not
be made twice, and the model never reads a history that a provider would refuse."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from bae.journal import Line, SQLiteJournal
from crash import workshop
from crash.checks import LEASE, is_sound, run_stories
from crash.child import Job, Outcome, Task
from crash.effects import Happened
from crash.forks import Forks
from crash.killing import MOMENTS, Kill

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes that it forks"),
]


class ToolStory:
    """One run, and everything that processes did with it."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.forks = forks
        self.journal, self.effects = folder / "runs.db", folder / "effects"
        self.process = 0
        self.writes: list[str] = []
        """What the last process wrote to the journal."""
        self.in_flight = 0
        """How many calls were in flight at most when a process was killed."""

    async def to_the_end(self, kills: Sequence[Kill | float]) -> Outcome:
        """Have processes continue the run, each killed as `kills` says, until it has ended."""
        left = iter(kills)
        while True:
            lines = await self.lines()
            finished = count_finished_calls(lines)
            before = len(lines)
            kill = next(left, None)
            action = "resume" if lines else "begin"
            task = Task("run", action, str(self.effects), self.process, has_tools=True)
            job = Job(str(self.journal), [task], LEASE, kill if isinstance(kill, Kill) else None)
            report = await self.forks.run(job, kill if isinstance(kill, float) else None)
            lines = await self.lines()
            assert len(lines) >= before
            self.check_process(finished, lines)
            self.process += 1
            if report is not None:
                outcome = report.outcomes["run"]
                assert not outcome.raised, outcome.raised
                self.writes = report.writes
                return outcome
            assert self.process <= len(kills), "it was not killed, and has not ended"

    def check_process(self, finished: Counter[str], lines: Sequence[Line]) -> None:
        """What must hold after each process, killed or not."""
        happened = Happened(self.effects)
        begun = happened.by(self.process)
        again = {name: begun[name] for name in finished if begun[name]}
        assert not again, f"ended before, and called again: {again}"
        assert all(n == 1 for n in begun.values()), f"twice in one process: {begun}"
        total = happened.total()
        twice = {n: times for n, times in total.items() if n.startswith("pay") and times > 1}
        assert not twice, f"paid more than once: {twice}"
        invented = count_finished_calls(lines) - happened.ended
        assert not invented, f"recorded, and never done: {invented}"
        started = sum(line.kind == "ToolStarted" for line in lines)
        ended = sum(line.kind == "ToolEnded" for line in lines)
        self.in_flight = max(self.in_flight, started - ended)

    async def lines(self) -> Sequence[Line]:
        if not self.journal.exists():
            return ()
        async with SQLiteJournal(self.journal) as journal:
            runs = await journal.runs()
            return (await journal.read("run")).lines if runs else ()


def count_finished_calls(lines: Sequence[Line]) -> Counter[str]:
    """The effects of calls that have ended in a result, by the lines of a run."""
    found: Counter[str] = Counter()
    for line in lines:
        data = json.loads(line.data)
        if line.kind == "ToolEnded" and "error" not in data and data["name"] != "fit":
            name = data["name"].replace("pay_part", "pay")
            found[f"{name} {next(iter(data['arguments'].values()))}"] += 1
        elif line.kind == "RoundReplied" and data["kind"] in ("refused", "accepted"):
            found[f"accept {'first' if data['kind'] == 'refused' else 'second'}"] += 1
        elif line.kind == "SourceEnded" and data["by"] == "get_till":
            found["get_till"] += 1
    found.update(list_finished_rounds(lines))
    return found


def list_finished_rounds(lines: Sequence[Line]) -> list[str]:
    """The effects of rounds of the run itself that were answered."""
    data = [json.loads(line.data) for line in lines if line.kind == "RoundMade" and not line.path]
    return [f"answer Done  {entry['number'] - 1}" for entry in data]


def check_outcome(outcome: Outcome) -> None:
    (_, _), (name, done) = outcome.trace
    assert (name, done["text"]) == ("Done", "second")
    assert [call["name"] for call in done["calls"]] == ["pay", "read_meter", "fit"] * 4
    wrong = [call for call in done["calls"] if not workshop.is_right(call)]
    assert wrong == []


@pytest.mark.parametrize("seeds", [5, pytest.param(50, marks=pytest.mark.slow)])
async def test_a_run_killed_with_three_tools_in_flight_repeats_no_finished_call(
    seeds: int, tmp_path: Path
):
    forks, in_flight = Forks(), list[int]()
    reference = ToolStory(forks, tmp_path / "reference")
    check_outcome(await reference.to_the_end([]))
    many = len(reference.writes)
    begun = [n for n in range(many) if reference.writes[n].startswith("append ToolStarted  ")]
    assert len(begun) == 3 * workshop.ROUNDS

    async def killed(seed: int) -> None:
        chance = Random(f"tools {seed}")
        story = ToolStory(forks, tmp_path / f"seed-{seed}")
        third = chance.choice(begun[2::3])  # the last of the three calls of a round begins
        in_round = Kill(third + seed % 5, chance.choice(MOMENTS) if seed else "after")
        at_write = Kill(chance.randrange(4, many), chance.choice(MOMENTS))
        later: list[Kill | float] = [at_write, *(chance.random() * 0.08 for _ in range(2))]
        chance.shuffle(later)
        kills = [in_round, *later]
        check_outcome(await story.to_the_end(kills))
        assert is_sound(story.journal)
        in_flight.append(story.in_flight)

    await run_stories(killed, ((seed,) for seed in range(seeds)))
    assert forks.kills >= seeds
    assert max(in_flight) >= 3
    print(f"{forks.kills} of {forks.started} processes killed, {in_flight} calls in flight")
