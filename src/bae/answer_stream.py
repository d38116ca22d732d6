"""`AnswerStream`: the answers to one question of a run as they arrive. It writes the text of each
field as it grows, in batches, and reports which text is void."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from threading import get_ident
from time import time
from typing import TYPE_CHECKING, Final, TypeVar

from bae.answer_form import AnswerForm, ArrivingAnswer, FieldPart
from bae.place import Place
from bae.plan import plan_of
from bae.records import AnswerBegan, FieldText, TextVoided, Thinking
from bae.secrets import secret_fields
from bae.unicode import readable
from bae.usage import (
    Asking,
    Attempt,
    Discard,
    Restart,
    Thought,
    meter_in_force,
    text_is_followed,
)

if TYPE_CHECKING:
    from bae.node import Node
    from bae.records import Asker
    from bae.run import Run
    from bae.usage import CallEvent

T = TypeVar("T")

BATCH: Final = 0.05
"""For how many seconds text is collected before it is written."""


class AnswerStream:
    """Takes the events of a question, from any thread, passes them on, and writes the text of the
    answers.

    `where` is the graph and the step of the places of the answers. Text that an earlier question
    has left there is void: a function, or a graph, may be called again.
    """

    __slots__ = (
        "_arriving",
        "_asker",
        "_attempt",
        "_began",
        "_closed",
        "_ended",
        "_form",
        "_half",
        "_hidden",
        "_judged",
        "_loop",
        "_pieces",
        "_run",
        "_step",
        "_tell",
        "_texts",
        "_thinking",
        "_thoughts",
        "_thread",
        "_timer",
        "_where",
    )

    def __init__(
        self,
        run: Run,
        asker: Asker,
        step: int,
        where: tuple[str, int],
        form: AnswerForm,
    ) -> None:
        self._run, self._asker, self._step, self._where = run, asker, step, where
        self._form = form
        self._tell: Callable[[CallEvent], None] | None = None
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._hidden: dict[type, frozenset[str]] = {}
        self._attempt = 0
        self._began = self._ended = self._closed = False
        self._arriving = ArrivingAnswer(form)
        self._pieces: list[str] = []
        self._thoughts: list[str] = []
        self._half = ""
        """The first half of a character, whose second half is in the next piece."""
        self._timer: asyncio.TimerHandle | None = None
        self._judged: tuple[AnswerForm, str] | None = None
        """The last answer, if it was wrong: its fields that are not asked for again count."""
        self._thinking: Place | None = None
        """The place of the thinking of the last answer."""
        self._texts: dict[Place, str] = {}
        """The text of each place that is not void."""
        self._void(run.notes.streamed.pop(where, ()))

    async def follow(self, asking: Awaitable[T]) -> T:
        """Wait for the answer to the question, and take its events meanwhile. If it fails, all of
        its text is void."""
        report, self._tell = meter_in_force.get() or (_ignore, None)
        meter = meter_in_force.set((report, self._hear))
        followed = text_is_followed.set(True)
        try:
            answer = await asking
        except BaseException:
            self._drop()
            self._void([*self._texts])
            raise
        finally:
            self._closed = True
            text_is_followed.reset(followed)
            meter_in_force.reset(meter)
        self._flush()
        if self._texts:
            self._run.notes.streamed[self._where] = [*self._texts]
        return answer

    def _hear(self, event: CallEvent) -> None:
        if get_ident() == self._thread:
            self._take(event)
        else:
            self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: CallEvent) -> None:
        if not self._closed:
            match event:
                case str():
                    self._collect(self._pieces, event)
                case Thought(text):
                    if not self._hides_thinking():
                        self._collect(self._thoughts, text)
                case Asking(form):
                    self._ask(form())
                case Discard():
                    self._discard()
                case Restart():
                    self._thoughts.clear()
                    self._discard()
                    self._void_thinking()
                case Attempt(answer=text, verdict=verdict):
                    self._flush()
                    self._ended = True
                    if verdict == "valid":
                        self._settle(self._form, text)
                    else:
                        self._judged = self._form, text
        if self._tell is not None:
            self._tell(event)

    # Text that arrives.

    def _collect(self, pieces: list[str], piece: str) -> None:
        if not piece:
            return
        if self._ended:  # an LM of the caller asks again by itself
            self._ask(self._form)
        if not self._began:
            self._began = True
            self._attempt = self._attempt or 1
            self._run.writer.write(AnswerBegan(*self._at(), self._asker, self._attempt))
        pieces.append(piece)
        if self._timer is None:
            self._timer = self._loop.call_later(BATCH, self._flush)

    def _flush(self) -> None:
        """Write the collected text."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thoughts:
            delta = readable("".join(self._thoughts), 0)
            self._thoughts.clear()
            self._think(delta)
        if not self._pieces:
            return
        text = self._half + "".join(self._pieces)
        self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        self._pieces.clear()
        for part in self._arriving.feed(readable(text.removesuffix(self._half), 0)):
            self._add(part)
        if self._arriving.broken:
            self._void(self._asked_places(self._form))

    def _think(self, delta: str) -> None:
        place = self._thinking = self._thinking or self._place_of_thinking()
        self._texts.setdefault(place, "")
        self._run.writer.write(Thinking(*self._at(), self._asker, place, delta, self._attempt))

    def _add(self, part: FieldPart) -> None:
        place = self._place(part)
        if place is not None:
            self._texts[place] = self._texts.get(place, "") + part.text
            self._write(place, part.text)

    def _write(self, place: Place, delta: str) -> None:
        self._run.writer.write(FieldText(*self._at(), self._asker, place, delta, self._attempt))

    # Text that counts.

    def _ask(self, form: AnswerForm) -> None:
        """Start an answer of this form. The text of the fields that it answers again is void."""
        self._drop()
        if self._judged is not None:
            before, text = self._judged
            self._settle(before, text, without=form)
        self._void_thinking()
        self._void(self._asked_places(form))
        self._form, self._judged = form, None
        self._begin()

    def _discard(self) -> None:
        """Discard the text of this answer so far: it is not part of the answer."""
        self._pieces.clear()
        self._void(self._asked_places(self._form))
        self._begin()

    def _begin(self) -> None:
        self._arriving = ArrivingAnswer(self._form)
        self._half, self._began, self._ended = "", False, False
        self._attempt += 1

    def _settle(self, form: AnswerForm, text: str, without: AnswerForm | None = None) -> None:
        """Set the text to exactly the strings of a complete answer, `without` the fields of another
        form. Mostly the text is the same already."""
        settled: dict[Place, str] = {}
        for part in form.parts_of(text):
            if without is None or not without.asks_for(part.node.__name__, part.field):
                place = self._place(part)
                if place is not None:
                    settled[place] = part.text
        wrong = [
            place
            for place in self._asked_places(form)
            if place not in settled or not settled[place].startswith(self._texts[place])
        ]
        self._void(wrong)
        self._attempt = self._attempt or 1
        for place, whole in settled.items():
            delta = whole[len(self._texts.get(place, "")) :]
            if delta:
                self._texts[place] = whole
                self._write(place, delta)

    def _asked_places(self, form: AnswerForm) -> list[Place]:
        """The places with text whose fields are in an answer of a form."""
        return [place for place in self._texts if form.asks_for(place.node, place.field)]

    def _void_thinking(self) -> None:
        if self._thinking is not None:
            self._void([self._thinking])
            self._thinking = None

    def _void(self, places: Iterable[Place]) -> None:
        voided = (*places,)
        if voided:
            for place in voided:
                self._texts.pop(place, None)
            self._run.writer.write(TextVoided(*self._at(), self._asker, voided, self._attempt))

    def _drop(self) -> None:
        """Drop the collected text."""
        self._pieces.clear()
        self._thoughts.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Places.

    def _at(self) -> tuple[float, str, int]:
        return time(), self._run.path, self._step

    def _place(self, part: FieldPart) -> Place | None:
        """The place of a string; None if it may not be shown."""
        node = part.node
        if part.field in self._hidden_fields(node):
            return None
        item, within = None, part.within
        if within and isinstance(within[0], int):
            item, within = within[0], within[1:]
        return Place(*self._where, node.__name__, part.field, "", item, within)

    def _hidden_fields(self, node: type[Node]) -> frozenset[str]:
        """The fields of a class that may not be shown."""
        hidden = self._hidden.get(node)
        if hidden is None:
            copies = (self._run.scene.hidden or {}).get(node, ())
            hidden = self._hidden[node] = frozenset((*secret_fields(node), *copies))
        return hidden

    def _hides_thinking(self) -> bool:
        """Whether the LLM writes a field that may not be shown: its thinking may have the value."""
        return any(
            field.name in self._hidden_fields(node)
            for node, _ in self._form.targets.values()
            for field in plan_of(node).plain
        )

    def _place_of_thinking(self) -> Place:
        target = self._form.target
        if target is not None:
            return Place(*self._where, target.__name__)
        return _place_of(self._run, self._asker, self._step)


def _place_of(run: Run, asker: Asker, step: int) -> Place:
    """The place of an asker: a node, or the field of a function."""
    own = step - (asker.kind in ("choice", "body"))
    source = asker.field, asker.parameter, asker.item
    return Place(run.path, own, asker.node.__name__, *source)


def stream_for(run: Run, asker: Asker) -> AnswerStream:
    """The stream of a question of the run itself: to fill a node, or to choose one."""
    form = AnswerForm.of(asker.node) if asker.kind == "fill" else AnswerForm()
    return AnswerStream(run, asker, run.step, (run.path, run.step), form)


def inner_stream_for(
    run: Run, asker: Asker, step: int, number: int, target: type[Node] | None
) -> AnswerStream:
    """The stream of a question that a body or a function asks at a step; `number` counts its
    questions."""
    form = AnswerForm() if target is None else AnswerForm.of(target)
    where = str(_place_of(run, asker, step)), number
    return AnswerStream(run, asker, step, where, form)


def _ignore(_: object) -> None:
    pass
