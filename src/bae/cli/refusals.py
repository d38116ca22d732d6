"""The errors of a command that makes no sense for what there is, or none at all."""

from __future__ import annotations

from bae.exceptions import BaeError


class Misuse(BaeError):
    """The command line makes no sense, whatever there is: the exit code is 2, as where an option is
    unknown."""


def refused(message: str, fix: str | None = None, cause: BaseException | None = None) -> BaeError:
    """An error to raise: what cannot be done, and what to do instead."""
    return BaeError(message, code="bae-command-refused", fix=fix, cause=cause)
