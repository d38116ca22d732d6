"""The command `bae lm`: list the language models and try one. Also makes the LM of a run. Commands
refuse an unusable LM before the user types input."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import Field
from rich.text import Text

from bae.cli.exits import Misuse, refusal
from bae.cli.options import AsJSON, argument, examples, lm_names, option
from bae.cli.printing import err, note, out, print_hanging, print_json
from bae.cli.wording import in_lines
from bae.exceptions import BaeError, BaeLMError
from bae.graph import Graph
from bae.lm import LM, Backend, Usage
from bae.lm.http import remove_passwords
from bae.lm.kinds import LMKind
from bae.lm.registry import (
    VARIABLE,
    DefaultName,
    LazyLM,
    cached_lm,
    find_default_lm,
    find_default_name,
    list_lm_kinds,
    name_error,
)
from bae.node import Node

if TYPE_CHECKING:
    from bae.journal.stored_runs import StoredRun
    from bae.result import GraphResult

group = typer.Typer(
    no_args_is_help=True,
    help="List the language models and try one.",
)


@group.command("list", epilog=examples("bae lm list", "bae lm list --all", "bae lm list --json"))
def list_(
    every: Annotated[
        bool, option("--all -a", "Show what each provider of PydanticAI lacks, one by one.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """List every kind of language model: ready or not, what is missing, how to get it.

    Providers of PydanticAI come last. Usable providers have details, the other providers only a
    name.

    Every model can use tools. A model without native tool calls uses structured output instead.

    A model that is `installed` also needs something that bae cannot check, such as a login.

    No model is called, so a key that is set may still be wrong: `bae lm try` finds out.
    """
    default = find_default_name()
    kinds = list_lm_kinds()
    if as_json:
        print_json(
            {
                "default": default.name or None,
                "why": default.why,
                "kinds": [_kind_data(kind) for kind in kinds],
            }
        )
        return
    for kind in kinds:
        if not kind.through:
            print_hanging(out(), _describe_kind(kind, default), _INDENT)
    providers = [kind for kind in kinds if kind.through]
    print_hanging(out(), Text("\nProviders through PydanticAI", style="bold"), 2)
    for kind in providers:
        if every or not kind.missing:
            print_hanging(out(), _describe_kind(kind, default, brief=not kind.missing), _INDENT)
    lacking = [kind.name for kind in providers if kind.missing and not every]
    if lacking:
        text = Text(f"{'missing':<{_STATE_WIDTH}}", style=_STATES["missing"])
        text.append(", ".join(lacking), style="not bold default")
        text.append(
            f"\n{' ' * _STATE_WIDTH}a key or a package each: bae lm list --all", style="not bold"
        )
        print_hanging(out(), text, _STATE_WIDTH)
    text = Text(f"\nWithout --lm{':' if default.name else ' there is no LM:'} ", style="bold")
    text.append(default.name, style="cyan").append(", " if default.name else "", "not bold")
    text.append(f"{default.why}.", "not bold")
    text.append(" BAE_LM or --lm names another." if default.name else "", "not bold")
    print_hanging(out(), text, 2)


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
        argument(
            "SPEC",
            "The language model, as `bae lm list` names it. Default: the one that a run without "
            "`--lm` uses.",
            autocompletion=lm_names,
        ),
    ] = None,
    prompt: Annotated[
        str, option("--prompt -p TEXT", "The question.")
    ] = "What is the capital of France?",
    timeout: Annotated[float, option("--timeout SECONDS", "The timeout.", min=0)] = 120.0,
    as_json: AsJSON = False,
) -> None:
    """Ask a language model one question, and print answer, time, tokens and cost.

    As in a run, the model is asked for a structured answer. A model that answers can fill nodes.
    """
    name = spec or find_default_name().name
    try:
        lm = cached_lm(name) if name else find_default_lm("this call needs one")
    except BaeLMError as error:
        if not name:
            error.fix = rewrite_lm_fix(error, "as in `bae lm try local`")
        raise
    began = perf_counter()
    with err().status(f"asking {name} …"):
        run = asyncio.run(_ask_question(lm, name, prompt, timeout))
    reply, usage, seconds = run.result, run.usage, perf_counter() - began
    # A scripted LM has no model that could call tools.
    calls_tools = lm.calls_tools if isinstance(lm, Backend) else None
    if as_json:
        names = ("models", "calls", "attempts", "input_tokens", "output_tokens", "cost")
        data = {"lm": name, "answer": reply.answer, "sure": reply.sure, "seconds": seconds}
        data |= {"calls_tools": calls_tools}
        print_json(data | {field: getattr(usage, field) for field in names})
        return
    cost = "unknown" if usage.cost is None else f"${usage.cost:.6f}".rstrip("0").rstrip(".")
    attempts = f", {usage.attempts} attempts" if usage.attempts > 1 else ""
    rows = {
        "answer": reply.answer,
        "sure": "yes" if reply.sure else "no",
        "lm": name,
        "model": ", ".join(usage.models) or "not said",
        "time": f"{seconds:.2f} s{attempts}",
        "tokens": f"{usage.input_tokens:,} in, {usage.output_tokens:,} out",
        "cost": cost,
    }
    if calls_tools is not None:
        rows["tools"] = "native calls" if calls_tools else "by structured output"
    for label, value in rows.items():
        text_line = Text(f"{label:<8}", style="bold")
        print_hanging(out(), text_line.append(in_lines(value, 8), style="not bold"), 8)


_STATES: Final = {"ready": "bold green", "installed": "bold cyan", "missing": "bold yellow"}
_STATE_WIDTH: Final = 11
_INDENT: Final = _STATE_WIDTH + 13


def _kind_data(kind: LMKind) -> dict[str, Any]:
    """Return a kind of LM as JSON, without the fields for making the LM."""
    made_with = ("maker", "packages", "extra", "extra_of_provider", "objects", "default_address")
    data = {name: value for name, value in asdict(kind).items() if name not in made_with}
    return {**data, "asked_at": kind.asked_at, "state": kind.state, "ready": kind.ready}


def _describe_kind(kind: LMKind, default: DefaultName, *, brief: bool = False) -> Text:
    below = f"\n{' ' * _INDENT}"
    text = Text()
    text.append(f"{kind.state:<{_STATE_WIDTH}}", style=_STATES[kind.state])
    text.append(f"{f'{kind.name} ':<{_INDENT - _STATE_WIDTH}}", style="bold").append(kind.about)
    if not kind.through:
        text.append(", with native tool calls" if kind.calls_tools else "")
    if kind.asked_at:
        text.append(f", at {remove_passwords(kind.asked_at)}")
    if kind.name == default.name.partition(":")[0]:
        text.append(" (the default)", style="green")
    for requirement in kind.missing:
        # The command has its own unbroken line, so that the user can copy it.
        text.append(f"{below}{requirement.what}:{below}  ").append(requirement.get, style="cyan")
    if kind.open:
        text.append(f"{below}{'then' if kind.missing else 'it needs'} {kind.open}", style="dim")
    text.append(f"{below}--lm {kind.example}", style="dim" if kind.missing else "cyan")
    if kind.forms != kind.example and not brief:
        text.append(f"   ({kind.forms})", style="dim")
    return text


# --- the run of `bae lm try` ----------------------------------------------------------------------


class ShortQuestion(Node):
    """The question of `bae lm try`."""

    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    """The answer of `bae lm try`: a text and a choice, as in most nodes."""

    answer: str = Field(description="the answer, in one short sentence", max_length=400)
    sure: bool = Field(description="whether you are sure of it")

    async def __call__(self) -> None: ...


async def _ask_question(lm: LM, name: str, text: str, timeout: float) -> GraphResult[Reply]:
    try:
        async with asyncio.timeout(timeout):
            return await Graph(start=ShortQuestion, end=Reply).arun(ShortQuestion(text=text), lm)
    except TimeoutError as error:
        raise refusal(
            f"{name} gave no answer in {timeout:g} s",
            fix="give it more time with --timeout SECONDS",
            cause=error,
        ) from error


# --- the LM of a run ------------------------------------------------------------------------------

_log = logging.getLogger("bae.cli")


def check_lm(graph: Graph[Any, Any], named: str | None, *, begins: bool = False) -> None:
    """Raise if the LM `named` is unusable.

    With `begins`, also raise if the graph needs an LM, no LM is named, and this machine has no
    default LM. Use `begins` for new runs only, because a resumed run may no longer need an LM.
    """
    if named is not None:
        wrong = name_error(named)
        if wrong is not None and wrong.code == "bae-lm-option":
            raise wrong
        if wrong is not None:
            raise Misuse(wrong.message, code="bae-lm-unknown-name", fix=wrong.fix)
        cached_lm(named)
    elif begins and graph.needs_lm and not find_default_name().name:
        try:
            find_default_lm(graph.needs_lm)
        except BaeLMError as error:
            if error.code == "bae-lm-missing":
                error.fix = rewrite_lm_fix(error, "with --lm, as --lm local")
            raise


def make_lm(graph: Graph[Any, Any], named: str | None, *, quiet: bool = False) -> LM:
    """Make an LM that `check_lm` accepted. Without a name, make the default LM, and print its name
    on stderr unless BAE_LM or `quiet` is set."""
    if named is not None:
        return cached_lm(named)
    if not graph.needs_lm:
        # Every node that asks an LM has a pinned LM. The run's LM only carries learned prompts.
        return LazyLM(f"the LM of {graph.name} was asked")
    name = find_default_name().name
    if not name:
        return find_default_lm(graph.needs_lm)
    if not quiet and not os.environ.get(VARIABLE, "").strip():
        note(f"using {name}: --lm names another")
    return cached_lm(name)


def lm_for(graph: Graph[Any, Any], stored: StoredRun, named: str | None) -> LM | str | None:
    """Return the LM for a resumed run: the LM `named`, or the default LM.

    The default LM is made when the run needs it. If another LM answered before, a warning names
    both LMs. Returns None if BAE_LM is set, or if the graph needs no LM.
    """
    if named is not None or os.environ.get(VARIABLE, "").strip() or not graph.needs_lm:
        return named
    from bae.journal.decoder import read_history

    return _ResumeLM(graph.needs_lm, read_history(stored).usage)


class _ResumeLM(LazyLM):
    """The default LM of this machine, for a resumed run. `before` is the usage until now."""

    def __init__(self, why: str, before: Usage) -> None:
        super().__init__(why)
        self._before = before

    def find(self) -> LM:
        """Make the default LM, and warn if another LM answered before. Raises if this machine has
        no default LM."""
        name = find_default_name().name if self._before.calls else ""
        if name:
            lm = cached_lm(name)
            model = str(getattr(lm, "model", ""))
            if not has_answered(model, self._before.models):
                _log.warning(
                    "the LM of this run so far was %s; continuing with %s, --lm chooses another",
                    ", ".join(self._before.models) or "one without a name, such as a script",
                    f"{name} ({model})" if model else name,
                )
                return lm
        return super().find()


def has_answered(model: str, models: tuple[str, ...]) -> bool:
    """Return whether a model is one of `models`, the names that earlier answers reported. A
    reported name may be longer than the requested name, such as `sonnet`."""
    last = model.rpartition(":")[2].lower()
    return bool(last) and any(last in model.lower() for model in models)


def rewrite_lm_fix(error: BaeError, how: str) -> str:
    """Rewrite the fix of an error about a missing LM for a command. `how` is the syntax that names
    an LM. The lines about what each LM lacks stay."""
    _, line_end, lacking = (error.fix or "").partition("\n")
    if not lacking:
        return error.fix or ""
    return f"name one {how}, or set BAE_LM; `bae lm list` says more{line_end}{lacking}"
