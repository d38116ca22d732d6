"""`bae new`: a small project that works, to be changed into one's own. `project.py` has what goes
into it, and `writing.py` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from bae.cli.options import AsJSON, LMName, examples

if TYPE_CHECKING:
    from pathlib import Path

    from bae.cli.new.project import Project

EPILOG: Final = examples("bae new wardrobe", "bae new support-desk --lm claude-cli:sonnet")


def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="What to call it: a directory of that name is made here. Give a path to have it "
            "elsewhere.",
        ),
    ],
    lm: LMName = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over files that are there already.")
    ] = False,
    as_json: AsJSON = False,
) -> None:
    """Write a small project that works: a graph, a test that needs no language model, a README.

    With `--lm` the command lines in it name that language model.
    """
    from pathlib import Path

    from bae.cli.exits import Misuse
    from bae.cli.new.origin import origin
    from bae.cli.new.project import named
    from bae.cli.new.writing import refuse_what_is_there, write
    from bae.lm.registry import name_error

    if lm is not None:
        error = name_error(lm)
        if error is not None:
            raise error
    if not name.strip():
        raise Misuse(
            "no NAME was given",
            code="bae-command-refused",
            fix="give one, as `bae new wardrobe`; `bae new .` takes this directory",
        )
    folder = Path(name)
    project = named(folder.resolve().name, lm or "", folder)
    files = project.files(origin())
    refuse_what_is_there(folder, files, force)
    write(folder, files)
    if as_json:
        from bae.cli.printing import print_json

        print_json({"path": str(folder), "files": list(files)})
    else:
        _print_next(folder, project, list(files))


def _print_next(folder: Path, project: Project, files: list[str]) -> None:
    import shlex
    from dataclasses import replace

    from rich.text import Text

    from bae.cli.new.project import SCRIPT
    from bae.cli.printing import out, print_hanging
    from bae.lm.extras import is_there
    from bae.lm.registry import default_name

    said = Text(f"{folder} has a project of {len(files)} files:\n")
    for path in files:
        said.append(f"  {path}\n", style="cyan")
    said.append("\nNext:\n", style="bold")
    none = not project.lm and not default_name().name
    commands = replace(project, lm=SCRIPT).commands if none else project.commands
    here = str(folder) == "."
    if not is_there("pytest"):
        commands = [*commands[:-1], "pip install pytest", commands[-1]]
    for step in [*([] if here else [f"cd {shlex.quote(str(folder))}"]), *commands]:
        said.append(f"  {step}\n", style="bold")
    if none:
        said.append(
            "\nNo language model is ready here, so the run takes its answers from a file. "
            "`bae lm list` says what is missing.\n"
        )
    said.right_crop(1)
    print_hanging(out(), said, 2)
