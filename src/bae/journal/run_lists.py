"""The filters and pages of `Journal.runs`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, get_args

from bae.exceptions import JournalError
from bae.journal.stored_runs import Listed, RunInfo, Scalar


def check_status(status: str | None, known: Sequence[str] = get_args(Listed)) -> None:
    """Raise a ValueError if `status` is not one of `known`. By default, these are the statuses by
    which runs can be listed."""
    if status is not None and status not in known:
        raise ValueError(f"status={status!r}: give one of {', '.join(known)}")


def check_page(status: str | None, limit: int, before: str | None, after: int | None) -> None:
    """Raise a ValueError for invalid arguments of `Journal.runs`."""
    check_status(status)
    if limit < 0:
        raise ValueError(f"runs(limit={limit}): give 0 or more")
    if before is not None and after is not None:
        raise ValueError("runs(before=…, after=…): give one of them; they order runs differently")


def list_runs(
    infos: Sequence[RunInfo],
    *,
    status: Listed | None = None,
    graph: str | None = None,
    thread: str | None = None,
    metadata: Mapping[str, Scalar] | None = None,
    limit: int = 50,
    before: str | None = None,
    after: int | None = None,
) -> list[RunInfo]:
    """Return the result of `Journal.runs` for a store that has the entries of all its runs in
    memory. `infos` has these entries, the newest first."""
    check_page(status, limit, before, after)
    labels = labels_of(metadata or {})
    if after is not None:
        changed = [info for info in infos if info.change > after]
        infos = sorted(changed, key=lambda info: info.change)
    if before is not None:
        ids = [info.run_id for info in infos]
        if before not in ids:
            raise JournalError(
                f"there is no run {before!r} to continue after",
                code="bae-run-unknown",
                run_id=before,
                fix="list the runs again: it was deleted, or is in another journal",
            )
        infos = infos[ids.index(before) + 1 :]
    entries = (
        info
        for info in infos
        if is_listed(info, status)
        and graph in (None, info.graph)
        and thread in (None, info.thread)
        and (not labels or labels.items() <= labels_of(info.metadata, strict=False).items())
    )
    return list(islice(entries, limit))


def is_listed(info: RunInfo, status: Listed | None) -> bool:
    """Whether a list of runs with this `status` includes a run."""
    if status == "interrupted":
        return info.is_interrupted()
    return status in (None, info.status)


def labels_of(metadata: Mapping[str, Any], *, strict: bool = True) -> dict[str, str]:
    """Return the metadata values by which runs can be found, as JSON: texts, numbers, booleans and
    None. With `strict`, any other value raises a ValueError."""
    labels: dict[str, str] = {}
    for key, value in metadata.items():
        if value is None or isinstance(value, str | int | float):
            labels[key] = json.dumps(value, ensure_ascii=False)
        elif strict:
            raise ValueError(
                f"runs(metadata={{{key!r}: {value!r}}}): find runs by a text, a number, a "
                "boolean or None"
            )
    return labels
