"""Writes the files of a new project: all of them, or none. `project.py` has their texts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from bae.cli.exits import refused

BESIDE: Final = ".bae-new"
"""What the name of a file ends in until all are written."""


def refuse_what_is_there(folder: Path, files: dict[str, str], force: bool) -> None:
    """Raise where a file would be written over that nobody has said may be."""
    if folder.exists() and not folder.is_dir():
        raise refused(f"{folder} is there already, and no directory", fix="give another name")
    for path in files:
        if (folder / path).is_dir():
            raise refused(f"{folder / path} is a directory", fix="give another name, or move it")
    there = [path for path in files if (folder / path).exists()]
    if there and not force:
        raise refused(
            f"{folder} has {', '.join(there)} already, and nothing was written",
            fix="give another name, or --force to write over "
            + ("it" if len(there) == 1 else "them"),
        )


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files under a folder, which is made if need be. Where one cannot be written nothing
    is left behind, and what was there is as it was."""
    staged: list[tuple[Path, Path]] = []
    made: list[Path] = []
    file = folder
    try:
        for path, text in files.items():
            file = folder / path
            _make(file.parent, made)
            staged.append((file.with_name(file.name + BESIDE), file))
            staged[-1][0].write_text(text, encoding="utf-8")
        for beside, file in staged:
            os.replace(beside, file)
    except BaseException as error:
        _take_back([beside for beside, _ in staged], made)
        if not isinstance(error, OSError):
            raise
        raise refused(
            f"{file} could not be written: {error.strerror}",
            fix="choose a directory that can be written to",
            cause=error,
        ) from error


def _make(folder: Path, made: list[Path]) -> None:
    """Make a directory and those above it, and note which were not there."""
    if not folder.is_dir():
        _make(folder.parent, made)
        folder.mkdir()
        made.append(folder)


def _take_back(files: list[Path], folders: list[Path]) -> None:
    for file in files:
        with suppress(OSError):
            file.unlink(missing_ok=True)
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()
