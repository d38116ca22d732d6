"""The inbox: all questions to people, of runs and of teams."""

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

_OF_RUN: Final = 20
"""How many questions of one run the inbox lists."""
_KEPT: Final = 500
"""For how many runs questions are cached. A page asks often, and most runs wait for a long time."""

_Questions = tuple[list[GateView], int]
_cached_questions: WeakKeyDictionary[API, OrderedDict[tuple[str, int], tuple[int, _Questions]]] = (
    WeakKeyDictionary()
)
"""The questions by run and cut, with the change number of the run when they were read."""


class InboxQuery(Form):
    """Questions that are newer than the time `after`, the `next` of the page before."""

    after: float | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    cut: ListCut = SHORT


async def show_inbox(call: ApiCall) -> InboxPage:
    """All open questions, the oldest first."""
    api, query = call.api, call.query
    waiting: list[tuple[float, str, RunInfo | GateView]] = []
    async for info in api.journal.every_run(status="waiting", metadata=api.only(call.user)):
        is_open = any(not gate.answered for gate in info.waiting)
        is_open = is_open and info.graph not in api.asked_elsewhere
        if is_open and api.may_see(call.user, info):
            waiting.append((info.updated, info.run_id, info))
    for source in api.inbox_sources:
        waiting += [(each.since, each.gate, each) for each in await source(call)]
    page = InboxPage(gates=[])
    gates_of_page, size = page.gates, 0
    for since, _, each in sorted(waiting, key=lambda entry: entry[:2]):
        if query.after is not None and since <= query.after:
            continue
        is_full = len(gates_of_page) >= query.limit or size > views.PAGE_SIZE
        if is_full and since > gates_of_page[-1].since:
            page.next = gates_of_page[-1].since
            break
        if isinstance(each, GateView):
            gates_of_page.append(each)
            continue
        try:
            questions, total = await _questions_of(call, each)
        except JournalError:
            continue  # the run is deleted, or damaged, which /runs shows
        gates_of_page += questions
        size += sum(size_of(gate.context.values()) for gate in questions)
        if total > len(questions):
            page.more[each.run_id] = total - len(questions)
    return page


async def _questions_of(call: ApiCall, info: RunInfo) -> _Questions:
    """The first questions of a run, and the number of all its questions."""
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
    return stored.info.change, view_gates(call, stored, gates, 0, _OF_RUN)


ENDPOINTS: Final = (
    get_row(
        "/inbox", "List all open questions, the oldest first.", show_inbox, InboxPage, InboxQuery
    ),
)
