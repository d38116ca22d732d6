"""How long it takes to take up a run that was interrupted after so many steps: all its records are
read, checked through the graph's own classes, and followed to where it was.
"""

from __future__ import annotations

from benchmarks.durable.contenders import BAE, BAE_MEMORY
from benchmarks.durable.samples import Ask, Team
from benchmarks.report import Result, figure, spread
from benchmarks.sampling import Samples, Settings

STEPS = 1_000
ROUNDS = 5


def measure(people: Team, keys: list[str], settings: Settings) -> list[Result]:
    if BAE not in keys or BAE_MEMORY not in keys:
        return []
    asks = {
        "running it in memory": (BAE_MEMORY, False),
        "running it with a journal": (BAE, False),
        "resuming it at the last step": (BAE, True),
    }
    results: list[Result] = []
    for heavy in (False, True):
        times = {name: Samples() for name in asks}
        for _ in range(min(settings.rounds, ROUNDS)):
            for name, (key, resume) in asks.items():
                sample = people.ask(key, Ask(STEPS, heavy, resume=resume))
                times[name].append(sample.seconds)
        memory = times["running it in memory"]
        nodes = "nodes of 2 KB" if heavy else "small nodes"
        results.append(
            Result(
                case="resume",
                title=f"A run of {STEPS:,} steps with {nodes} (ms)",
                header=["", "median", "lowest–highest", "× in memory"],
                rows=[
                    [
                        name,
                        figure(mine.median * 1e3),
                        spread(mine, 1e3),
                        figure(mine.ratio_to(memory)),
                    ]
                    for name, mine in times.items()
                ],
                verdicts=[],
                samples=dict(times),
            )
        )
    return results
