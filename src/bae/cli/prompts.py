"""`bae prompts`: print the prompts of a graph without sending them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from types import NoneType
from typing import Annotated, Any, Final

from rich.text import Text

from bae.cli.exits import Misuse, refusal
from bae.cli.later import call_later
from bae.cli.learned import artifacts_in, with_prompts
from bae.cli.loading import load_proved
from bae.cli.options import (
    AsJSON,
    InputOption,
    Module,
    Optimized,
    Sets,
    argument,
    examples,
    flag,
    option,
)
from bae.cli.printing import note, out, print_hanging, print_json
from bae.cli.start import start_node
from bae.cli.wording import in_lines
from bae.graph import Graph
from bae.lm import LM, Answer, Backend, FilePart, Prompt
from bae.plan import plan_of

(print_brief,) = call_later("bae.cli.team_tasks", "print_brief")


class PromptOnly(Backend):
    """A backend for preparing prompts. It is never asked."""

    def __init__(self, *, calls_tools: bool) -> None:
        super().__init__()
        self.calls_tools = calls_tools

    async def answer(self, prompt: Prompt) -> Answer:
        """Refuse: no prompt is sent."""
        raise AssertionError("a prompt must be shown, not sent")


EPILOG: Final = examples(
    "bae prompts app.py",
    'bae prompts app.py Reply -i \'{"message": "just got up"}\'',
    "bae prompts app.py --optimized learned --json",
    "bae prompts --task add-login",
)


def prompts(
    module: Module = None,
    node: Annotated[
        str | None,
        argument(
            "NODE",
            "Show only the prompts that fill this node class or offer it in a choice. Default: "
            "every prompt.",
        ),
    ] = None,
    given: InputOption = None,
    sets: Sets = None,
    optimized: Optimized = None,
    structured: Annotated[
        bool,
        flag(
            "--structured",
            "Show tools as a model without native tool calls gets them: in the question, with one "
            "schema for a call or the answer. With --task: the brief for such a model.",
        ),
    ] = False,
    task: Annotated[
        str | None,
        option(
            "--task TASK",
            "Show the brief that the worker of a task gets first, in the team's project around "
            "this directory. TASK is a key or a number.",
        ),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Print every prompt that a graph can send: system text, messages and schema.

    Nothing is called: no function, no body and no language model. Values are samples named like
    their fields; `-i` and `--set` give those of the start node. `--task` prints the brief of a
    team's task instead.
    """
    if task is not None:
        if module is not None:
            raise Misuse("--task is about the team's project, and takes no file")
        print_brief(task, with_tools=not structured, as_json=as_json)
        return
    graph = load_proved(module)
    nodes: list[Any] = []
    if given is not None or sets:
        example = shlex.join(["bae", "prompts", *([module] if module else [])])
        nodes.append(start_node(graph.start, given, sets or (), ask=False, command=example))
    lm: LM | None = PromptOnly(calls_tools=not structured) if structured or optimized else None
    if lm is not None and optimized:
        lm = with_prompts(lm, artifacts_in(graph, optimized))
    shown = _filter_prompts(graph, graph.prompts(*nodes, lm=lm), node)
    if as_json:
        print_json({"graph": graph.name, "prompts": [_as_json(prompt) for prompt in shown]})
        return
    for prompt in shown:
        _print(prompt)
    if not shown:
        note(f"{graph.name} asks no language model, or only in the words of its own bodies")
        return
    for unknown in _tools_found_later(shown):
        note(unknown)
    if not nodes:
        note(f"values are samples; -i gives the fields of {graph.start.__name__}")


def _filter_prompts(
    graph: Graph[Any, Any], every: Sequence[Prompt], node: str | None
) -> Sequence[Prompt]:
    if node is None:
        return every
    kept = [p for p in every if any(_name(cls) == node for cls in _classes(p))]
    if kept:
        return kept
    asked = dict.fromkeys(cls.__name__ for p in every for cls in _classes(p) if cls is not NoneType)
    raise refusal(
        f"no prompt of the graph {graph.name} asks for {node}, or offers it",
        fix=f"name one of {', '.join(asked)}" if asked else "leave it out",
    )


def _tools_found_later(every: Sequence[Prompt]) -> list[str]:
    """The tools that are missing in the prompts, since only a run knows them."""
    lines: dict[str, None] = {}
    for cls in (prompt.question.target for prompt in every):
        tools = None if cls is None else plan_of(cls).tools
        if cls is None or tools is None or not tools.finds_tools:
            continue
        shown = {spec.name for spec in tools.tool_specs}
        later = ", ".join(name for name in tools.tool_names if name not in shown)
        place = f"{cls.__name__}.{tools.name}"
        lines[f"not shown: tools of {place} that only a run knows, {later}"] = None
    return [*lines, "`bae mcp list` lists those of MCP servers"] if lines else []


def _classes(prompt: Prompt) -> list[type]:
    """The classes to fill, or to choose from."""
    question = prompt.question
    return [*question.types] if question.target is None else [question.target]


def _print(prompt: Prompt) -> None:
    shown = Text(_heading(prompt), style="bold")
    for role, text in prompt.sections():
        shown.append(f"\n{role}", style="cyan not bold")
        lines = in_lines(text, 2).replace("\n  \n", "\n\n")
        shown.append(f"\n  {lines}", style="not bold")
    print_hanging(out(), shown.append("\n"), 2)


def _heading(prompt: Prompt) -> str:
    """The place, the task and the caller of a prompt."""
    question = prompt.question
    goal = " | ".join(map(_name, _classes(prompt)))
    filled = ", ".join(map(_name, question.fillable))
    what = "fill" if question.target else "choice"
    if filled:
        what += f", with the fields of {filled}"
    if _asked_by_body(prompt):
        what += ", where the body asks for it"
    return f"{_name(type(question.source))} -> {goal}: {what}"


def _as_json(prompt: Prompt) -> dict[str, Any]:
    question = prompt.question
    return {
        "kind": "fill" if question.target else "choice",
        "source": _name(type(question.source)),
        "target": _name(question.target) if question.target else None,
        "options": [_name(type_) for type_ in question.types],
        "filled": [_name(each) for each in question.fillable],
        "body": _asked_by_body(prompt),
        "system": prompt.system,
        "messages": prompt.messages(),
        "files": [_file_as_json(part) for part in prompt.files],
        "tools": [
            {"name": tool.name, "description": tool.description, "schema": tool.schema}
            for tool in prompt.tools
        ],
        "schema": prompt.schema,
    }


def _file_as_json(part: FilePart) -> dict[str, Any]:
    content = part.file.as_json()
    return {
        "label": part.label,
        **(content if isinstance(content, dict) else {"url": part.file.about}),
    }


def _asked_by_body(prompt: Prompt) -> bool:
    source = prompt.question.source
    return source is not None and plan_of(type(source)).written


def _name(cls: type) -> str:
    return "None" if cls is NoneType else cls.__name__
