"""Endpoints that list and count runs."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field
from pydantic_core import from_json

from bae.exceptions import JournalError
from bae.journal.store import Journal
from bae.journal.stored_runs import Line, Listed, RunInfo
from bae.records import RunForked
from bae.serve.endpoints import ApiCall, Form, get_row
from bae.serve.views import RunRow, row_of

_PAGE: Final = 200
"""The number of runs that one query reads from a journal."""
_COUNTED: Final = 20_000
"""The maximum number of runs that are counted."""
_PREVIEW: Final = 120
"""The maximum length of a preview."""
_FORK: Final = 500
"""The maximum number of a fork's records that are read to find the changed fields."""
_KEPT: Final = 20_000
"""The maximum number of previews in memory."""


class RunPage(BaseModel):
    """A page of runs, the newest first.

    - `next`: give this id as `before` to get the next page; null on the last page.
    - `change`: give this number as `after` to the feed `runs` to get all later changes.
    """

    runs: list[RunRow]
    next: str | None = None
    change: int = 0


class RunCounts(BaseModel):
    """The number of runs, by status and by graph. If `is_all` is false, only the newest runs are
    counted, because the journal has too many runs."""

    total: int
    statuses: dict[Listed, int]
    graphs: dict[str, int]
    is_all: bool


class CountQuery(Form):
    """The runs to count.

    - `graph`, `thread`: only runs of this graph, and of this thread.
    - `q`: only runs with this text in their id, graph, error, thread, metadata, last node or
      preview.
    - `meta.KEY=VALUE`: only runs whose metadata has exactly the text VALUE as KEY.
    - `since`: only runs that began at this time or later, in seconds since 1970.
    """

    graph: str | None = None
    thread: str | None = None
    q: Annotated[str, Field(max_length=200)] | None = None
    meta: dict[str, str] = Field(default_factory=dict[str, str])
    since: float | None = None


class ListQuery(CountQuery):
    """The runs to list.

    - `graph`, `thread`: only runs of this graph, and of this thread.
    - `q`: only runs with this text in their id, graph, error, thread, metadata, last node or
      preview.
    - `meta.KEY=VALUE`: only runs whose metadata has exactly the text VALUE as KEY.
    - `since`: only runs that began at this time or later, in seconds since 1970.
    - `before`: the `next` of the previous page.
    """

    status: Listed | None = None
    before: str | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class Previews:
    """The first words of runs' starts. The first records of a run have these words. If a run is
    replaced, its `change` is another number, so the preview is read again."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._previews: OrderedDict[tuple[str, int], str] = OrderedDict()

    async def of(self, info: RunInfo) -> str:
        """Return the first words of a run's start, or "" if the run cannot be read."""
        key = info.run_id, info.change
        preview = self._previews.get(key)
        if preview is None:
            limit = 1 if info.parent is None else _FORK
            try:
                lines = (await self._journal.lines(info.run_id, limit=limit)).lines
            except JournalError:  # the run was deleted a moment ago, or is damaged
                return ""
            preview = self._previews[key] = preview_of(lines)
            if len(self._previews) > _KEPT:
                self._previews.popitem(last=False)
        return preview


def preview_of(lines: Sequence[Line]) -> str:
    """Return the first words of a run's start.

    The words are the texts of the start node. Without a text, they are the names and values of the
    start node's other plain fields. For a fork, they are the step, and the names and values of the
    changed fields. The records have no secrets, so the words have no secrets.
    """
    if not lines:
        return ""
    forked = next((line for line in reversed(lines) if line.kind == RunForked.__name__), None)
    line = forked or lines[0]
    try:
        data: dict[str, Any] = from_json(line.data)
        fields: dict[str, Any] = data["node"]["fields"]
        if forked is not None:
            fields = {name: fields[name] for name in data["changed"] if name in fields}
        parts = [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in fields.items()
            if isinstance(value, str | int | float)
        ]
        texts = [value for value in fields.values() if isinstance(value, str) and value.strip()]
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""
    if forked is not None:
        preview = (
            f"fork at {forked.step}: {' · '.join(parts)}" if parts else f"fork at {forked.step}"
        )
    else:
        preview = " · ".join(texts or parts)
    preview = " ".join(preview[: 4 * _PREVIEW].split())
    return preview if len(preview) <= _PREVIEW else f"{preview[: _PREVIEW - 1]}…"


async def list_runs(call: ApiCall) -> RunPage:
    query, api = call.query, call.api
    if query.before is not None:
        await api.info(call.user, query.before)
    change = await api.journal.last_change()
    rows: list[RunRow] = []
    has_more = False
    async for info in _find_runs(call, query.status, query.before):
        if len(rows) == query.limit:
            has_more = True
            break
        rows.append(row_of(info, await api.previews.of(info)))
    return RunPage(runs=rows, next=rows[-1].run_id if has_more else None, change=change)


async def count_runs(call: ApiCall) -> RunCounts:
    statuses: Counter[Listed] = Counter()
    graphs: Counter[str] = Counter()
    async for info in _find_runs(call, None, None):
        if statuses.total() == _COUNTED:
            return RunCounts(total=_COUNTED, statuses=statuses, graphs=graphs, is_all=False)
        statuses[info.standing()] += 1
        graphs[info.graph] += 1
    return RunCounts(total=statuses.total(), statuses=statuses, graphs=graphs, is_all=True)


async def _find_runs(
    call: ApiCall, status: Listed | None, before: str | None
) -> AsyncGenerator[RunInfo]:
    """Yield the runs that match a query and that the user may see, the newest first."""
    query, api, has_more = call.query, call.api, True
    while has_more:
        page = await api.journal.runs(
            status=status,
            graph=api.stored_name(query.graph),
            thread=query.thread,
            metadata={**query.meta, **(api.only(call.user) or {})},
            limit=_PAGE,
            before=before,
        )
        has_more = len(page) == _PAGE
        for info in page:
            before = info.run_id
            if query.since is not None and info.started < query.since:
                return
            if not api.may_see(call.user, info) or status not in (None, info.standing()):
                continue
            if await _matches(query.q, info, api.previews):
                yield info


async def _matches(q: str | None, info: RunInfo, previews: Previews) -> bool:
    if not q:
        return True
    searched_text = q.casefold()
    node = "" if info.summary is None else info.summary.node
    labels = (str(value) for value in info.metadata.values())
    texts = (info.run_id, info.graph, info.error, node, info.thread or "", *labels)
    if any(searched_text in text.casefold() for text in texts):
        return True
    return searched_text in (await previews.of(info)).casefold()


ENDPOINTS: Final = (
    get_row("/runs", "List runs, the newest first.", list_runs, RunPage, ListQuery),
    get_row("/run-counts", "Count runs by status and graph.", count_runs, RunCounts, CountQuery),
)
