"""Finding the field that somebody means by `Outfit.mood` or `2:Report.summaries[3]/1:Summary.text`,
in the lines of a run; what is not there is said with what is. `why.py` asks here first."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from bae.exceptions import JournalError
from bae.journal.telling.story import NodeStory, Story, asker_said
from bae.place import ANY_STEP, Place


class Spotted(NamedTuple):
    """A field of a node of a run, found: one of its items, or a parameter behind it, where these
    are said. An empty field is the node as a whole."""

    path: str
    step: int
    node: str
    field: str
    route: str = ""
    item: int | None = None


def address(spot: Spotted) -> str:
    """How a place is written, in full."""
    before = f"{spot.path}/" if spot.path else ""
    item = "" if spot.item is None else f"[{spot.item}]"
    field = f".{spot.field}{spot.route}{item}" if spot.field else ""
    return f"{before}{spot.step}:{spot.node}{field}"


def find(story: Story, place: str, step: int | None) -> Spotted:
    """The place that is meant; `step` is that of the node where the place does not say it."""
    parts = _chain(place)
    if len(parts) <= place.count("/") or any(not part.field for part in parts[:-1]):
        raise _unknown(
            story, f"{place!r} is no place", "write Node.field, as in " + _example(story)
        )
    *around, last = parts
    if step is not None:
        if last.step not in (ANY_STEP, step):
            raise _unknown(story, f"{place!r} is at step {last.step}, and step={step} is another")
        last = last._replace(step=step)
    path = _path(story, around, last, place)
    node = _node(story, path, last, place)
    if last.field and last.field not in story.fields(path, last.node):
        fields = story.fields(path, last.node)
        close = get_close_matches(last.field, fields, 1)
        hint = f"; did you mean {last.node}.{close[0]}?" if close else ""
        raise _unknown(
            story,
            f"{last.node} has no field {last.field}{hint}",
            f"it has {', '.join(fields) or 'none'}",
        )
    return Spotted(path, node.step, last.node, last.field, last.parameter, last.item)


def not_yet(story: Story, spot: Spotted) -> JournalError:
    """The error of a value that is not there, or not there any more."""
    key = spot.path, spot.step, spot.node, spot.field, spot.route
    whole = address(spot._replace(item=None))
    gate = story.gates.get(key)
    done = story.items.get(key, {})
    node = story.nodes[spot.path, spot.step]
    if spot.item is not None and (done or key in story.begun):
        said = f"{len(done)} of its items are done" if done else "none of its items is done"
        said = f"item {spot.item} is not done; {said}"
    elif gate is not None:
        said = f"it waits for a person, who is asked {gate.data['question']!r}"
    elif done:
        said = f"{len(done)} of its items are done, and not all"
    elif key in story.begun:
        said = f"{story.begun[key].data['by']} had begun and has not ended as far as the lines go"
    elif _answers(story, spot):
        count, verdict = _answers(story, spot)[-1]
        said = f"the LM was filling {spot.node}, and its answer {count} was {verdict}"
    elif not node.whole:
        said = f"the run has not come as far as a whole {spot.node}"
    else:
        said = "no line says where it came from"
    return JournalError(
        f"{whole} has no value in the run {story.run_id}: {said}",
        run_id=story.run_id,
        code="bae-why-pending",
        fix="look again when the run has gone on: graph.resume(…), or graph.answer(…) at a gate",
    )


def _answers(story: Story, spot: Spotted) -> list[tuple[int, str]]:
    return [
        (data["number"], data["verdict"])
        for line, data in story.entries
        if line.kind == "AnswerJudged"
        and (line.path, line.step) == (spot.path, spot.step)
        and asker_said(data) == f"filling {spot.node}"
    ]


def _path(story: Story, around: Sequence[Place], last: Place, place: str) -> str:
    """The newest path that fits what is said of the graphs around the place."""
    if not around:
        return _home(story, last)
    for path in reversed(story.paths()):
        parts = _chain(path)
        if len(parts) == len(around) and all(map(_fits, around, parts)):
            return path
    inner = [path for path in story.paths() if path]
    close = get_close_matches(place.rpartition("/")[0], inner, 3, 0.3)
    raise _unknown(
        story,
        f"no graph ran at {place.rpartition('/')[0]}",
        f"graphs ran at {_some(close or inner)}" if inner else "no graph ran inside it",
    )


def _home(story: Story, last: Place) -> str:
    """Where a class that is named alone was met: in the run itself, or in the one graph inside it
    that has it."""
    if any(node.name == last.node for node in story.trace("")):
        return ""
    inner = [p for p in story.paths() if p and any(n.name == last.node for n in story.trace(p))]
    if len(inner) > 1:
        raise _unknown(
            story,
            f"{last.node} was met in {len(inner)} graphs inside the run",
            f"say in which: {inner[-1]}/{last.node}.{last.field}; they are {_some(inner)}",
        )
    return inner[0] if inner else ""


def _node(story: Story, path: str, last: Place, place: str) -> NodeStory:
    trace = story.trace(path)
    met = [node for node in trace if node.name == last.node]
    found = [node for node in met if last.step in (ANY_STEP, node.step)]
    if found:
        return found[-1]
    if met:
        steps = ", ".join(str(node.step) for node in met)
        raise _unknown(story, f"{last.node} is not at step {last.step}", f"it is at step {steps}")
    names = list(dict.fromkeys(node.name for node in trace))
    close = get_close_matches(last.node, names, 1)
    known = story.shape.class_at(path, last.node) is not None
    said = f"the run has not been at {last.node}" if known else f"there is no {last.node}"
    hint = f"; did you mean {close[0]}?" if close else ""
    listed = "; ".join(f"{node.step}:{_with_fields(story, path, node)}" for node in trace[-12:])
    raise _unknown(
        story,
        f"{said}{hint}",
        f"its nodes are {listed}" if listed else "it has no node yet",
    )


def _chain(text: str) -> list[Place]:
    """A place and those of the fields around it, the outermost first."""
    found: list[Place] = []
    at = Place.parse(text)
    while at is not None:
        found.insert(0, at)
        at = at.outer
    return found


def _fits(said: Place, found: Place) -> bool:
    if said.step not in (ANY_STEP, found.step) or said.item not in (None, found.item):
        return False
    return said[2:5] == found[2:5]


def _with_fields(story: Story, path: str, node: NodeStory) -> str:
    return f"{node.name}({', '.join(story.fields(path, node.name))})"


def _example(story: Story) -> str:
    for node in story.trace(""):
        fields = story.fields("", node.name)
        if fields:
            return f"{node.name}.{fields[0]}"
    return "Outfit.mood"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _unknown(story: Story, what: str, fix: str = "") -> JournalError:
    return JournalError(
        f"{what}, in the run {story.run_id}",
        run_id=story.run_id,
        code="bae-why-unknown",
        fix=fix or None,
    )
