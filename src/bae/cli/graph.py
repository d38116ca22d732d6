"""`bae graph`: draw a graph in the terminal, into a file, or as Mermaid."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli.help import examples
from bae.cli.options import AsJSON, Module

if TYPE_CHECKING:
    from pathlib import Path

    from rich.text import Text

    from bae.pictures import Drawing, Picture

group = typer.Typer(no_args_is_help=True, help="Draw a graph: in the terminal, or into a file.")


class Way(StrEnum):
    """Which way a picture goes."""

    TD = "TD"
    LR = "LR"


class Look(StrEnum):
    """Light, dark, or as the reader has it."""

    AUTO = "auto"
    LIGHT = "light"
    DARK = "dark"


Direction = Annotated[
    Way,
    typer.Option(
        "--direction", "-d", help="From top to bottom, or from left to right.", case_sensitive=False
    ),
]
NoFields = Annotated[bool, typer.Option("--no-fields", "-n", help="Show the nodes without fields.")]

COLOURS: Final = {
    "name": "bold",
    "outline": "dim",
    "note": "dim",
    "type": "dim",
    "origin": "dim italic",
    "start": "green",
    "end": "bold",
    "source-given": "default",
    "source-recall": "green",
    "source-dep": "blue",
    "source-gate": "red",
    "source-map": "yellow",
    "source-code": "cyan",
    "source-lm": "magenta",
    "arrow-certain": "default",
    "arrow-lm": "magenta",
    "arrow-code": "cyan",
}

SHOW_EXAMPLES: Final = examples(
    "bae graph show app.py",
    "bae graph show app.py --no-fields",
    "bae graph show app.py --json",
)
EXPORT_EXAMPLES: Final = examples(
    "bae graph export app.py -o graph.svg",
    "bae graph export app.py -o graph.png --theme dark --scale 3",
    "SVG, HTML and Mermaid need nothing more; PNG and PDF need "
    "`pip install 'bae-graphs[pictures]'`.",
)


@group.command("show", epilog=SHOW_EXAMPLES)
def show(
    module: Module = None,
    direction: Direction = Way.TD,
    no_fields: NoFields = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="A list of nodes and arrows, without boxes.")
    ] = False,
    ascii_only: Annotated[
        bool, typer.Option("--ascii", help="Draw with plain characters only.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Draw a graph in the terminal: nodes with their fields by source, and where each leads.

    A picture that is too wide for the terminal becomes a list.
    """
    from bae.cli.loading import load
    from bae.cli.printing import out, print_json
    from bae.pictures import picture_of, to_text

    graph = load(module).graph
    if as_json:
        print_json(_as_json(picture_of(graph)))
        return
    console = out()
    drawing = to_text(
        graph,
        width=console.width,
        fields=not no_fields,
        direction=direction.value,
        ascii_only=ascii_only or console.options.ascii_only,
        compact=compact,
    )
    for row in _coloured(drawing):
        console.print(row, soft_wrap=True)


@group.command("export", epilog=EXPORT_EXAMPLES)
def export(
    module: Module = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            show_default="graph.svg",
            help="The file to write. How it ends says what it is: .svg, .html, .mmd, .png or .pdf.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            show_default=False,
            help="What to write, however the file ends: svg, html, mmd, png or pdf.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
    direction: Direction = Way.TD,
    no_fields: NoFields = False,
    theme: Annotated[
        Look,
        typer.Option(
            "--theme", help="The colours. SVG and HTML follow the reader's choice with `auto`."
        ),
    ] = Look.AUTO,
    scale: Annotated[
        float, typer.Option("--scale", min=0.1, max=10, help="How large a PNG is.")
    ] = 2.0,
    font: Annotated[
        str | None,
        typer.Option(
            "--font",
            metavar="FILE",
            show_default=False,
            help="A TrueType font for PNG and PDF, for names that are not in Latin letters.",
        ),
    ] = None,
    as_json: AsJSON = False,
) -> None:
    """Write a picture of a graph into a file."""
    from pathlib import Path

    from bae.cli.loading import load
    from bae.cli.printing import note, out, print_json
    from bae.cli.refusals import refused
    from bae.pictures import FORMATS, written

    output = output or f"graph.{format or 'svg'}"
    path = Path(output)
    ending = (format or path.suffix).lower().removeprefix(".")
    if ending not in FORMATS:
        said = ", ".join(f".{each}" for each in FORMATS)
        raise refused(
            f"{format or output} could be anything: a picture ends in {said}",
            fix=f"write -o {path.stem or 'graph'}.svg, say",
        )
    if path.exists() and not force:
        raise refused(f"{output} is there already", fix="name another file, or add --force")
    picture = written(
        load(module).graph,
        ending,
        fields=not no_fields,
        direction=direction.value,
        theme=theme.value,
        font=font,
        scale=scale,
    )
    _write(path, picture.content)
    if picture.unknown:
        note(
            f"the fonts lack {' '.join(picture.unknown)}, which are spelled by their number: give "
            "a font that has them with --font, or write an .svg"
        )
    if as_json:
        print_json({"path": output, "unknown": [*picture.unknown]})
    else:
        out().print(output, markup=False, soft_wrap=True)


@group.command("mermaid", epilog=examples("bae graph mermaid app.py > graph.mmd"))
def mermaid(
    module: Module = None,
    direction: Direction = Way.TD,
    no_fields: NoFields = False,
) -> None:
    """Print a graph as a Mermaid flowchart, to be put into Markdown."""
    import sys

    from bae.cli.loading import load
    from bae.pictures import to_mermaid

    graph = load(module).graph
    sys.stdout.write(to_mermaid(graph, fields=not no_fields, direction=direction.value))
    sys.stdout.flush()


def _write(path: Path, content: bytes) -> None:
    from bae.cli.refusals import refused

    try:
        path.write_bytes(content)
    except OSError as error:
        raise refused(
            f"{path} cannot be written",
            fix="name a file in a directory that is there and yours",
            cause=error,
        ) from error


def _coloured(drawing: Drawing) -> list[Text]:
    from rich.text import Text

    return [
        Text.assemble(*((text, COLOURS.get(role, "")) for text, role in row))
        for row in drawing.rows
    ]


def _as_json(picture: Picture) -> dict[str, Any]:
    """The picture for a script: the same as is drawn, with nothing cut short."""
    return {
        "id": picture.id,
        "name": picture.name,
        "nodes": [
            {
                "id": box.id,
                "name": box.name,
                "module": box.module,
                "defined": box.place,
                "doc": box.doc,
                "start": box.start,
                "ends": box.ending,
                "body": "written" if box.written else "empty",
                "lm": box.lm or None,
                "fields": [
                    {
                        "name": field.name,
                        "type": field.type,
                        "source": field.source,
                        "from": field.origin,
                        "description": field.description,
                        "required": field.required,
                        "graphs": field.graphs,
                    }
                    for field in box.fields
                ],
            }
            for box in picture.boxes
        ],
        "edges": [
            {"from": arrow.tail, "to": arrow.head, "kind": arrow.kind} for arrow in picture.arrows
        ],
        "used_by": picture.used_by,
        "graphs": [_as_json(each) for each in picture.inner],
    }
