"""The files of artefacts: what they are called, strict JSON in, and JSON out that is the same every
time. Nothing here knows what the JSON means; `artefacts.py` does."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bae.exceptions import ArtefactError

if TYPE_CHECKING:
    from bae.node import Node

LARGEST: Final = 32 * 1024 * 1024
"""How many bytes a file may have."""


def file_names(classes: Sequence[type[Node]]) -> dict[type[Node], str]:
    """The file of each class: its name, with the module in front where several share one. Names
    that some file system takes for the same are the same here too."""
    short = Counter(short_name(cls).casefold() for cls in classes)
    names: dict[type[Node], str] = {}
    taken: set[str] = set()
    for cls in classes:
        name = short_name(cls)
        if short[name.casefold()] > 1:
            name = long_name(cls)
        stem, number = name.removesuffix(ENDING), 1
        while name.casefold() in taken:  # two of one name in one module
            number += 1
            name = f"{stem}-{number}{ENDING}"
        taken.add(name.casefold())
        names[cls] = name
    return names


def short_name(cls: type[Node]) -> str:
    """The file of a class that shares its name with no other."""
    return _safe(cls.__name__)


def long_name(cls: type[Node]) -> str:
    """The file of a class that shares its name with another."""
    return _safe(f"{cls.__module__}.{cls.__qualname__.replace('<locals>.', '')}")


def directory_of(directory: str | Path) -> Path:
    """The directory to load from; refused where there is none."""
    folder = Path(directory)
    if folder.is_dir():
        return folder
    what = "is no directory" if folder.exists() else "is not there"
    raise ArtefactError(
        f"{folder} {what}, so nothing can be loaded from it",
        code="bae-artefact-missing",
        file=str(folder),
        fix="give the directory that artefacts were saved to, as with `bae optimize … -o DIR`",
    )


def read(file: Path) -> Any:
    """What a file says, as JSON values; refused where it is anything but JSON of a sane size."""
    try:
        text = _bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise unreadable(file, f"byte {error.start} is no UTF-8 text", error) from error
    except OSError as error:
        raise unreadable(file, error.strerror or str(error), error) from error
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise unreadable(file, f"no JSON: {error.msg} at {place}", error) from error
    except RecursionError as error:
        raise unreadable(file, "its values are nested too deep", error) from error
    except ValueError as error:
        raise unreadable(file, str(error), error) from error


def unreadable(file: Path, why: str, cause: BaseException | None = None) -> ArtefactError:
    """The error of a file that cannot be read."""
    return ArtefactError(
        f"{file} cannot be read as an artefact: {why}",
        file=str(file),
        cause=cause,
        fix="take the file as it was written, or delete it and optimise again",
    )


def text_of(data: Mapping[str, Any], file: str, cls: type[Node]) -> str:
    """JSON as it is written: readable in review, and the same every time."""
    try:
        said = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise ArtefactError(
            f"what was learnt for {cls.__name__} cannot be written to {file} as JSON",
            file=file,
            node_type=cls,
            cause=error,
            fix="leave out numbers that are not finite, and values that contain themselves",
        ) from error
    # Half a character is no text that can be written, but in JSON its escape is.
    return said.encode("utf-8", "backslashreplace").decode() + "\n"


def written(texts: Mapping[Path, str], directory: Path) -> list[Path]:
    """Write the files, each as a whole or not at all."""
    file = directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            _replace(file, text)
    except OSError as error:
        raise ArtefactError(
            f"{file} could not be written",
            file=str(file),
            cause=error,
            fix="choose a directory that can be written to",
        ) from error
    return list(texts)


ENDING: Final = ".json"
BESIDE: Final = ".bae-artefact-"
"""How the name of a file begins while it is written."""


def _replace(file: Path, text: str) -> None:
    beside = file.with_name(f"{BESIDE}{os.urandom(8).hex()}")
    try:
        with open(beside, "x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, file)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def _bytes(file: Path) -> bytes:
    kind = os.lstat(file).st_mode
    if not stat.S_ISREG(kind):
        what = "a symbolic link" if stat.S_ISLNK(kind) else "no file"
        raise unreadable(file, f"it is {what}, and a plain file is wanted")
    with open(file, "rb") as stream:
        found = stream.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise unreadable(file, f"it has more than {LARGEST} bytes")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
        raise ValueError(f"an object in it has the key {twice!r} twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"it has {name}, which is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it has {text}, which is too large a number")
    return value


def _safe(name: str) -> str:
    """A name that every file system takes, as far as one can tell."""
    clean = re.sub(r"[^\w.\-\[\]]+", "_", name)
    if len(clean.encode()) > 180:
        clean = f"{clean[:40]}-{sha256(name.encode()).hexdigest()[:12]}"
    return f"{clean}{ENDING}"
