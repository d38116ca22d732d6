"""Runs as the JSON that `bae runs list`, `show` and `replay` print with --json. What is here is
what docs/cli.md promises: each key is written down, so that none comes or goes with a class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from bae.exceptions import ReplayError
    from bae.journal.provenance import JudgedAnswer, Provenance
    from bae.journal.replay import Repeated
    from bae.journal.report import NodeReport, RunReport, Span, Work
    from bae.journal.store import ParkedGate, RunInfo
    from bae.usage import Usage


def listed_as_data(info: RunInfo) -> dict[str, Any]:
    """A run as `bae runs list --json` has it."""
    return with_times(
        {
            "run_id": info.run_id,
            "graph": info.graph,
            "status": info.standing(),
            "started": info.started,
            "updated": info.updated,
            "seconds": info.lasted(),
            "parent": info.parent,
            "owner": info.owner,
            "lease_until": info.lease_until,
            "shape": info.shape,
            "waiting": [_gate(gate) for gate in info.waiting],
            "error": info.error or None,
        }
    )


def run_as_data(told: RunReport) -> dict[str, Any]:
    """The story and the timeline of a run in one object."""
    info, timeline = told.info, told.timeline
    return with_times(
        {
            "run_id": info.run_id,
            "graph": info.graph,
            "status": timeline.status,
            "started": info.started,
            "updated": info.updated,
            "seconds": told.seconds,
            "seconds_at_work": timeline.seconds,
            "parent": info.parent,
            "owner": info.owner,
            "ended_at": told.ended_at or None,
            "waiting": [_gate(gate) for gate in info.waiting],
            "error": info.error or None,
            "usage": _usage(told.usage),
            "resumed": [{"at": each.at, "changes": each.changes} for each in told.resumed],
            "graphs": [
                {"path": graph.path, "nodes": [_node(node) for node in graph.nodes]}
                for graph in told.graphs
            ],
            "lives": [_span(life) for life in timeline.lives],
            "work": [_work(each) for each in timeline.work],
        }
    )


def with_times(data: Any) -> Any:
    """The same with times as ISO 8601 writes them, which are seconds since 1970 in a journal.
    Values of runs are left as they are, whatever is in them."""
    if isinstance(data, Mapping):
        said = cast("Mapping[str, Any]", data)
        return {
            key: each if key in _VALUES else _time(each) if key in _TIMES else with_times(each)
            for key, each in said.items()
        }
    if isinstance(data, list | tuple):
        return [with_times(each) for each in cast("Sequence[Any]", data)]
    return data


_VALUES: Final = frozenset({"value", "asked", "answer"})
_TIMES: Final = frozenset(
    {"at", "deadline", "end", "lease_until", "marks", "start", "started", "updated"}
)


def _time(each: Any) -> Any:
    from bae.cli.runs.wording import iso

    if isinstance(each, list):
        return [_time(one) for one in cast("list[Any]", each)]
    is_number = isinstance(each, int | float) and not isinstance(each, bool)
    return iso(each) if is_number else with_times(each)


def repeated_as_data(done: Repeated) -> dict[str, Any]:
    """A replay that went the same way."""
    return {
        "run_id": done.run_id,
        "outcome": done.outcome,
        "trace": done.trace,
        "waiting": done.waiting,
        "error": done.error or None,
    }


def diverged_as_data(error: ReplayError) -> dict[str, Any]:
    """A replay that goes another way, with the keys of one that does not and the difference."""
    return {
        "run_id": error.run_id,
        "outcome": "diverged",
        "trace": [type(node).__name__ for node in error.trace],
        "waiting": [],
        "error": f"[{error.code}] {error.message}",
        "path": error.path,
        "diff": error.diff,
        "fix": error.fix,
    }


def _gate(gate: ParkedGate) -> dict[str, Any]:
    return {
        "address": gate.address,
        "place": gate.place,
        "question": gate.question,
        "deadline": gate.deadline,
        "answered": gate.answered,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "calls": usage.calls,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cost": usage.cost,
        "attempts": usage.attempts,
        "seconds": usage.seconds,
        "models": usage.models,
    }


def _node(node: NodeReport) -> dict[str, Any]:
    return {
        "step": node.step,
        "name": node.name,
        "whole": node.whole,
        "chosen_among": [name or None for name in node.chosen_among],
        "filled_in": node.filled_in,
        "usage": _usage(node.usage),
        "forked_from": node.forked_from or None,
        "changed": node.changed,
        "calls": [_call(call) for call in node.calls],
        "fields": [_field(field) for field in node.fields],
    }


def _call(call: JudgedAnswer) -> dict[str, Any]:
    return {
        "by": call.by,
        "verdict": call.verdict,
        "number": call.number,
        "errors": call.errors,
        "usage": _usage(call.usage),
        "asked": call.asked,
        "answer": call.answer,
    }


def _field(field: Provenance) -> dict[str, Any]:
    recalled = field.source == "recall"
    return {
        "name": field.field,
        "state": field.state,
        "source": None if field.state == "absent" else field.source,
        "by": None if recalled else field.by or None,
        "kept": field.kept,
        "value": field.value,
        "origin": field.by if recalled else None,
        "items": len(field.items) if field.source == "map" else None,
        "seconds": field.seconds,
        "before": field.source == "dep" and field.origin is not None,
        "error": field.error or None,
    }


def _span(span: Span) -> dict[str, Any]:
    return {"start": span.start, "end": span.end}


def _work(work: Work) -> dict[str, Any]:
    return {
        "kind": work.kind,
        "place": work.place,
        "name": work.name,
        "start": work.start,
        "end": work.end,
        "seconds": work.seconds,
        "spans": [_span(span) for span in work.spans],
        "outcome": work.outcome,
        "error": work.error or None,
        "note": work.note or None,
        "marks": list(work.marks),
        "usage": _usage(work.usage),
        "inside": [_work(each) for each in work.inside],
    }
