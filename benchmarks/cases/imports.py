"""Case f: what the import costs a program that has pydantic anyway, and that it opens no socket.

Each sample is a fresh interpreter. Bytecode goes to a folder of its own and is written by a first
pass, so the figures are those of an installed package even where writing bytecode is switched off.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from benchmarks.contenders import BAE, FLOOR, Contender
from benchmarks.report import DASH, Result, Verdict, figure, notes_of, spread
from benchmarks.sampling import Samples, Settings, turns

MOST_OVER_PYDANTIC = 40.0
ROUNDS = 25
BESIDE = {
    "model": "from pydantic import BaseModel",
    "one": "from pydantic import BaseModel; Own = type('Own', (BaseModel,), {})",
    "names": "from bae import Graph, Node",
}
"""What a program does next: the bare imports may put off work until then."""
PROGRAM = """
import sys, time
seen = []
sys.addaudithook(lambda event, _: seen.append(event) if event.startswith("socket.") else None)
start = time.perf_counter()
{statement}
print("took", time.perf_counter() - start, *sorted(set(seen)))
"""


def fresh_import(statement: str, bytecode: str) -> tuple[float, list[str]]:
    """Return the seconds of the statement in a new interpreter, and the socket events that it
    raised."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement)],
        env=environment,
        cwd=bytecode,
        capture_output=True,
        text=True,
        check=True,
    )
    _, seconds, *events = process.stdout.splitlines()[-1].split()
    return float(seconds), events


def measure(case: str, contenders: Mapping[str, Contender], settings: Settings) -> Result:
    statements = {key: one.import_statement for key, one in contenders.items()}
    statements |= {key: text for key, text in BESIDE.items() if key != "names" or BAE in contenders}
    wanted = {key: statement for key, statement in statements.items() if statement}
    samples = {key: Samples() for key in wanted}
    sockets: dict[str, set[str]] = {key: set() for key in wanted}
    # More rounds than elsewhere, because starting an interpreter is noisy and cheap.
    rounds = 5 if settings.quick else max(settings.rounds, ROUNDS)
    with tempfile.TemporaryDirectory() as bytecode:
        for statement in wanted.values():
            fresh_import(statement, bytecode)
        for order in turns(list(wanted), rounds):
            for key in order:
                seconds, events = fresh_import(wanted[key], bytecode)
                samples[key].append(seconds)
                sockets[key].update(events)

    floor = samples[FLOOR]
    rows = [
        [
            f"`{wanted[key]}`",
            figure(mine.median * 1e3),
            spread(mine, 1e3),
            DASH if key == FLOOR else f"{mine.minus(floor) * 1e3:+.1f}",
            ", ".join(sorted(sockets[key])) or "none",
        ]
        for key, mine in samples.items()
    ]
    return Result(
        case=case,
        title="f. Importing, in a fresh interpreter with bytecode compiled (ms)",
        header=["", "median", "lowest–highest", "over `import pydantic`", "sockets"],
        rows=rows,
        verdicts=judge(case, samples, sockets),
        notes=notes_of(contenders.values(), case),
        samples=samples,
    )


def judge(
    case: str, samples: Mapping[str, Samples], sockets: Mapping[str, set[str]]
) -> list[Verdict]:
    quick = f"`import bae` takes at most {MOST_OVER_PYDANTIC:g} ms over `import pydantic`"
    silent = "`import bae` opens no socket, nor does taking names from it"
    if BAE not in samples:
        return [Verdict(case, target, "bae did not run", None) for target in (quick, silent)]
    over = samples[BAE].minus(samples[FLOOR]) * 1e3
    # Names may be loaded on first use, so the bare import alone could flatter.
    used = samples["names"].minus(samples[FLOOR]) * 1e3
    events = sockets[BAE] | sockets["names"]
    return [
        Verdict(
            case,
            quick,
            f"{over:+.1f} ms; {used:+.1f} ms once Graph and Node are loaded",
            over <= MOST_OVER_PYDANTIC,
        ),
        Verdict(case, silent, ", ".join(sorted(events)) or "none", not events),
    ]
