"""The command `bae chat`: a conversation with a graph, at a terminal or over pipes. The
conversation is a thread of the journal, and each message is a run in the thread."""

from __future__ import annotations

import asyncio
import shlex
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli import exits
from bae.cli.chat_commands import ChatCommands
from bae.cli.chat_files import file_fields
from bae.cli.chat_line import MessageLine, history_file, prepare_history, read_stdin_line
from bae.cli.chat_session import ChatOptions, ChatSession
from bae.cli.chat_threads import new_thread_id
from bae.cli.exits import refusal
from bae.cli.journals import file_to_write, open_to_write
from bae.cli.learned import lm_with_learned
from bae.cli.lm import check_lm, make_lm
from bae.cli.loading import load_proved
from bae.cli.options import (
    AsJSON,
    BudgetLimits,
    JournalFile,
    LMName,
    MaxIters,
    Metadata,
    Module,
    Optimized,
    Quiet,
    Sets,
    budget_of,
    examples,
    flag,
    metadata_of,
    option,
)
from bae.cli.outcome import CommandLine
from bae.cli.printing import note, print_error
from bae.cli.questions import can_ask
from bae.cli.signals import work
from bae.cli.start import start_fields
from bae.cli.values import is_secret
from bae.exceptions import BaeError
from bae.journal.storability import prove_storable
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.lm.policies.budget import Budget

EPILOG: Final = examples(
    "bae chat app.py --lm local",
    "bae chat app.py --thread ana-42",
    "bae chat app.py --set language=French --metadata user_id=ana",
    "printf 'Hello.\\nAnd again?\\n' | bae chat app.py --json",
)


def chat(
    module: Module = None,
    thread: Annotated[
        str | None,
        option(
            "--thread -t ID",
            "The conversation to continue, or the id of a new one. Default: a new id.",
        ),
    ] = None,
    sets: Sets = None,
    lm: LMName = None,
    optimized: Optimized = None,
    max_iters: MaxIters = 10,
    journal: JournalFile = None,
    metadata: Metadata = None,
    budget: BudgetLimits = None,
    no_history: Annotated[
        bool, flag("--no-history", "Keep no messages for the arrow keys of the next chat.")
    ] = False,
    as_json: AsJSON = False,
    quiet: Quiet = False,
) -> None:
    """Have a conversation with a graph.

    Each message is a run of the graph: it fills the text field of the start node, and the text
    field of the end node is the reply. The journal keeps the conversation. Other fields of the
    start node come from `--set`, or are asked for once.

    At a terminal, Ctrl-C stops the turn, Ctrl-D leaves, and /help lists the commands. Without a
    terminal, each line of stdin is a message, and each reply goes to stdout; with `--json` as one
    line of JSON.
    """
    limits = budget_of(budget)
    graph = load_proved(module)
    text_field = _find_text_field(graph)
    check_lm(graph, lm, begins=True)
    # One LM for all turns: a scripted LM continues with its next answer.
    model = lm_with_learned(graph, make_lm(graph, lm, quiet=quiet), optimized, quiet=quiet)
    asks = can_ask()
    example = shlex.join(["bae", "chat", *([module] if module else [])])
    message_fields = (text_field, *file_fields(graph.start))
    fields = start_fields(
        graph.start, None, sets or (), ask=asks, command=example, later=message_fields
    )
    if text_field in fields:
        raise typer.BadParameter(
            f"{text_field} is the message: type it in the chat", param_hint="--set"
        )
    prove_storable(graph)
    file = file_to_write(journal)
    options = ChatOptions(
        text_field, fields, model, max_iters, metadata_of(metadata), asks, as_json, quiet
    )
    command_line = CommandLine(module, file, lm, optimized)
    talk = ChatSession(graph, command_line, options, thread or new_thread_id(graph.name))
    line = _make_message_line(graph, text_field, no_history=no_history)
    converse = (
        partial(_chat_at_terminal, talk, line, thread) if asks else partial(_chat_over_pipes, talk)
    )
    outcome = work(partial(_chat_in_journal, talk, file, limits, converse), talk, talk.resume_hint)
    if asks and talk.stored and not quiet:
        note(talk.resume_hint())
    if outcome.error is not None:
        raise outcome.error
    if code := outcome.code or outcome.value:
        raise typer.Exit(code)


def _find_text_field(graph: Graph[Any, Any]) -> str:
    """Return the name of the start node's field for messages. Raise if the node has no text field,
    or several and does not name one of them as the text."""
    name, plan = plan_of(graph.start).text, plan_of(graph.start)
    if name and any(field.name == name for field in plan.plain):
        return name
    texts = [field.name for field in plan.plain if field.annotation is str]
    if texts:
        problem = f"{plan.name} has several text fields: {', '.join(texts)}"
        fix = f'name the field of the message: node_config = NodeConfig(text="{texts[0]}")'
    else:
        problem = f"{plan.name} has no text field that could take a message"
        fix = f"add one, as text: str; or run the graph with `bae run`, which takes any {plan.name}"
    raise refusal(problem, fix)


def _make_message_line(graph: Graph[Any, Any], text_field: str, *, no_history: bool) -> MessageLine:
    hidden = is_secret(graph.start, text_field)
    file: Path | None = None
    if can_ask() and not no_history and not hidden:
        try:
            file = history_file()
            prepare_history(file)
        except (OSError, RuntimeError) as error:
            note(f"messages are not kept for the arrow keys: {error}")
            file = None
    return MessageLine(file, [*ChatCommands.ABOUT], hidden=hidden)


async def _chat_in_journal(
    talk: ChatSession, file: str, budget: Budget | None, converse: Any
) -> int:
    """Open the journal, call `converse`, and return the exit code."""
    async with open_to_write(file) as journal:
        with ExitStack() as stack:
            if budget is not None:
                stack.enter_context(budget)
            talk.journal = journal
            with talk.signals:
                try:
                    return await converse()
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if not talk.signals.code or task is None or task.uncancel():
                        raise
                    return talk.signals.code


# --- over pipes ---------------------------------------------------------------------------------


async def _chat_over_pipes(talk: ChatSession) -> int:
    """Run a turn for each line of stdin, and return the exit code of the last turn that failed.

    The chat ends early, with the exit code of the turn, if a turn waits for a person, is stopped,
    or is refused because another process works on the thread.
    """
    code = exits.DONE
    talk.listen(ends_at_ctrl_c=True)
    while (text := await asyncio.to_thread(read_stdin_line)) is not None:
        if not text.strip():
            continue
        try:
            exit_code = await talk.send(text)
        except BaeError as error:
            print_error(error)
            exit_code = exits.FAILED
        code = exit_code or code
        if exit_code not in (exits.DONE, exits.FAILED):
            return exit_code
        talk.listen(ends_at_ctrl_c=True)
    return code


# --- at a terminal ------------------------------------------------------------------------------


async def _chat_at_terminal(talk: ChatSession, line: MessageLine, thread: str | None) -> int:
    """Read messages and commands until Ctrl-D or /quit, and return the exit code."""
    commands = ChatCommands(talk)
    talk.listen(ends_at_ctrl_c=False)
    code = await commands.begin(is_new=thread is None)
    draft = ""
    while not commands.is_over and code in commands.CONTINUES:
        talk.listen(ends_at_ctrl_c=False)
        try:
            prompt = "edit> " if commands.replaces else "> "
            text = await line.read(prompt, draft or commands.draft)
        except KeyboardInterrupt:
            commands.interrupt()
            draft = ""
            continue
        except EOFError:
            break
        code, draft = await commands.take(text)
    return code if code not in commands.CONTINUES else exits.DONE
