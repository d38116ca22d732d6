"""The inbox: all open questions of runs and teams to people."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Annotated, Final
from weakref import WeakKeyDictionary

from pydantic import Field

from bae.exceptions import JournalError
from bae.journal.gates import open_gates
from bae.journal.stored_runs import RunInfo, StoredRun
from bae.serve import views
from bae.serve.endpoints import ApiCall, Form, ListCut, get_row
from bae.serve.gates import view_gates
from bae.serve.views import SHORT, GateView, InboxPage, size_of

if TYPE_CHECKING:
    from bae.serve.api import API

_MOST_OF_RUN: Final = 20
"""The maximum number of questions of one run in the inbox."""
_KEPT: Final = 500
"""The maximum number of runs whose questions are cached. A page asks often, and most runs wait for
a long time."""

_Questions = tuple[list[GateView], int]
_cached_questions: WeakKeyDictionary[API, OrderedDict[tuple[str, int], tuple[int, _Questions]]] = (
    WeakKeyDictionary()
)
"""The cached questions of each API's runs. The key is the run's id and the `cut` of the query. The
value has the `change` of the run at the time when the questions were read. If the run has another
`change` now, its questions are read again."""


class InboxQuery(Form):
    """The questions to list. `after` is the `next` of the previous page: only questions that are
    newer than this time are listed."""

    after: float | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    cut: ListCut = SHORT


async def show_inbox(call: ApiCall) -> InboxPage:
    """List all open questions, the oldest first."""
    api, query = call.api, call.query
    waiting: list[tuple[float, str, RunInfo | GateView]] = []
    async for info in api.journal.every_run(status="waiting", metadata=api.only(call.user)):
        is_open = any(not gate.answered for gate in info.waiting)
        is_open = is_open and info.graph not in api.hidden_graphs
        if is_open and api.may_see(call.user, info):
            waiting.append((info.updated, info.run_id, info))
    for source in api.inbox_sources:
        waiting += [(gate.since, gate.gate, gate) for gate in await source(call)]
    page = InboxPage(gates=[])
    gates_of_page, size = page.gates, 0
    for since, _, asker in sorted(waiting, key=lambda entry: entry[:2]):
        if query.after is not None and since <= query.after:
            continue
        is_full = len(gates_of_page) >= query.limit or size > views.PAGE_SIZE
        if is_full and since > gates_of_page[-1].since:
            page.next = gates_of_page[-1].since
            break
        if isinstance(asker, GateView):
            gates_of_page.append(asker)
            continue
        try:
            questions, total = await _questions_of(call, asker)
        except JournalError:
            continue  # the run was deleted, or is damaged: /runs shows a damaged run
        gates_of_page += questions
        size += sum(size_of(gate.context.values()) for gate in questions)
        if total > len(questions):
            page.more[asker.run_id] = total - len(questions)
    return page


async def _questions_of(call: ApiCall, info: RunInfo) -> _Questions:
    """Return the first questions of a run, and the number of all its questions."""
    cache = _cached_questions.setdefault(call.api, OrderedDict())
    key = info.run_id, call.query.cut
    entry = cache.get(key)
    if entry is None or entry[0] != info.change:
        entry = cache[key] = await call.api.fold_run(call.user, info.run_id, _read_questions, call)
        while len(cache) > _KEPT:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return entry[1]


def _read_questions(stored: StoredRun, call: ApiCall) -> tuple[int, _Questions]:
    gates = [gate for gate in open_gates(stored) if gate.address not in stored.answers]
    return stored.info.change, view_gates(call, stored, gates, 0, _MOST_OF_RUN)


ENDPOINTS: Final = (
    get_row(
        "/inbox", "List all open questions, the oldest first.", show_inbox, InboxPage, InboxQuery
    ),
)
