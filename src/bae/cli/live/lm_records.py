"""What the records of choices, fills and the LM calls in them add to the picture of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bae.cli.live.errors import said_of
from bae.cli.live.picture import Asking, Choice
from bae.plan import plan_of
from bae.records import Asker

if TYPE_CHECKING:
    from bae.cli.live.folding import RunPicture
    from bae.records import (
        AnswerJudged,
        AnswerRestarted,
        ChoiceMade,
        ChoiceStarted,
        FillEnded,
        FillStarted,
        LMUsed,
        TextArrived,
    )

STREAMED: Final = 600
"""Characters of a streaming answer that are kept: the last ones."""


def choice_started(picture: RunPicture, record: ChoiceStarted) -> None:
    """The LM is asked where to go on."""
    cls = type(record.node)
    step = picture.step(picture.graph(record), record.step - 1, record.at, cls)
    offered = tuple(map(name_of, record.offered))
    by = str(Asker("choice", cls))
    step.asking = Asking(by, record.at, "choosing", offered)
    step.state = "going"


def choice_made(picture: RunPicture, record: ChoiceMade) -> None:
    """It has chosen."""
    cls = type(record.node)
    step = picture.step(picture.graph(record), record.step - 1, record.at, cls)
    offered = tuple(map(name_of, plan_of(cls).offered))
    step.asking = None
    step.choice = Choice(name_of(record.chosen), offered, record.seconds)
    step.usage += record.usage
    step.state, step.ended = "done", record.at


def fill_started(picture: RunPicture, record: FillStarted) -> None:
    """The LM is asked to fill a node."""
    graph, cls = picture.graph(record), record.target
    picture.leave(graph, record.step - 1, record.at)
    step = picture.step(graph, record.step, record.at, cls)
    step.filled = True
    if plan_of(cls).plain:  # else there is nothing to ask for
        step.asking = Asking(str(Asker("fill", cls)), record.at, "filling")


def fill_ended(picture: RunPicture, record: FillEnded) -> None:
    """It has filled it."""
    step = picture.step(picture.graph(record), record.step, record.at, type(record.node))
    step.filled, step.asking, step.node = True, None, record.node
    step.usage += record.usage
    step.answers, step.filled_in = record.usage.attempts, record.seconds


def judged(picture: RunPicture, record: AnswerJudged) -> None:
    """A model has answered, rightly or not."""
    attempt, asking = record.attempt, _asking(picture, record)
    if asking is None:
        return
    asking.text = asking.retry = ""
    asking.usage += attempt.usage
    asking.answered = attempt.verdict == "valid"
    asking.number = 1 if asking.answered else attempt.number + 1
    asking.complaint = "" if asking.answered else "; ".join(attempt.errors) or attempt.verdict


def text_arrived(picture: RunPicture, record: TextArrived) -> None:
    """A piece of an answer is there."""
    asking = _asking(picture, record)
    if asking is not None:
        asking.retry, asking.answered = "", False
        asking.text = (asking.text + record.text[-STREAMED:])[-STREAMED:]


def restarted(picture: RunPicture, record: AnswerRestarted) -> None:
    """A request failed and is sent again."""
    asking = _asking(picture, record)
    if asking is not None:
        asking.text, asking.answered = "", False
        asking.retry = said_of(record.error)
        asking.retry_at = record.at + record.wait


def used(picture: RunPicture, record: LMUsed) -> None:
    """What calls in bodies and dependencies used, and those that failed."""
    graph = picture.graph(record)
    step = graph.steps.get(record.step)
    source = None if step is None else step.source(record.asker)
    if source is not None:
        source.usage += record.usage
        source.asking = None
        return
    body = graph.steps.get(record.step - 1)
    if body is not None and str(record.asker) in (f"{body.name}.__call__", _by(body.asking)):
        step = body
    if step is not None:
        step.usage += record.usage
        step.asking = None


def name_of(cls: type) -> str:
    """The name of what an LM may choose."""
    return "the end" if cls is type(None) else cls.__name__


def _asking(
    picture: RunPicture, record: AnswerJudged | AnswerRestarted | TextArrived
) -> Asking | None:
    """What the LM is at work for, by who asks it."""
    graph, by = picture.graph(record), str(record.asker)
    for number in (record.step, record.step - 1):
        step = graph.steps.get(number)
        if step is None:
            continue
        if step.asking is not None and step.asking.by == by:
            return step.asking
        source = step.source(record.asker)
        if source is not None:
            if source.kind == "map":  # the answers of several items, all mixed up
                return None
            source.asking = source.asking or Asking(by, record.at)
            return source.asking
        if step.state == "going" and by == f"{step.name}.__call__":
            step.asking = Asking(by, record.at)
            return step.asking
    return None


def _by(asking: Asking | None) -> str:
    return "" if asking is None else asking.by
