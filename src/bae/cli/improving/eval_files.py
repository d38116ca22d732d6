"""The files that an evaluation is written to: Markdown, JSON or CSV, by the end of the name. Where
none is named it is Markdown and JSON in `.bae/evals`, beside the journal of the project. `eval.py`
asks before anything runs whether they can be written, and writes them at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final

from bae.cli.exits import Misuse, refused
from bae.private_files import write_private

if TYPE_CHECKING:
    from bae.evals.report import Evaluation

KINDS: Final = (".md", ".json", ".csv")
"""How the names of files end that an evaluation can be written to."""


def check_files(named: Sequence[str]) -> None:
    """Refuse files that cannot be written, before anything runs. Nothing is left behind."""
    for each in named:
        if Path(each).suffix.lower() not in KINDS:
            raise Misuse(
                f"-o {each}: the end of the name says what is written, and this is none of "
                f"{', '.join(KINDS)}",
                code="bae-command-refused",
                fix=f"give a name that ends in one of them, as -o {Path(each).stem or 'report'}.md",
            )
    for each in named:
        path = Path(each)
        if path.is_dir():
            raise refused(f"-o {each} is a directory", fix=f"name a file, as -o {each}/report.md")
        if path.exists() and not os.access(path, os.W_OK):
            raise refused(f"-o {each} cannot be written over", fix="name another file")
        try:
            _try(path.parent)
        except OSError as error:
            raise refused(
                f"-o {each} cannot be written: {error.strerror}",
                cause=error,
                fix="name a file in a directory that can be written to",
            ) from error


def default_folder() -> Path | None:
    """Where an evaluation goes that nobody has named a file for. None where that cannot be written,
    which a note says."""
    from bae.cli.journals import default, file_to_write
    from bae.cli.printing import note

    folder = default().parent / "evals"
    try:
        file_to_write(None)  # the directory, which git leaves alone
        _try(folder)
    except OSError as error:
        note(
            f"the evaluation is printed and not written, since {folder} cannot be: "
            f"{error.strerror}; -o FILE names another place"
        )
        return None
    return folder


def files_in(folder: Path | None, stamp: str) -> list[str]:
    """The names of an evaluation in a folder, which no other one there has."""
    if folder is None:
        return []
    name, number = stamp, 1
    while (folder / f"{name}.json").exists():  # another one, in the same second
        number += 1
        name = f"{stamp}-{number}"
    return [str(folder / f"{name}.md"), str(folder / f"{name}.json")]


def write_evaluation(evaluation: Evaluation, named: Sequence[str]) -> None:
    """Write an evaluation to files: each is whole, or as it was before."""
    for each in named:
        path = Path(os.path.realpath(each))  # what a link leads to, and not the link
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Half of a character, which a text may have, has a form in JSON, and stays readable.
            write_private(path, _said(evaluation, path).encode(errors="backslashreplace"))
        except OSError as error:
            raise refused(
                f"{each} could not be written: {error.strerror}",
                cause=error,
                fix="what was found is printed; -o FILE names another place next time",
            ) from error


def _try(folder: Path) -> None:
    """Write something into a folder, and take it away again, with the folders made for it. Asking
    for permissions says too little: of full disks, of systems that are only to be read."""
    made: list[Path] = []
    try:
        for each in reversed([folder, *folder.parents]):
            if not each.is_dir():
                each.mkdir()
                made.append(each)
        with TemporaryFile(dir=folder) as file:
            file.write(b"\n")
    finally:
        with suppress(OSError):
            for each in reversed(made):
                each.rmdir()


def _said(evaluation: Evaluation, path: Path) -> str:
    kind = path.suffix.lower()
    if kind == ".md":
        said = evaluation.to_markdown()
    elif kind == ".csv":
        return evaluation.to_csv()  # which has line ends of its own
    else:
        said = json.dumps(_plain(evaluation.to_json()), indent=2, ensure_ascii=False)
    return said.rstrip("\n") + "\n"


def _plain(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value, fallback=repr, inf_nan_mode="strings")
