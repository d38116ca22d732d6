"""Find and read the earlier turns of a thread. Each run names the run of the turn before it. Turns
are read as texts, without the code of their runs."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from bae.exceptions import JournalError
from bae.files import placeholders_in, with_placeholders
from bae.graph_plan import plan_of_graph
from bae.journal.decoder import off_loop, read_history
from bae.journal.shape import Json
from bae.journal.store import Journal
from bae.journal.stored_runs import StoredRun
from bae.journal.why import Search
from bae.plan import plan_of
from bae.secrets import MASK, secret_fields
from bae.tools import ToolCall
from bae.turns import Messages, Turn

if TYPE_CHECKING:
    from bae.graph import Graph
    from bae.work import Step

WITHHELD: Final = "[withheld]"
"""The replacement for a text that the journal does not have."""
_TURNS_KEPT: Final = 1000
"""How many turns are kept in memory for one graph and journal."""


async def begin_turn(
    journal: Journal, graph: Graph[Any, Any], thread: str, run_id: str
) -> tuple[str, int, Messages | None]:
    """Return what a new turn of a thread follows: the run of the previous turn, the number of
    earlier turns, and the turns that the nodes of the graph may show. For the first turn, the run
    is empty."""
    ended = await journal.runs(thread=thread, status="ended", limit=2)
    before = next((info.run_id for info in ended if info.run_id != run_id), "")
    number = 0
    if before:
        number = (await get_turn(journal, graph, before))[2] + 1
    return before, number, await earlier_turns(journal, graph, thread, before, number)


async def turns_of(
    journal: Journal, graph: Graph[Any, Any], stored: StoredRun, *, strict: bool = True
) -> Messages | None:
    """Return the earlier turns of a stored run, as far back as its nodes have shown or may show
    them. Returns None if the run belongs to no thread, or if no node shows turns. With `strict`,
    raises `bae-thread-turn` if a turn that a node has shown is missing."""
    if not plan_of_graph(graph).turns_read:
        return None
    history = await off_loop(len(stored.lines), read_history, stored)
    turn = history.turn
    if turn is None:
        return None
    shown_turns = [source.turns for step in history.steps() for source in step.sources.values()]
    needed = max((turns.count for turns in shown_turns if turns is not None), default=0)
    thread = stored.info.thread or ""
    return await earlier_turns(
        journal, graph, thread, turn.previous, turn.number, needed=needed if strict else 0
    )


async def earlier_turns(
    journal: Journal,
    graph: Graph[Any, Any],
    thread: str,
    previous: str,
    number: int,
    *,
    needed: int = 0,
) -> Messages | None:
    """Return the turns up to the run `previous`, as many as the nodes of a graph may show. None if
    no node shows turns. `number` is the number of turns up to that run. Raises `bae-thread-turn` if
    one of the newest `needed` turns is missing."""
    if not plan_of_graph(graph).turns_read:
        return None
    turn_count = max(min(plan_of_graph(graph).turns_read, number), needed)
    turns: list[Turn] = []
    run_id = previous
    while run_id and len(turns) < turn_count:
        try:
            turn, before, _ = await get_turn(journal, graph, run_id)
        except JournalError as error:
            if error.code != "bae-run-unknown":
                raise
            if len(turns) < needed:
                raise JournalError(
                    f"an earlier turn of the thread {thread!r} is missing: the journal has no run "
                    f"{run_id}, and this run has shown it to a model",
                    run_id=run_id,
                    code="bae-thread-turn",
                    cause=error,
                    fix="load the run from a backup; or cancel this turn, and start another",
                ) from error
            break
        turns.append(turn)
        run_id = before
    return Messages(turns[::-1], thread, max(0, number - len(turns)))


async def get_turn(
    journal: Journal, graph: Graph[Any, Any], run_id: str, change: int | None = None
) -> tuple[Turn, str, int]:
    """Return a finished turn, the run of the turn before it, and the number of turns before it.

    Turns are cached. A cached turn is read again only if its run has changed since, for example by
    a redaction. A caller that has read the run's entry passes the entry's `change`.
    """
    cache = _caches.setdefault(graph, WeakKeyDictionary()).setdefault(journal, OrderedDict())
    change = (await journal.info(run_id)).change if change is None else change
    turn = cache.get(run_id)
    if turn is None or turn[0] != change:
        stored = await journal.read_texts(run_id)
        count, secrets = len(stored.lines), journal.secrets
        result = await off_loop(count, read_turn, stored, graph, secrets)
        turn = cache[run_id] = stored.info.change, result
        while len(cache) > _TURNS_KEPT:
            cache.popitem(last=False)
    cache.move_to_end(run_id)
    return turn[1]


_Cache = OrderedDict[str, tuple[int, tuple[Turn, str, int]]]
_caches: WeakKeyDictionary[Graph[Any, Any], WeakKeyDictionary[Journal, _Cache]] = (
    WeakKeyDictionary()
)
"""The turns that were read last, each with the `change` of its run. The keys are the graph, the
journal and the id of the run."""


async def read_earlier_runs(journal: Journal, stored: StoredRun) -> list[StoredRun]:
    """Return the runs of the earlier turns that a run has shown, the oldest first. A replay with
    another journal needs these runs."""
    history = await off_loop(len(stored.lines), read_history, stored)
    shown_turns = [source.turns for step in history.steps() for source in step.sources.values()]
    needed = max((turns.count for turns in shown_turns if turns is not None), default=0)
    runs: list[StoredRun] = []
    run_id = "" if history.turn is None else history.turn.previous
    while run_id and len(runs) < needed:
        runs.append(await journal.read(run_id))
        turn = (await off_loop(len(runs[-1].lines), read_history, runs[-1])).turn
        run_id = "" if turn is None else turn.previous
    return runs[::-1]


# Reading a turn


def read_turn(
    stored: StoredRun, graph: Graph[Any, Any], has_secrets: bool
) -> tuple[Turn, str, int]:
    """Read a stored run as a turn. Returns the turn, the run of the turn before it, and the number
    of turns before it."""
    history = read_history(stored)
    search, trace = Search(stored, history), [step for step in history.run.trace if step.name]
    classes = {cls.__name__: cls for cls in reversed(graph.nodes)}
    reader = _TextReader(search, classes, has_secrets)
    user = reader.text(trace[0]) if trace else ""
    is_over = stored.info.status == "ended"
    reply = reader.text(trace[-1]) if is_over else ""
    calls = reader.calls(trace) if plan_of_graph(graph).turn_calls_read else ()
    turn = Turn(user, reply, stored.info.run_id, stored.info.started, calls)
    if history.turn is None:
        return turn, "", 0
    return turn, history.turn.previous, history.turn.number


class _TextReader:
    """Reads the texts of nodes without their code. A field that today's classes hide from models is
    masked. A text that the journal does not have is `WITHHELD`."""

    def __init__(self, search: Search, classes: Mapping[str, Any], has_secrets: bool) -> None:
        self._search, self._classes, self._has_secrets = search, classes, has_secrets

    def text(self, step: Step) -> str:
        """Return the value of a node's text field. Without a text field, return the node as
        JSON."""
        cls = self._classes.get(step.name)
        if cls is None and self._has_secrets:
            return f"[{step.name}]"  # its class is unknown, and so are its secrets
        names, text_field = self._search.text_fields(step)
        if cls is not None and (today := plan_of(cls).text) in names:
            text_field = today
        values = {name: self._value(step, name) for name in names}
        values = {name: value for name, value in values.items() if value is not _MISSING}
        if not text_field or text_field not in names:
            return _json(with_placeholders(values))
        value = values.pop(text_field, "")
        text = value if isinstance(value, str) else _json(with_placeholders(value))
        # Placeholders for files: a model reads that there was an image, and does not get it again.
        return "\n".join([*placeholders_in([*values.values()]), text])

    def _value(self, step: Step, name: str) -> Any:
        cls = self._classes.get(step.name)
        if cls is not None and name in cls.__pydantic_fields__ and name in secret_fields(cls):
            return MASK if self._has_secrets else WITHHELD
        provenance = self._search.at(step.place._replace(field=name))
        if provenance.kept == "value" and provenance.state == "there":
            return provenance.value
        return WITHHELD if provenance.kept == "withheld" else _MISSING

    def calls(self, trace: list[Step]) -> tuple[ToolCall, ...]:
        """Return the finished tool calls of a run, in order."""
        calls: list[ToolCall] = []
        for step in trace:
            for loop in step.loops.values():
                for call in loop.calls.values():
                    if call.state == "done":
                        arguments = {} if self._has_secrets else call.arguments
                        tool_call = ToolCall(id=call.id, name=call.name, arguments=arguments)
                        outcome: Json = {"result": call.result, "error": call.tool_error}
                        calls.append(tool_call.model_copy(update=outcome))
        return tuple(calls)


_MISSING: Final = object()


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
