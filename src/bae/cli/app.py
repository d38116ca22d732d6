"""The commands of `bae` in one lazy group, and error handling: a few lines on stderr, a traceback
only with --debug. A command's module is imported when the command is called, which keeps `--help`
fast."""

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
    """A command: its line in `bae --help`, and the name of its function."""

    about: str
    where: str


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
"""In the order of `bae --help`: the first commands that a user needs come first. A command is a
function, with examples in its module's EPILOG, or a Typer app."""

_ELSEWHERE: Final = ("bae-run-owned", "bae-optimizing-elsewhere", "bae-team-busy")
"""Errors about something that another process owns."""


class LazyGroup(TyperGroup):
    """The command `bae`: it lists commands by name, and imports a command when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the called command. The error about an unknown name suggests a similar one."""
        if args and args[0] not in COMMANDS:
            whole_command()
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Print the commands in the help, without importing them."""
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
    # `run_command` removes --debug and --version before; they are declared here for --help.


def version(as_json: AsJSON = False) -> None:
    """Print the version of bae, of Python, and of the packages that bae uses."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    from bae import __version__
    from bae.cli.printing import out, print_json

    versions: dict[str, str] = {}
    for package in _packages():
        try:
            versions[package] = version_of(package)
        except PackageNotFoundError:
            continue
    if as_json:
        print_json({"bae": __version__, "python": platform.python_version(), "packages": versions})
        return
    out().print(f"bae {__version__}, Python {platform.python_version()}, {platform.system()}")
    for package, each in versions.items():
        out().print(f"  {package} {each}")


def _packages() -> list[str]:
    """The packages that bae requires, those of its extras, and those of LMs, without development
    packages."""
    from importlib.metadata import PackageNotFoundError, requires

    from bae.lm.kinds import distribution
    from bae.lm.registry import KINDS

    try:
        required = requires("bae_graphs") or []  # error codes have hyphens
    except PackageNotFoundError:  # run from a directory without installation
        required = []
    used = [each for each in required if not re.search(r"""extra == ['"](dev|docs)['"]""", each)]
    names = [re.split(r"[^\w.-]", each)[0] for each in used]
    names += [distribution(package) for kind in KINDS.values() for package in kind.packages]
    return list(dict.fromkeys(names))


@cache
def _group() -> Any:
    group: Any = typer.main.get_command(app)
    _take_nothing(group)
    return group


def _take_nothing(group: Any) -> None:
    """Set missing options of a group to None at once, including `--help`. Typer would load Pydantic
    for that, the slowest part of a command's help."""
    find_help = group.get_help_option

    def get_help_option(ctx: Any) -> Any:
        option = find_help(ctx)
        if option is not None and "process_value" not in vars(option):
            process_given(option)
        return option

    def process_given(param: Any) -> None:
        process: Callable[[Any, Any], Any] = param.process_value

        def process_value(ctx: Any, value: Any) -> Any:
            return None if value is None else process(ctx, value)

        param.process_value = process_value

    for param in group.params:
        process_given(param)
    group.get_help_option = get_help_option


def whole_command() -> Any:
    """The group with every command imported, for docs and tests."""
    group = _group()
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
    _name_values(command)
    return command


def _name_values(command: TyperCommand | TyperGroup) -> None:
    """Name values `TEXT` and `N` in the help of a command, where Typer prints `<str>`; accept only
    usual notations of numbers; and accept the hidden `--backend` of bae 3.0 for `-b`."""
    for param in command.params:
        if "-b" in param.opts:
            param.add_to_parser = partial(_add_with_backend, param, param.add_to_parser)  # type: ignore[method-assign]
        if param.param_type_name == "argument":
            param.display_type_rich = _no_type  # type: ignore[attr-defined]
        elif not param.is_flag:  # type: ignore[attr-defined]
            shown = str(param.display_type_rich(None)).strip("<>")  # type: ignore[attr-defined]
            param.metavar = param.metavar or _NAMES.get(shown, shown)
            described = cast(Any, param).type_descriptor
            if described.annotation in (int, float) and not described.parameter_info.parser:
                _read_strictly(param)
    if isinstance(command, TyperGroup):
        _take_nothing(command)
        for each in command.commands.values():
            _name_values(cast("TyperCommand | TyperGroup", each))


def _add_with_backend(option: Any, add: Callable[..., None], parser: Any, ctx: Any) -> None:
    add(parser, ctx)
    parser.add_option(option, ["--backend"], option.name)


def _read_strictly(param: Any) -> None:
    """Refuse numbers that only Python accepts: `1_0`, `nan`, `inf`."""
    process = param.process_value

    def process_number(ctx: Any, value: Any) -> Any:
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            raise typer.BadParameter(f"{value[:40]!r} is not a number such as 20", ctx, param)
        return process(ctx, value)

    param.process_value = process_number


_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]{1,18}(?:\.[0-9]{1,18})?|\.[0-9]{1,18})")
_NAMES: Final = {"str": "TEXT", "int": "N", "int range": "N", "float": "X", "float range": "X"}


def _no_type(ctx: Any) -> str:
    return ""


def run_command(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code."""
    asked, debug = _without_debug(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # escape characters that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        with messages_escaped():
            code = _carry_out(asked, debug)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]  with >&-
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe; Python would fail again at exit
        from bae.cli.printing import discard_output

        discard_output(sys.stdout)
        return exits.FAILED
    return code


def _carry_out(asked: list[str], debug: bool) -> int:
    group = _group()
    if "_BAE_COMPLETE" in os.environ or (asked and asked[0] in _COMPLETION):
        buffer = StringIO()
        try:
            with redirect_stderr(buffer):
                group.main(asked, prog_name="bae")
        except SystemExit as ending:
            print_escaped(buffer.getvalue(), end="")
            return ending.code if isinstance(ending.code, int) else exits.DONE
    if asked[:1] == ["--version"]:
        from bae import __version__

        print(f"bae {__version__}")
        return exits.DONE
    wanted = "--json" in asked[: asked.index("--") if "--" in asked else None]
    try:
        if not wanted:
            return _invoke(group, asked)
        from bae.cli.printing import only_json

        with only_json():
            return _invoke(group, asked)
    except KeyboardInterrupt as interrupt:
        where = "".join(f" {each}" for each in getattr(interrupt, "__notes__", ()))
        print_escaped(f"interrupted{where}")
        return exits.INTERRUPTED
    except BrokenPipeError:
        raise
    except BaseException as error:
        return _report_error(error, debug)


_COMPLETION: Final = ("--install-completion", "--show-completion")
"""Options that end the command as soon as Typer has read them."""


def _invoke(group: Any, asked: list[str]) -> int:
    try:
        with group.make_context("bae", asked) as context:
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


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """The command line without --debug, and whether it was present. Arguments after -- are not
    options."""
    asked = list(arguments)
    end = asked.index("--") if "--" in asked else len(asked)
    kept = [each for each in asked[:end] if each != "--debug"]
    return kept + asked[end:], len(kept) < end or bool(os.environ.get("BAE_DEBUG"))
