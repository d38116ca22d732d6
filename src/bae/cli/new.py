"""The command `bae new`: create a small working project from the files in `template`. The project
requires this version of bae or a later one."""

from __future__ import annotations

import json
import keyword
import os
import re
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

from rich.text import Text

from bae import __version__
from bae.cli.exits import Misuse, refusal
from bae.cli.options import AsJSON, LMName, argument, examples, flag
from bae.cli.printing import out, print_hanging, print_json
from bae.lm.extras import is_there
from bae.lm.registry import find_default_name, name_error

EPILOG: Final = examples("bae new wardrobe", "bae new support-desk --lm claude-cli:sonnet")
FILES: Final = {
    "module.py.txt": "@module@.py",
    "test_module.py.txt": "tests/test_@module@.py",
    "answers.json.txt": "tests/answers.json",
    "pyproject.toml.txt": "pyproject.toml",
    "README.md.txt": "README.md",
    "gitignore.txt": ".gitignore",
}
"""The path in the project by template. `@module@` stands for the name of the module."""
TEMPLATES: Final = Path(__file__).parent / "template"
_SCRIPT: Final = "scripted:tests/answers.json"
"""The LM for a machine without an LM. It reads its answers from a file of the project."""
_NAME: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_TAKEN: Final = ("bae", "tests", "conftest", "setup")
REQUIREMENT: Final = f"bae-graphs[cli]>={__version__}"
"""The requirement of a new project, as pip and uv read it."""


def new(
    name: Annotated[
        str,
        argument(
            "NAME",
            "The name of the project, and of the directory that is created here; or a path.",
        ),
    ],
    lm: LMName = None,
    force: Annotated[bool, flag("--force", "Overwrite existing files.")] = False,
    as_json: AsJSON = False,
) -> None:
    """Create a small project that works: a graph, a test that needs no model, a README.

    With `--lm`, the command lines in its README name this language model.
    """
    error = name_error(lm) if lm is not None else None
    if error is not None:
        raise error
    if not name.strip():
        raise Misuse(
            "no NAME was given",
            code="bae-command-refused",
            fix="give one, as `bae new wardrobe`; `bae new .` takes this directory",
        )
    folder = Path(name)
    project = _make_project(folder.resolve().name, lm or "", folder)
    files = project.files()
    _refuse_existing(folder, files, force)
    _write(folder, files)
    if as_json:
        print_json({"path": str(folder), "files": list(files)})
    else:
        _print_next(folder, project, list(files))


def _print_next(folder: Path, project: NewProject, files: list[str]) -> None:
    text = Text(f"created {folder} with {len(files)} files:\n")
    for path in files:
        text.append(f"  {path}\n", style="cyan")
    text.append("\nNext:\n", style="bold")
    lacks_lm = not project.lm and not find_default_name().name
    commands = [(replace(project, lm=_SCRIPT) if lacks_lm else project).run, "bae check"]
    commands += ["pytest"] if is_there("pytest") else ["pip install pytest", "pytest"]
    if str(folder) != ".":
        commands.insert(0, f"cd {shlex.quote(str(folder))}")
    for step in commands:
        text.append(f"  {step}\n", style="bold")
    if lacks_lm:
        text.append(
            "\nNo language model is ready here, so the run takes its answers from a file. "
            "`bae lm list` names the missing parts.\n"
        )
    text.right_crop(1)
    print_hanging(out(), text, 2)


# --- the project --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NewProject:
    """The names that the templates of a new project need."""

    name: str
    module: str
    lm: str = ""
    """The LM in the commands of the project. If it is empty, the commands name no LM."""

    @property
    def run(self) -> str:
        """The command that runs the graph."""
        words = ["bae", "run", "--set", "text=Where is my parcel?"]
        return shlex.join([*words, "--lm", self.lm] if self.lm else words)

    def files(self) -> dict[str, str]:
        """Fill the templates. Returns the texts of the files by path in the project."""
        values = {
            "project": self.name,
            "module": self.module,
            "run": self.run,
            "install": shlex.quote(REQUIREMENT),
            "dependency": json.dumps(REQUIREMENT),
        }

        def fill_template(template: str) -> str:
            return re.sub(r"@(\w+)@", lambda match: values[match[1]], template)

        return {
            fill_template(path): fill_template((TEMPLATES / template).read_text(encoding="utf-8"))
            for template, path in FILES.items()
        }


def _make_project(name: str, lm: str, folder: Path) -> NewProject:
    """Make the values of a new project, and validate its name.

    The name must be valid for a distribution. With `_` in place of `-`, it must also be valid for a
    new module. A module with the same name in this directory or in `folder` is no conflict.
    """
    if not _NAME.fullmatch(name):
        raise refusal(
            f"{name!r} cannot be the name of a project",
            fix="use the letters a to z, digits, - and _, with a letter first and no - or _ last",
        )
    module = name.lower().replace("-", "_")
    own_folders = {Path.cwd(), folder.resolve()}
    spec = PathFinder.find_spec(
        module, [p for p in sys.path if Path(p).resolve() not in own_folders]
    )
    problem = ""
    if keyword.iskeyword(module) or module in _TAKEN:
        problem = f"{module} means something else in Python"
    elif module in sys.stdlib_module_names or (spec and spec.origin):  # a directory has no origin
        problem = f"there is a module {module} already, which it would hide"
    if problem:
        raise refusal(
            f"{name} cannot be the name of a project: {problem}",
            fix=f"give it another name, as {name}-agent",
        )
    return NewProject(name, module, lm)


# --- files --------------------------------------------------------------------------------------


def _refuse_existing(folder: Path, files: dict[str, str], force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise refusal(f"{folder} is there already, and no directory", fix="give another name")
    existing = [path for path in files if (folder / path).exists()]
    for path in existing:
        if (folder / path).is_dir():
            raise refusal(f"{folder / path} is a directory", fix="give another name, or move it")
    if existing and not force:
        raise refusal(
            f"{folder} has {', '.join(existing)} already, and nothing was written",
            fix=f"give another name, or --force to write over {'them' if existing[1:] else 'it'}",
        )


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write the files of a project to a folder. bae first writes all texts to temporary files. If
    this fails, as on a full disk, the existing files are unchanged."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".bae-new-", dir=folder) as beside:
            for path, text in files.items():
                file = Path(beside, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
            for path in files:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
            for path in files:
                os.replace(Path(beside, path), folder / path)
    except OSError as error:
        with suppress(OSError):  # fails for a folder with other files, which must stay
            folder.rmdir()
        raise refusal(
            f"{folder} could not be written: {error.strerror}",
            fix="choose a directory that can be written to",
            cause=error,
        ) from error
