"""The error of a command that makes no sense for what there is."""

from __future__ import annotations

from bae.exceptions import BaeError


def refused(message: str, fix: str | None = None, cause: BaseException | None = None) -> BaeError:
    """An error to raise: what cannot be done, and what to do instead."""
    return BaeError(message, code="bae-command-refused", fix=fix, cause=cause)
