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
    """A backend that prepares prompts and answers none."""

    def __init__(self, *, calls_tools: bool) -> None:
        super().__init__()
        self.calls_tools = calls_tools

    async def answer(self, prompt: Prompt) -> Answer:
        """Raise AssertionError: prompts are printed, not sent."""
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
            "Show tools in the form for a model without native tool calls: in the "
            "question, with one "
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

    Nothing is called: no function, no body and no language model. Each value is a sample with its
    field's name, unless `-i` or `--set` gives a value of the start node. `--task` prints the brief
    of a team's task instead.
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
    selected = _filter_prompts(graph, graph.prompts(*nodes, lm=lm), node)
    if as_json:
        print_json({"graph": graph.name, "prompts": [_as_json(prompt) for prompt in selected]})
        return
    for prompt in selected:
        _print(prompt)
    if not selected:
        note(f"{graph.name} asks no language model, except where a body writes its own prompt")
        return
    for unknown in _describe_missing_tools(selected):
        note(unknown)
    if not nodes:
        note(f"values are samples; -i gives the fields of {graph.start.__name__}")


def _filter_prompts(
    graph: Graph[Any, Any], all_prompts: Sequence[Prompt], node: str | None
) -> Sequence[Prompt]:
    if node is None:
        return all_prompts
    matching = [p for p in all_prompts if any(_name(cls) == node for cls in _goal_classes(p))]
    if matching:
        return matching
    names = dict.fromkeys(
        cls.__name__ for p in all_prompts for cls in _goal_classes(p) if cls is not NoneType
    )
    raise refusal(
        f"no prompt of the graph {graph.name} asks for {node}, or offers it",
        fix=f"name one of {', '.join(names)}" if names else "leave NODE out",
    )


def _describe_missing_tools(all_prompts: Sequence[Prompt]) -> list[str]:
    """Describe the tools that the prompts do not show, because only a run finds them."""
    lines: dict[str, None] = {}
    for cls in (prompt.question.target for prompt in all_prompts):
        tools = None if cls is None else plan_of(cls).tools
        if cls is None or tools is None or not tools.finds_tools:
            continue
        shown_names = {spec.name for spec in tools.tool_specs}
        missing_names = ", ".join(name for name in tools.tool_names if name not in shown_names)
        place = f"{cls.__name__}.{tools.name}"
        lines[f"not shown: tools of {place} that only a run knows, {missing_names}"] = None
    return [*lines, "`bae mcp list` lists the tools of MCP servers"] if lines else []


def _goal_classes(prompt: Prompt) -> list[type]:
    """Return the class to fill, or the classes to choose from."""
    question = prompt.question
    return [*question.types] if question.target is None else [question.target]


def _print(prompt: Prompt) -> None:
    output = Text(_make_title(prompt), style="bold")
    for role, text in prompt.sections():
        output.append(f"\n{role}", style="cyan not bold")
        lines = in_lines(text, 2).replace("\n  \n", "\n\n")
        output.append(f"\n  {lines}", style="not bold")
    print_hanging(out(), output.append("\n"), 2)


def _make_title(prompt: Prompt) -> str:
    """Return the title of a prompt, such as `Ticket -> Refund: fill`."""
    question = prompt.question
    goal = " | ".join(map(_name, _goal_classes(prompt)))
    filled = ", ".join(map(_name, question.fillable))
    task = "fill" if question.target else "choice"
    if filled:
        task += f", with the fields of {filled}"
    if _is_asked_by_body(prompt):
        task += ", where the body asks for it"
    return f"{_name(type(question.source))} -> {goal}: {task}"


def _as_json(prompt: Prompt) -> dict[str, Any]:
    question = prompt.question
    return {
        "kind": "fill" if question.target else "choice",
        "source": _name(type(question.source)),
        "target": _name(question.target) if question.target else None,
        "options": [_name(type_) for type_ in question.types],
        "filled": [_name(cls) for cls in question.fillable],
        "body": _is_asked_by_body(prompt),
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


def _is_asked_by_body(prompt: Prompt) -> bool:
    source = prompt.question.source
    return source is not None and plan_of(type(source)).written


def _name(cls: type) -> str:
    return "None" if cls is NoneType else cls.__name__
