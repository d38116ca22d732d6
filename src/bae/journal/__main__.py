"""`python -m bae.journal`: reads the command line and prints what `commands.py` answers. Errors are
a line or two on stderr."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, get_args

from bae.exceptions import BaeError
from bae.journal import commands
from bae.journal.store import Listed, Status

Command = Callable[[Namespace], Coroutine[Any, Any, str | tuple[str, bool]]]
"""What to do; it answers what to print, and whether all is well where that is the question."""

ABOUT: Final = """\
Look into a journal of runs, and take runs out of it.

FILE is the file of a SQLiteJournal. Commands that only read also take a file that
`export` has written. RUN is a run's id, or how it begins.
"""
EXAMPLES: Final = """\
examples:
  python -m bae.journal runs runs.db --status waiting
  python -m bae.journal show runs.db 3f2a
  python -m bae.journal why runs.db 3f2a Outfit.mood
  python -m bae.journal test runs.db 3f2a --graph wardrobe.nodes:graph -o tests/test_outfit.py

The exit code is 0 when it is done, 1 when it could not be done or `check` found runs
that would break, and 2 when the command line makes no sense.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what a command line says, and answer the exit code."""
    options = parser().parse_args(arguments)
    try:
        said, well = asyncio.run(_carried_out(options))
        if said:
            print(said)
        sys.stdout.flush()
    except BaeError as error:
        print(_worded(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read what is printed has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0 if well else 1


async def _carried_out(options: Namespace) -> tuple[str, bool]:
    command: Command = options.command
    answer = await command(options)
    return (answer, True) if isinstance(answer, str) else answer


def parser() -> ArgumentParser:
    """What is understood of a command line."""
    whole = ArgumentParser(
        "python -m bae.journal",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_commands(whole)
    return whole


def add_commands(whole: ArgumentParser) -> None:
    """Add all commands to a parser; each leaves the coroutine function to call in `.command`."""
    among = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, call: Command, short: str, long: str = "") -> ArgumentParser:
        made = among.add_parser(
            name,
            help=short,
            description="\n\n".join([f"{short[0].upper()}{short[1:]}.", long]).rstrip(),
            formatter_class=RawDescriptionHelpFormatter,
        )
        made.set_defaults(command=call)
        made.add_argument("file", metavar="FILE", help="the journal")
        return made

    made = command(
        "runs",
        lambda o: commands.runs(o.file, status=o.status, graph=o.graph, limit=o.limit),
        "list runs, the newest first",
        "A run is running, waiting (for a person), ended, failed or cancelled; one that is\n"
        "shown as interrupted was running when its process went away: resume it.",
    )
    _filters(made)
    made.add_argument("--limit", type=_number, default=50, help="how many at most (50)")

    made = command(
        "show",
        lambda o: commands.show(o.file, o.run, full=o.full),
        "tell what happened in a run",
        "Its nodes in order, where the value of each field came from, what graphs inside it\n"
        "did, what the LM calls cost, and how it came out.",
    )
    made.add_argument("run", metavar="RUN")
    made.add_argument(
        "--full", action="store_true", help="cut nothing off; show prompts and answers"
    )

    made = command(
        "why",
        lambda o: commands.why(o.file, o.run, o.place, step=o.step),
        "tell where a value came from",
        "PLACE is a field, as Outfit.mood; with the place of a graph inside the run before\n"
        "it, as 2:Report.summaries[3]/1:Summary.text.",
    )
    made.add_argument("run", metavar="RUN")
    made.add_argument("place", metavar="PLACE")
    made.add_argument("--step", type=int, help="of which node, where there are several")

    made = command(
        "answer",
        lambda o: commands.answer(o.file, o.run, o.gate, o.value, o.graph),
        "answer a gate that a run waits for",
        "GATE is its address, the field as Refund.approved, or the field alone. VALUE is JSON,\n"
        "as true or 3; what is none is text. The answer is stored, and whoever goes on with the\n"
        "run takes it.",
    )
    made.add_argument("run", metavar="RUN")
    made.add_argument("gate", metavar="GATE")
    made.add_argument("value", metavar="VALUE")
    _graph_option(made)

    made = command(
        "check",
        lambda o: commands.check(o.file, o.graph, was=o.was),
        "list the unfinished runs that the code of today would break",
        "Run it with the new code before you deploy it. It changes nothing; the exit code is 1\n"
        "where there are such runs.",
    )
    _graph_option(made)
    made.add_argument(
        "--was", metavar="NAME", action="append", default=[], help="what the graph was called"
    )

    made = command(
        "export",
        lambda o: commands.export(
            o.file, o.out, o.runs, status=o.status, graph=o.graph, force=o.force
        ),
        "write runs to a file of JSON lines",
        "Without RUN it is all of them. Such a file can be kept, sent, loaded and replayed.",
    )
    made.add_argument("out", metavar="OUT.jsonl", help="where to; - prints it")
    made.add_argument("runs", metavar="RUN", nargs="*")
    _filters(made)
    made.add_argument("--force", action="store_true", help="replace a file that is there")

    made = command(
        "load",
        lambda o: commands.load(o.file, o.source, existing=o.existing, unfinished=o.unfinished),
        "read runs from a file of JSON lines into a journal",
        "The journal is made where there is none. A run is loaded whole or not at all. One\n"
        "that is under way or waits is cancelled here, so that nobody goes on with it by\n"
        "accident: graph.resume does, if you mean to.",
    )
    made.add_argument("source", metavar="IN.jsonl", help="what `export` has written; - reads it")
    made.add_argument(
        "--existing",
        choices=["refuse", "keep", "replace"],
        default="refuse",
        help="what to do with a run that is there already (refuse)",
    )
    made.add_argument(
        "--unfinished",
        choices=["cancel", "keep"],
        default="cancel",
        help="what to do with a run that has not ended (cancel)",
    )

    made = command(
        "prune",
        lambda o: commands.prune(o.file, older_than=o.older_than, statuses=o.status or _OVER),
        "delete old runs",
        "Runs that wait or are under way stay, unless --status names them; so does one whose\n"
        "lines another run shares, because it was forked from it.",
    )
    made.add_argument(
        "--older-than",
        type=_seconds,
        required=True,
        metavar="30d",
        help="last written so long ago: 90s, 30m, 12h, 30d, 2w",
    )
    made.add_argument(
        "--status",
        action="extend",
        nargs="+",
        choices=get_args(Status),
        metavar="STATUS",
        help="those of these (ended failed cancelled)",
    )

    made = command(
        "redact",
        lambda o: commands.redact(o.file, o.run, o.places, copies=o.copies),
        "take the values of fields out of a run for good",
        "PLACE is a field, as Person.email, or a class for all of its fields. The values are\n"
        "gone from the run and from runs that share its lines, and so are the prompts and\n"
        "answers that had them. It cannot be undone. Whoever resumes the run is asked for\n"
        "them: graph.resume(..., given={...}).",
    )
    made.add_argument("run", metavar="RUN")
    made.add_argument("places", metavar="PLACE", nargs="+")
    made.add_argument(
        "--copies", action="store_true", help="also other fields that hold the same text"
    )

    made = command(
        "test",
        lambda o: commands.write_test(o.file, o.run, o.graph, o.output, force=o.force),
        "make a pytest file of a run",
        "The run is replayed, and its recording written beside the test, with the ending\n"
        ".jsonl. The test fails, with a diff, when a node, a choice or a prompt is no longer\n"
        "what it was. It needs no LM and no network.",
    )
    made.add_argument("run", metavar="RUN")
    _graph_option(made)
    made.add_argument("-o", "--output", required=True, metavar="tests/test_X.py")
    made.add_argument("--force", action="store_true", help="replace files that are there")


_OVER: Final[tuple[Status, ...]] = ("ended", "failed", "cancelled")


def _graph_option(made: ArgumentParser) -> None:
    made.add_argument(
        "--graph", required=True, metavar="MODULE:GRAPH", help="as package.module:graph"
    )


def _filters(made: ArgumentParser) -> None:
    made.add_argument(
        "--status",
        choices=get_args(Listed),
        metavar="STATUS",
        help=f"only those of this status: {', '.join(get_args(Listed))}",
    )
    made.add_argument("--graph", metavar="NAME", help="only those of this graph")


def _seconds(text: str) -> float:
    try:
        return commands.seconds_in(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _worded(error: BaeError) -> str:
    """An error as it is told at a terminal."""
    said = [f"error: {error.message} [{error.code}]"]
    diff = getattr(error, "diff", "")
    if diff:
        said.append(diff)
    if error.cause is not None:
        said.append(f"  cause: {type(error.cause).__name__}: {error.cause}".splitlines()[0])
    if error.fix:
        said.append(f"  try:   {error.fix}")
    said.extend(f"  {note}" for note in getattr(error, "__notes__", ()))
    return "\n".join(said)


if __name__ == "__main__":
    sys.exit(main())
