"""`bae lm`: which language models can be used here, and one call to try one."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Annotated, Final

import typer
from pydantic import Field
from rich.text import Text

from bae.cli.exits import refused
from bae.cli.models import lm_named
from bae.cli.options import AsJSON, examples, lm_names
from bae.cli.printing import err, out, print_hanging, print_json
from bae.cli.texts import in_lines
from bae.exceptions import BaeLMError
from bae.graph import Graph
from bae.lm import LM, Usage
from bae.lm.registry import DefaultName, Kind, cached_lm, default_lm, default_name, kinds
from bae.node import Node

group = typer.Typer(
    no_args_is_help=True,
    help="List the language models and try one.",
)

_TIMEOUT: Final = 120.0


@group.command("list", epilog=examples("bae lm list", "bae lm list --json"))
def list_(as_json: AsJSON = False) -> None:
    """List every kind of language model: ready or not, what is missing, how to get it.

    One that is `installed` also needs something that bae cannot check, such as a login.

    Nothing is called, so a key that is set may still be wrong: `bae lm try` finds out.
    """
    default = default_name()
    found = kinds()
    if as_json:
        print_json(
            {
                "default": default.name or None,
                "why": default.why,
                "kinds": [
                    {**asdict(kind), "state": kind.state, "ready": kind.ready} for kind in found
                ],
            }
        )
        return
    for kind in found:
        print_hanging(out(), _about(kind, default), _INDENT)
    print_hanging(out(), _of_default(default), 2)


@group.command(
    "try",
    epilog=examples(
        "bae lm try",
        "bae lm try claude-cli:sonnet",
        "bae lm try local --prompt 'Name a warm color.'",
    ),
)
def try_(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="SPEC",
            show_default=False,
            autocompletion=lm_names,
            help="The language model, as `bae lm list` names it. Default: the one that a run "
            "without `--lm` uses.",
        ),
    ] = None,
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", metavar="TEXT", help="The question.")
    ] = "What is the capital of France?",
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0, help="The timeout."),
    ] = _TIMEOUT,
    as_json: AsJSON = False,
) -> None:
    """Ask a language model one question, and print answer, time, tokens and cost.

    It is asked as in a run, for a structured answer. A model that passes can fill nodes.
    """
    name = spec or default_name().name
    if name:
        lm = cached_lm(name)
    else:
        try:
            lm = default_lm("this call needs one")
        except BaeLMError as error:
            error.fix = lm_named(error, "as in `bae lm try local`")
            raise
    with err().status(f"asking {name} …"):
        trial = asyncio.run(ask(lm, name, prompt, timeout))
    if as_json:
        usage = trial.usage
        print_json(
            {
                "lm": name,
                "answer": trial.reply.answer,
                "sure": trial.reply.sure,
                "models": usage.models,
                "seconds": trial.seconds,
                "calls": usage.calls,
                "attempts": usage.attempts,
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "cost": usage.cost,
            }
        )
        return
    _print_trial(name, trial)


_STATES: Final = {"ready": "bold green", "installed": "bold cyan", "missing": "bold yellow"}
_STATE: Final = 11
_INDENT: Final = _STATE + 13


def _about(kind: Kind, default: DefaultName) -> Text:
    below = f"\n{' ' * _INDENT}"
    said = Text()
    said.append(f"{kind.state:<{_STATE}}", style=_STATES[kind.state])
    said.append(f"{kind.name:<{_INDENT - _STATE}}", style="bold").append(kind.about)
    if kind.name == default.name.partition(":")[0]:
        said.append(" (the default)", style="green")
    for each in kind.missing:
        # The command has a line of its own, to be copied whole.
        said.append(f"{below}{each.what}:{below}  ").append(each.get, style="cyan")
    if kind.open:
        said.append(f"{below}{'then' if kind.missing else 'it needs'} {kind.open}", style="dim")
    said.append(f"{below}--lm {kind.example}", style="dim" if kind.missing else "cyan")
    if kind.forms != kind.example:
        said.append(f"   ({kind.forms})", style="dim")
    return said


def _of_default(default: DefaultName) -> Text:
    said = Text("\n")
    if default.name:
        said.append("Without --lm: ", style="bold").append(default.name, style="bold cyan")
        return said.append(f", {default.why}. BAE_LM or --lm names another.")
    said.append("Without --lm there is no LM: ", style="bold").append(default.why)
    return said.append(".")


def _print_trial(name: str, trial: Trial) -> None:
    usage = trial.usage
    cost = "unknown" if usage.cost is None else f"${usage.cost:.6f}".rstrip("0").rstrip(".")
    more = f", {usage.attempts} attempts" if usage.attempts > 1 else ""
    rows = {
        "answer": trial.reply.answer,
        "sure": "yes" if trial.reply.sure else "no",
        "lm": name,
        "model": ", ".join(usage.models) or "not said",
        "time": f"{trial.seconds:.2f} s{more}",
        "tokens": f"{usage.input_tokens:,} in, {usage.output_tokens:,} out",
        "cost": cost,
    }
    for label, value in rows.items():
        said = Text(f"{label:<8}", style="bold")
        print_hanging(out(), said.append(in_lines(value, 8), style="not bold"), 8)


# --- one call, as a run makes it -----------------------------------------------------------------


class Question(Node):
    """What is asked."""

    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    """A structured answer: a text and a choice, which is what filling nodes is made of."""

    answer: str = Field(description="the answer, in one short sentence", max_length=400)
    sure: bool = Field(description="whether you are sure of it")

    async def __call__(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """What an LM answered, what it used, and how long all of it took."""

    reply: Reply
    usage: Usage
    seconds: float


async def ask(lm: LM, name: str, text: str, timeout: float) -> Trial:
    """Ask an LM one thing, for so many seconds at most."""
    began = perf_counter()
    try:
        async with asyncio.timeout(timeout):
            run = await Graph(start=Question, end=Reply).arun(Question(text=text), lm)
    except TimeoutError as error:
        raise refused(
            f"{name} gave no answer in {timeout:g} s",
            fix="give it more time with --timeout SECONDS",
            cause=error,
        ) from error
    return Trial(run.result, run.usage, perf_counter() - began)
