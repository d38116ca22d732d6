"""The command: pick cases and contenders, measure, print the tables and which targets were met."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.cases import QUESTIONS, measure
from benchmarks.contenders import BAE, FLOOR, MODULES, Contender, load
from benchmarks.offline import go_offline
from benchmarks.report import Result, as_json, provenance, publish
from benchmarks.sampling import Settings, say


def parser() -> argparse.ArgumentParser:
    questions = "\n".join(f"  {case:3} {text}" for case, (_, text) in QUESTIONS.items())
    made = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare bae with a hand-written loop and other graph libraries, interleaved, "
        "on the same checked work.",
        epilog=f"cases:\n{questions}\n\n"
        "Progress goes to standard error, the report to standard output.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--case", default=",".join(QUESTIONS), metavar="A1,B", help="cases to run (default: all)"
    )
    made.add_argument(
        "--contender",
        default=",".join(MODULES),
        metavar="KEY,KEY",
        help=f"who takes part besides the floor (default: all of {', '.join(MODULES)})",
    )
    made.add_argument(
        "--rounds", type=int, default=15, metavar="N", help="rounds at most (default: %(default)s)"
    )
    made.add_argument(
        "--quick", action="store_true", help="3 rounds and a smaller crowd: to try, not to quote"
    )
    made.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="put the tables between the marker lines of FILE (all cases, not with --quick)",
    )
    made.add_argument("--json", action="store_true", help="print every sample as JSON instead")
    made.add_argument("--check", action="store_true", help="exit with 1 unless every target is met")
    return made


def names(text: str, known: list[str], made: argparse.ArgumentParser, what: str) -> list[str]:
    """Return the names in a comma-separated option, in their usual order."""
    wanted = {name.strip().lower() for name in text.split(",") if name.strip()}
    if unknown := wanted - set(known):
        made.error(f"no such {what}: {', '.join(sorted(unknown))} (choose from {', '.join(known)})")
    return [name for name in known if name in wanted]


def field(keys: list[str]) -> dict[str, Contender]:
    """Return the installed contenders. The floor always takes part."""
    found: dict[str, Contender] = {}
    for key in MODULES:
        if key != FLOOR and key not in keys:
            continue
        try:
            found[key] = load(key)
        except ImportError as error:
            say(f"{key} takes no part: {error}")
    return found


def main(arguments: list[str] | None = None) -> int:
    made = parser()
    options = made.parse_args(arguments)
    cases = names(options.case, list(QUESTIONS), made, "case")
    keys = names(options.contender, list(MODULES), made, "contender")
    if options.rounds < 1:
        made.error("--rounds must be at least 1")
    whole = len(cases) == len(QUESTIONS) and len(keys) == len(MODULES) and not options.quick
    if options.write and not whole:
        made.error("--write takes one full run: leave out --case, --contender and --quick")
    go_offline()
    settings = Settings(
        rounds=min(options.rounds, 3) if options.quick else options.rounds,
        sample_seconds=0.02 if options.quick else 0.05,
        budget=10 if options.quick else 45,
        quick=options.quick,
    )
    contenders = field(keys)
    if options.write and len(contenders) < len(MODULES):
        made.error("--write needs every contender installed")
    where = provenance(contenders.values(), settings)
    results: list[Result] = []
    for case in cases:
        say(f"{case}: {QUESTIONS[case][1]}")
        start = time.perf_counter()
        results.append(measure(case, contenders, settings))
        say(f"  done in {time.perf_counter() - start:.0f} s")
    verdicts = [verdict for result in results for verdict in result.verdicts]
    if options.json:
        print(json.dumps(as_json(results, where), indent=1))
    else:
        print(where, *(result.markdown() for result in results), sep="\n\n")
        print("\n" + "\n".join(verdict.line() for verdict in verdicts))
    if options.write:
        publish(options.write, where, results)
        say(f"wrote {options.write}")
    missed = [verdict for verdict in verdicts if not verdict.met]
    if BAE in keys and BAE not in contenders:
        say("bae is not installed here: pip install -e .")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
