"""The error of cases that cannot be evaluated, with everything that is wrong with them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bae.exceptions import BaeError

MOST: Final = 20
"""How many problems one error lists."""


def refused(
    what: str,
    problems: Sequence[str] = (),
    *,
    cause: BaseException | None = None,
    fix: str = "mend them: nothing has run",
) -> BaeError:
    """The error of cases that do not fit: one line for each problem, the first `MOST` of them."""
    listed = [f"\n  {problem}" for problem in problems[:MOST]]
    if len(problems) > MOST:
        listed.append(f"\n  and more: these are the first {MOST}")
    said = f"{what}:{''.join(listed)}" if listed else what
    return BaeError(said, code="bae-cases-invalid", cause=cause, fix=fix)
