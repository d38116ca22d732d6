"""What the runs of evaluations are called. `evaluating.py` names them; whoever learns from runs
knows them by it, since cases that were learnt tell nothing any more."""

from __future__ import annotations

import re
from os import urandom
from time import gmtime, strftime
from typing import Final


def new_stamp() -> str:
    """What the ids of one evaluation have in common, and no other's have."""
    return f"{strftime('%Y%m%d-%H%M%S', gmtime())}-{urandom(3).hex()}"


def eval_run_id(stamp: str, number: int) -> str:
    """The id of a run of an evaluation."""
    return f"eval-{stamp}-{number}"


def is_eval_run(run_id: str) -> bool:
    """Whether a run is one of an evaluation: one that somebody has called `eval-monday` is none."""
    return _FORM.fullmatch(run_id) is not None


_FORM: Final = re.compile(r"eval-\d{8}-\d{6}-[0-9a-f]{6}-\d+")
