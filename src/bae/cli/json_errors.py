"""With --json stdout has an object whatever happens, that of an error included."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from bae.exceptions import BaeError


@contextmanager
def errors_as_json(wanted: bool) -> Generator[None]:
    """Print an error of the block as the JSON that a run which failed has; it is raised on."""
    try:
        yield
    except BaeError as error:
        if wanted:
            from bae.cli.outcomes import refused_data
            from bae.cli.printing import print_json

            print_json(refused_data(error))
        raise
