"""Files that commands write: none is written over unless that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from bae.cli.refusals import refused
from bae.private_files import private


def refuse_existing(*paths: str | Path, force: bool) -> None:
    """Refuse to write where something is already."""
    there = [str(path) for path in map(Path, paths) if path.exists()]
    if there and not force:
        raise refused(
            f"{' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already",
            fix="give another name, or --force to write over it",
        )


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write files, with the folders they stand in. Where one cannot be written, none of those that
    are new is left behind."""
    new = [path for path in files if not path.exists()]
    for path, data in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb", opener=private) as file:
                file.write(data)
        except OSError as error:
            for each in new:
                with suppress(OSError):
                    each.unlink(missing_ok=True)
            raise refused(f"{path} could not be written: {error.strerror}", cause=error) from error
