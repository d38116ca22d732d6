"""The command: pick cases and contenders, measure, print the tables and which targets were met."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import sys
import time
from pathlib import Path

from benchmarks.durable.cases import QUESTIONS, measure
from benchmarks.durable.contenders import CONTENDERS, FLOOR
from benchmarks.durable.disk import IN_MEMORY, file_system, seconds_to_be_safe
from benchmarks.durable.samples import available, team
from benchmarks.report import Result, as_json, publish
from benchmarks.sampling import Settings, say

BEGIN = "<!-- durable figures: begin, written by python -m benchmarks.durable --write -->"
END = "<!-- durable figures: end -->"


def parser() -> argparse.ArgumentParser:
    questions = "\n".join(f"  {case:8} {text}" for case, text in QUESTIONS.items())
    names = "\n".join(f"  {key:15} {one.name}" for key, one in CONTENDERS.items())
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.durable",
        description="Compare bae's journal with rows written by hand and with other libraries that "
        "keep each step in SQLite, interleaved, on the same checked work.",
        epilog=f"cases:\n{questions}\n\ncontenders:\n{names}\n\n"
        "Progress goes to standard error, the report to standard output.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--case", default=",".join(QUESTIONS), metavar="CHAIN,SIZE")
    made.add_argument("--contender", default=",".join(CONTENDERS), metavar="KEY,KEY")
    made.add_argument(
        "--rounds", type=int, default=11, metavar="N", help="rounds at most (default: %(default)s)"
    )
    made.add_argument("--quick", action="store_true", help="3 rounds: to try, not to quote")
    made.add_argument(
        "--folder",
        type=Path,
        help="where stores are made, on a real disk (default: that of temporary files)",
    )
    made.add_argument(
        "--write", type=Path, metavar="FILE", help="put the tables between marker lines of FILE"
    )
    made.add_argument("--json", action="store_true", help="print every sample as JSON instead")
    made.add_argument("--check", action="store_true", help="exit with 1 unless every target is met")
    return made


def choose_names(text: str, known: list[str], made: argparse.ArgumentParser) -> list[str]:
    """Return the names in a comma-separated option, in their usual order."""
    wanted = {name.strip().lower() for name in text.split(",") if name.strip()}
    if unknown := wanted - set(known):
        made.error(f"no such: {', '.join(sorted(unknown))} (choose from {', '.join(known)})")
    return [name for name in known if name in wanted]


def provenance(keys: list[str], settings: Settings, folder: Path) -> str:
    """Describe the machine, the packages and the settings of the measurement."""
    packages = {CONTENDERS[key].package: CONTENDERS[key].version for key in keys}
    versions = ", ".join(f"{name} {version}" for name, version in packages.items() if name)
    return (
        f"Measured on {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}, {file_system(folder)}, "
        f"where a page is safe after {seconds_to_be_safe(folder) * 1e6:.0f} µs; up to "
        f"{settings.rounds} interleaved rounds. Packages: {versions}."
    )


def main(arguments: list[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    cases = choose_names(options.case, list(QUESTIONS), made)
    keys = choose_names(options.contender, list(CONTENDERS), made)
    if options.rounds < 1:
        made.error("--rounds must be at least 1")
    if options.write and (
        options.quick or len(cases) + len(keys) < len(QUESTIONS) + len(CONTENDERS)
    ):
        made.error("--write takes one full run: leave out --case, --contender and --quick")
    settings = Settings(
        rounds=min(options.rounds, 3) if options.quick else options.rounds,
        budget=5 if options.quick else 45,
        quick=options.quick,
    )
    keys = available([FLOOR, *(key for key in keys if key != FLOOR)])
    if options.write and len(keys) < len(CONTENDERS):
        made.error("--write needs every contender installed")
    results: list[Result] = []
    with team(options.folder) as people:
        if (kind := file_system(people.folder)) in IN_MEMORY:
            made.error(f"{people.folder} is {kind}, kept in memory: name a --folder on a disk")
        where = provenance(keys, settings, people.folder)
        for case in cases:
            say(f"{case}: {QUESTIONS[case]}")
            start = time.perf_counter()
            results += measure(case, people, keys, settings)
            say(f"  done in {time.perf_counter() - start:.0f} s")
    return report(results, where, options)


def report(results: list[Result], where: str, options: argparse.Namespace) -> int:
    """Print the results, write them to the requested file, and return the exit status."""
    verdicts = [verdict for result in results for verdict in result.verdicts]
    if options.json:
        print(json.dumps(as_json(results, where), indent=1))
    else:
        print(where, *(result.markdown() for result in results), sep="\n\n")
        print("\n" + "\n".join(verdict.line() for verdict in verdicts))
    if options.write:
        publish(options.write, where, results, BEGIN, END)
        say(f"wrote {options.write}")
    return 1 if options.check and any(not verdict.met for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
