"""The commands of `bae` in one app, and what happens to errors: a few lines on stderr, a traceback
only with --debug. Command modules import what they need when they are called, so that `--help`
answers at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from bae.cli import exits
from bae.cli.streams import let_go, stand_in_for_missing
from bae.cli.texts import in_lines

app = typer.Typer(
    name="bae",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exits.ABOUT,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from bae import __version__

        print(f"bae {__version__}")
        raise typer.Exit


@app.callback()
def bae(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version; `bae version` says more.",
        ),
    ] = False,
) -> None:
    """Agents as typed graphs: run them, check them, draw them, and look into their runs."""
    # `run_command` has taken --debug out already, wherever it stood; it is declared for --help.


def run_command(arguments: Sequence[str]) -> int:
    """Carry out a command line and answer its exit code."""
    asked, debug = _without_debug(arguments)
    stand_in_for_missing()
    _show_what_can_be_shown()
    try:
        code = _carried_out(asked, debug)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read what is printed has seen enough. Typer does the same while a command runs.
        let_go(sys.stdout)
        return exits.FAILED
    return code


def _carried_out(asked: list[str], debug: bool) -> int:
    from bae.exceptions import BaeError

    command = whole_command()
    try:
        command(asked, prog_name="bae")
    except SystemExit as ending:
        if _is_meant(ending):
            return _code(ending)
        _tell_unexpected(ending, debug)
        return exits.FAILED
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BaeError as error:
        from bae.cli.printing import tell_error, tell_traceback
        from bae.cli.refusals import Misuse

        if debug:
            tell_traceback(error)
        else:
            tell_error(error)
        if error.code in ("bae-run-owned", "bae-optimizing-elsewhere"):
            return exits.ELSEWHERE
        return exits.MISUSED if isinstance(error, Misuse) else exits.FAILED
    except BrokenPipeError:
        raise
    except BaseException as error:
        _tell_unexpected(error, debug)
        return exits.FAILED
    return exits.DONE


def _tell_unexpected(error: BaseException, debug: bool) -> None:
    try:
        from bae.cli.printing import tell_traceback, tell_unexpected

        if debug:
            tell_traceback(error)
        else:
            tell_unexpected(error)
    except Exception:  # what it is told with may be what is broken
        from bae.records import error_text

        said = in_lines(error_text(error), 4)
        print(f"error {said}\n  try:   run it again with --debug", file=sys.stderr)


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The command line without --debug, and whether it was there. What follows a -- is not ours."""
    asked = list(arguments)
    end = asked.index("--") if "--" in asked else len(asked)
    kept = [each for each in asked[:end] if each != "--debug"]
    return kept + asked[end:], len(kept) < end or bool(os.environ.get("BAE_DEBUG"))


def _show_what_can_be_shown() -> None:
    """Spell out a character that the terminal has not, or half of one, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _is_meant(ending: SystemExit) -> bool:
    """Whether a command has ended as it should, and not because somebody's code says sys.exit():
    what code that means is not known here. Rich ends it where nobody reads the help to its end."""
    place = ending.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    module = place.tb_frame.f_globals.get("__name__", "") if place is not None else ""
    return module.partition(".")[0] in ("typer", "click", "rich")


def _code(ending: SystemExit) -> int:
    if ending.code is None:
        return exits.DONE
    return ending.code if isinstance(ending.code, int) else exits.FAILED


@cache
def whole_command() -> Any:
    """The app with its commands, made once; `help.py` has their order."""
    from bae.cli import check, eval, graph, lm, new, optimize, prompts, run, runs, version
    from bae.cli.help import make_plain

    for name, command, module in (
        ("new", new.new, new),
        ("run", run.run, run),
        ("check", check.check, check),
        ("prompts", prompts.prompts, prompts),
        ("eval", eval.evaluate, eval),
        ("optimize", optimize.optimize, optimize),
        ("version", version.version, version),
    ):
        app.command(name, epilog=getattr(module, "EPILOG", None))(command)
    app.add_typer(graph.group, name="graph")
    app.add_typer(runs.group, name="runs")
    app.add_typer(lm.group, name="lm")
    make_plain(app)
    return typer.main.get_command(app)
