"""The command `bae graph`: draw a graph in the terminal, to a file, or as Mermaid."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.text import Text

from bae.cli.exits import refusal
from bae.cli.loading import load
from bae.cli.options import AsJSON, Module, examples, flag, option
from bae.cli.printing import out, print_json
from bae.cli.wording import in_one_line, without_controls
from bae.pictures import Picture, picture_of, to_mermaid, to_svg, to_text

group = typer.Typer(no_args_is_help=True, help="Draw a graph in the terminal or to a file.")


DirectionOption = Annotated[
    Literal["TD", "LR"],
    typer.Option(
        "--direction", "-d", help="The direction: top down or left to right.", case_sensitive=False
    ),
]
NoFields = Annotated[bool, flag("--no-fields -n", "Show nodes without fields.")]

COLORS: Final = {
    "name": "bold",
    "outline": "dim",
    "note": "dim",
    "type": "dim",
    "origin": "dim italic",
    "start": "green",
    "end": "bold",
    "source-given": "default",
    "source-trace": "green",
    "source-call": "blue",
    "source-person": "red",
    "source-items": "yellow",
    "source-code": "cyan",
    "source-llm": "magenta",
    "arrow-certain": "default",
    "arrow-lm": "magenta",
    "arrow-code": "cyan",
}


@group.command(
    epilog=examples(
        "bae graph show app.py",
        "bae graph show app.py --no-fields",
        "bae graph show app.py --json",
    )
)
def show(
    module: Module = None,
    direction: DirectionOption = "TD",
    no_fields: NoFields = False,
    compact: Annotated[
        bool, flag("--compact", "Print a list of nodes and arrows, without boxes.")
    ] = False,
    ascii_only: Annotated[bool, flag("--ascii", "Draw with ASCII characters only.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Draw a graph in the terminal: nodes with their fields by source, and edges.

    A picture that is too wide for the terminal becomes a list.
    """
    graph = load(module).graph
    if as_json:
        print_json(_as_json(picture_of(graph)))
        return
    console = out()
    drawing = to_text(
        graph,
        width=console.width,
        fields=not no_fields,
        direction=direction,
        ascii_only=ascii_only or console.options.ascii_only,
        compact=compact,
    )
    for row in drawing.rows:
        line = Text.assemble(*((text, COLORS.get(role, "")) for text, role in row))
        console.print(line, soft_wrap=True)


@group.command(
    epilog=examples(
        "bae graph export app.py -o graph.svg",
        "bae graph export app.py -o graph.mmd --no-fields",
    )
)
def export(
    module: Module = None,
    output: Annotated[
        str | None,
        option(
            "--output -o FILE",
            "The file to write; its ending is the format: .svg or .mmd (Mermaid).",
            show_default="graph.svg",
        ),
    ] = None,
    format: Annotated[
        str | None,
        option("--format -f FORMAT", "The format, whatever the file's ending: svg or mmd."),
    ] = None,
    force: Annotated[bool, flag("--force", "Overwrite an existing file.")] = False,
    direction: DirectionOption = "TD",
    no_fields: NoFields = False,
    theme: Annotated[
        Literal["auto", "light", "dark"],
        typer.Option("--theme", help="The colors of an SVG; `auto` follows the reader's settings."),
    ] = "auto",
    as_json: AsJSON = False,
) -> None:
    """Write a picture of a graph to a file."""
    output = output or f"graph.{format or 'svg'}"
    path = Path(output)
    ending = (format or path.suffix).lower().removeprefix(".")
    if ending not in ("svg", "mmd"):
        raise refusal(
            f"{format or output} is no format: a picture ends in .svg or .mmd (Mermaid)",
            fix=f"write -o {path.stem or 'graph'}.svg; other programs convert an SVG",
        )
    if path.exists() and not force:
        raise refusal(f"{output} is there already", fix="name another file, or add --force")
    graph = load(module).graph
    if ending == "svg":
        picture = to_svg(graph, fields=not no_fields, direction=direction, theme=theme)
    else:
        picture = to_mermaid(graph, fields=not no_fields, direction=direction)
    try:
        path.write_text(picture, encoding="utf-8", newline="\n")
    except OSError as error:
        raise refusal(
            f"{path} cannot be written",
            fix="name a file in a directory that is there and yours",
            cause=error,
        ) from error
    if as_json:
        print_json({"path": output})
    else:
        out().print(in_one_line(output), markup=False, soft_wrap=True)


@group.command(epilog=examples("bae graph mermaid app.py > graph.mmd"))
def mermaid(
    module: Module = None,
    direction: DirectionOption = "TD",
    no_fields: NoFields = False,
) -> None:
    """Print a graph as a Mermaid flowchart, for Markdown."""
    graph = load(module).graph
    text = to_mermaid(graph, fields=not no_fields, direction=direction)
    sys.stdout.write(without_controls(text))
    sys.stdout.flush()


def _as_json(picture: Picture) -> dict[str, Any]:
    """Return a picture as JSON. Its texts are complete, unlike in the drawing."""
    return {
        "id": picture.id,
        "name": picture.name,
        "nodes": picture.boxes,
        "edges": picture.arrows,
        "used_by": picture.used_by,
        "graphs": [_as_json(inner) for inner in picture.inner],
    }
