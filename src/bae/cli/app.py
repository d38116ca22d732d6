"""The list of commands, and the function that runs a command line. To keep `--help` fast, the
module of a command is imported only when the user calls the command. An error prints a few lines on
stderr, or with --debug a traceback."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import cache, partial
from importlib import import_module
from io import StringIO
from typing import Annotated, Any, Final, NamedTuple, cast

import typer
from typer._click.exceptions import UsageError
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_group_from_info
from typer.models import CommandInfo, TyperInfo

from bae.cli import exits
from bae.cli.messages import messages_escaped, print_escaped
from bae.cli.options import AsJSON


class Entry(NamedTuple):
    """A command of `bae`."""

    about: str
    """The line of the command in `bae --help`."""
    where: str
    """The module in `bae.cli`, and the name of the command's function or Typer app there, as
    `MODULE:NAME`."""


COMMANDS: Final = {
    "new": Entry("Create a small project that works.", "new:new"),
    "run": Entry("Run a graph, and print its last node.", "run:run"),
    "chat": Entry("Have a conversation with a graph.", "chat:chat"),
    "check": Entry("Check a graph: print every mistake that its types show.", "check:check"),
    "prompts": Entry("Print every prompt that a graph can send.", "prompts:prompts"),
    "graph": Entry("Draw a graph in the terminal or to a file.", "graph:group"),
    "runs": Entry("List, show, resume, fork and replay the runs of a journal.", "runs:group"),
    "eval": Entry("Run a graph over cases, and score the results.", "eval:evaluate"),
    "optimize": Entry("Improve the prompts of a graph from recorded runs.", "optimize:optimize"),
    "team": Entry("Turn a goal into merged, tested code with a team of agents.", "team:group"),
    "studio": Entry("Open a page to watch, chat with and steer runs and teams.", "studio:studio"),
    "mcp": Entry("List the MCP servers of a graph, or serve a graph as one.", "mcp:group"),
    "serve": Entry("Serve a graph over HTTP: start, follow and answer its runs.", "serve:serve"),
    "submit": Entry("Store a run for a worker to carry out.", "submit:submit"),
    "worker": Entry("Carry out the runs of a journal, with other workers.", "worker:worker"),
    "engine": Entry("Show what the workers of a journal have to do.", "engine:group"),
    "db": Entry("Create and upgrade the tables of a Postgres journal.", "db:group"),
    "lm": Entry("List the language models and try one.", "lm:group"),
    "version": Entry("Print the versions of bae and its packages.", "app:version"),
}
"""The commands by name, in the order of `bae --help`. If a command is a function, the EPILOG of its
module has the examples."""

_ELSEWHERE: Final = ("bae-run-owned", "bae-optimizing-elsewhere", "bae-team-busy")
"""Codes of errors about a run, an optimization or a team that another process owns."""


class LazyGroup(TyperGroup):
    """The command `bae`. It lists commands by name, and imports a command when the user calls the
    command."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command. Return None if the name is unknown."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the called command. If the name is unknown, the error suggests a similar name."""
        if args and args[0] not in COMMANDS:
            load_all_commands()
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Print the list of commands in `bae --help`, without imports."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.about) for name, entry in COMMANDS.items()])


app = typer.Typer(
    name="bae",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exits.ABOUT,
)


@app.callback()
def bae(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may be anywhere on the command line.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version; `bae version` prints more.")
    ] = False,
) -> None:
    """Typed graphs for LLM agents: run, check and draw them, and inspect their runs."""
    # `run_command` handles --debug and --version earlier. They are declared here for --help.


def version(as_json: AsJSON = False) -> None:
    """Print the version of bae, of Python, and of the packages that bae uses."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    from bae import __version__
    from bae.cli.printing import out, print_json

    versions: dict[str, str] = {}
    for package in _list_packages():
        try:
            versions[package] = version_of(package)
        except PackageNotFoundError:
            continue
    if as_json:
        print_json({"bae": __version__, "python": platform.python_version(), "packages": versions})
        return
    out().print(f"bae {__version__}, Python {platform.python_version()}, {platform.system()}")
    for package, number in versions.items():
        out().print(f"  {package} {number}")


def _list_packages() -> list[str]:
    """List the packages that bae, its extras and its LMs require, without development packages."""
    from importlib.metadata import PackageNotFoundError, requires

    from bae.lm.kinds import distribution
    from bae.lm.registry import KINDS

    try:
        # Not `bae-graphs`, because a test takes every text such as "bae-…" for an error code.
        required = requires("bae_graphs") or []
    except PackageNotFoundError:  # run from a directory without installation
        required = []
    used = [
        requirement
        for requirement in required
        if not re.search(r"""extra == ['"](dev|docs)['"]""", requirement)
    ]
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in used]
    names += [distribution(package) for kind in KINDS.values() for package in kind.packages]
    return list(dict.fromkeys(names))


@cache
def _get_group() -> Any:
    group: Any = typer.main.get_command(app)
    _skip_missing_options(group)
    return group


def _skip_missing_options(group: Any) -> None:
    """Skip Typer's processing of options that are not on the command line. The processing would
    import Pydantic, which takes most of the time of `--help`."""
    find_help = group.get_help_option

    def get_help_option(ctx: Any) -> Any:
        option = find_help(ctx)
        if option is not None and "process_value" not in vars(option):
            skip_missing(option)
        return option

    def skip_missing(param: Any) -> None:
        process: Callable[[Any, Any], Any] = param.process_value

        def process_value(ctx: Any, value: Any) -> Any:
            return None if value is None else process(ctx, value)

        param.process_value = process_value

    for param in group.params:
        skip_missing(param)
    group.get_help_option = get_help_option


def load_all_commands() -> Any:
    """Import every command, and return the group. For docs, tests and suggestions of names."""
    group = _get_group()
    for name in COMMANDS:
        group.get_command(None, name)
    return group


def _load(name: str) -> Any:
    where, _, attribute = COMMANDS[name].where.partition(":")
    module = import_module(f"bae.cli.{where}")
    loaded = getattr(module, attribute)
    plain: dict[str, Any] = {"pretty_exceptions_short": True, "rich_markup_mode": None}
    if isinstance(loaded, typer.Typer):
        info = TyperInfo(loaded, name=name)
        command: Any = get_group_from_info(info, suggest_commands=True, **plain)
    else:
        epilog = getattr(module, "EPILOG", None) if where != "app" else None
        command = get_command_from_info(
            CommandInfo(name=name, callback=loaded, epilog=epilog), **plain
        )
    _prepare_parameters(command)
    return command


def _prepare_parameters(command: TyperCommand | TyperGroup) -> None:
    """Prepare the parameters of a command.

    The help names values `TEXT` and `N` instead of `<str>` and `<int>`. Numbers that only Python
    accepts, such as `1_0`, are refused. Options with `-b` also accept the hidden `--backend` of
    bae 3.0.
    """
    for param in command.params:
        if "-b" in param.opts:
            param.add_to_parser = partial(_add_with_backend, param, param.add_to_parser)  # type: ignore[method-assign]
        if param.param_type_name == "argument":
            param.display_type_rich = _hide_type  # type: ignore[attr-defined]
        elif not param.is_flag:  # type: ignore[attr-defined]
            shown_type = str(param.display_type_rich(None)).strip("<>")  # type: ignore[attr-defined]
            param.metavar = param.metavar or _NAMES.get(shown_type, shown_type)
            descriptor = cast(Any, param).type_descriptor
            if descriptor.annotation in (int, float) and not descriptor.parameter_info.parser:
                _require_plain_number(param)
    if isinstance(command, TyperGroup):
        _skip_missing_options(command)
        for subcommand in command.commands.values():
            _prepare_parameters(cast("TyperCommand | TyperGroup", subcommand))


def _add_with_backend(option: Any, add: Callable[..., None], parser: Any, ctx: Any) -> None:
    add(parser, ctx)
    parser.add_option(option, ["--backend"], option.name)


def _require_plain_number(param: Any) -> None:
    """Refuse numbers that only Python accepts: `1_0`, `nan`, `inf`."""
    process = param.process_value

    def process_number(ctx: Any, value: Any) -> Any:
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            raise typer.BadParameter(f"{value[:40]!r} is not a number such as 20", ctx, param)
        return process(ctx, value)

    param.process_value = process_number


_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]{1,18}(?:\.[0-9]{1,18})?|\.[0-9]{1,18})")
_NAMES: Final = {"str": "TEXT", "int": "N", "int range": "N", "float": "X", "float range": "X"}


def _hide_type(ctx: Any) -> str:
    return ""


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    words, debug = _remove_debug_option(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # escape characters that the encoding does not have
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with messages_escaped():
            code = _carry_out(words, debug)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]  with >&-
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe: at exit, Python would fail again
        from bae.cli.printing import discard_output

        discard_output(sys.stdout)
        return exits.FAILED
    return code


def _carry_out(words: list[str], debug: bool) -> int:
    group = _get_group()
    if "_BAE_COMPLETE" in os.environ or (words and words[0] in _COMPLETION):
        buffer = StringIO()
        try:
            with redirect_stderr(buffer):
                group.main(words, prog_name="bae")
        except SystemExit as ending:
            print_escaped(buffer.getvalue(), end="")
            return ending.code if isinstance(ending.code, int) else exits.DONE
    if words[:1] == ["--version"]:
        from bae import __version__

        print(f"bae {__version__}")
        return exits.DONE
    as_json = "--json" in words[: words.index("--") if "--" in words else None]
    try:
        if not as_json:
            return _invoke(group, words)
        from bae.cli.printing import only_json

        with only_json():
            return _invoke(group, words)
    except KeyboardInterrupt as interrupt:
        notes = "".join(f" {note}" for note in getattr(interrupt, "__notes__", ()))
        print_escaped(f"interrupted{notes}")
        return exits.INTERRUPTED
    except BrokenPipeError:
        raise
    except BaseException as error:
        return _report_error(error, debug)


_COMPLETION: Final = ("--install-completion", "--show-completion")
"""Options that print or install shell completions."""


def _invoke(group: Any, words: list[str]) -> int:
    try:
        with group.make_context("bae", words) as context:
            group.invoke(context)
    except typer.Exit as ending:
        return ending.exit_code
    return exits.DONE


def _report_error(error: BaseException, debug: bool) -> int:
    """Print an error, and return the exit code."""
    if isinstance(error, typer.Abort):
        print("aborted", file=sys.stderr)
        return exits.FAILED
    if isinstance(error, UsageError):
        from bae.cli.wording import in_lines

        message = in_lines(error.format_message(), 7)
        error.format_message = lambda: message
        error.show()
        return exits.MISUSED
    from bae.cli.printing import print_error, print_traceback

    if debug:
        print_traceback(error)
    else:
        print_error(error)
    if isinstance(error, exits.Misuse):
        return exits.MISUSED
    elsewhere = getattr(error, "code", "") in _ELSEWHERE
    return exits.ELSEWHERE if elsewhere else exits.FAILED


def _remove_debug_option(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Return the command line without --debug, and whether --debug or BAE_DEBUG is set. After `--`,
    --debug is an argument and stays."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    options = [word for word in words[:end] if word != "--debug"]
    return options + words[end:], len(options) < end or bool(os.environ.get("BAE_DEBUG"))
