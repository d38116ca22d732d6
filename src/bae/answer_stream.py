"""`AnswerStream` records the answers to one question of a run while they arrive. It records the
text of each field in batches. If recorded text does not belong to the final answer, the stream
records that the text is void."""

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
"""How many seconds a stream collects text before it records the text."""


class AnswerStream:
    """Records the text of the answers to one question, and passes the question's events on.

    The events may come from any thread. `where` is the graph and the step of the places that get
    the text. A function or a graph may be called again, and then asks its question again. So text
    that an earlier stream recorded for the same `where` becomes void.
    """

    __slots__ = (
        "_asker",
        "_attempt",
        "_form",
        "_half_character",
        "_has_begun",
        "_has_ended",
        "_hidden",
        "_is_closed",
        "_loop",
        "_parser",
        "_pass_on",
        "_pieces",
        "_run",
        "_step",
        "_texts",
        "_thinking_place",
        "_thoughts",
        "_thread",
        "_timer",
        "_where",
        "_wrong_answer",
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
        self._pass_on: Callable[[CallEvent], None] | None = None
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self._hidden: dict[type, frozenset[str]] = {}
        self._attempt = 0
        self._has_begun = self._has_ended = self._is_closed = False
        self._parser = ArrivingAnswer(form)
        self._pieces: list[str] = []
        self._thoughts: list[str] = []
        self._half_character = ""
        """The first half of a surrogate pair. The second half is in the next piece."""
        self._timer: asyncio.TimerHandle | None = None
        self._wrong_answer: tuple[AnswerForm, str] | None = None
        """The form and the text of the last answer, if the answer was invalid. A field of this
        answer stays valid unless the LLM is asked for the field again."""
        self._thinking_place: Place | None = None
        """The place of the last answer's thinking."""
        self._texts: dict[Place, str] = {}
        """The valid text at each place."""
        self._void_places(run.notes.streamed.pop(where, ()))

    async def follow(self, asking: Awaitable[T]) -> T:
        """Wait for the answer to the question, and record its events meanwhile. If the question
        fails, all its text becomes void."""
        report, self._pass_on = meter_in_force.get() or (_ignore, None)
        meter = meter_in_force.set((report, self._receive_event))
        followed = text_is_followed.set(True)
        try:
            answer = await asking
        except BaseException:
            self._drop_collected()
            self._void_places([*self._texts])
            raise
        finally:
            self._is_closed = True
            text_is_followed.reset(followed)
            meter_in_force.reset(meter)
        self._flush()
        if self._texts:
            self._run.notes.streamed[self._where] = [*self._texts]
        return answer

    def _receive_event(self, event: CallEvent) -> None:
        if get_ident() == self._thread:
            self._take_event(event)
        else:
            self._loop.call_soon_threadsafe(self._take_event, event)

    def _take_event(self, event: CallEvent) -> None:
        if not self._is_closed:
            match event:
                case str():
                    self._collect(self._pieces, event)
                case Thought(text):
                    if not self._hides_thinking():
                        self._collect(self._thoughts, text)
                case Asking(form):
                    self._start_answer(form())
                case Discard():
                    self._discard_answer()
                case Restart():
                    self._thoughts.clear()
                    self._discard_answer()
                    self._void_thinking()
                case Attempt(answer=text, verdict=verdict):
                    self._flush()
                    self._has_ended = True
                    if verdict == "valid":
                        self._set_text(self._form, text)
                    else:
                        self._wrong_answer = self._form, text
        if self._pass_on is not None:
            self._pass_on(event)

    # Arriving text.

    def _collect(self, pieces: list[str], piece: str) -> None:
        if not piece:
            return
        if self._has_ended:  # a user's own LM asks again without an `Asking` event
            self._start_answer(self._form)
        if not self._has_begun:
            self._has_begun = True
            self._attempt = self._attempt or 1
            self._run.writer.write(
                AnswerBegan(*self._record_position(), self._asker, self._attempt)
            )
        pieces.append(piece)
        if self._timer is None:
            self._timer = self._loop.call_later(BATCH, self._flush)

    def _flush(self) -> None:
        """Record the collected text."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thoughts:
            delta = readable("".join(self._thoughts), 0)
            self._thoughts.clear()
            self._write_thinking(delta)
        if not self._pieces:
            return
        text = self._half_character + "".join(self._pieces)
        self._half_character = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        self._pieces.clear()
        for part in self._parser.feed(readable(text.removesuffix(self._half_character), 0)):
            self._add_part(part)
        if self._parser.broken:
            self._void_places(self._asked_places(self._form))

    def _write_thinking(self, delta: str) -> None:
        place = self._thinking_place = self._thinking_place or self._place_of_thinking()
        self._texts.setdefault(place, "")
        self._run.writer.write(
            Thinking(*self._record_position(), self._asker, place, delta, self._attempt)
        )

    def _add_part(self, part: FieldPart) -> None:
        place = self._place_of_part(part)
        if place is not None:
            self._texts[place] = self._texts.get(place, "") + part.text
            self._write_text(place, part.text)

    def _write_text(self, place: Place, delta: str) -> None:
        self._run.writer.write(
            FieldText(*self._record_position(), self._asker, place, delta, self._attempt)
        )

    # Valid and void text.

    def _start_answer(self, form: AnswerForm) -> None:
        """Start an answer of this form. Text that the form's fields already have becomes void."""
        self._drop_collected()
        if self._wrong_answer is not None:
            before, text = self._wrong_answer
            self._set_text(before, text, without=form)
        self._void_thinking()
        self._void_places(self._asked_places(form))
        self._form, self._wrong_answer = form, None
        self._begin_next_attempt()

    def _discard_answer(self) -> None:
        """Void the text that has arrived so far, because it is not part of the answer."""
        self._pieces.clear()
        self._void_places(self._asked_places(self._form))
        self._begin_next_attempt()

    def _begin_next_attempt(self) -> None:
        self._parser = ArrivingAnswer(self._form)
        self._half_character, self._has_begun, self._has_ended = "", False, False
        self._attempt += 1

    def _set_text(self, form: AnswerForm, text: str, without: AnswerForm | None = None) -> None:
        """Make the recorded text equal to the strings of a complete answer. Leave out the fields of
        the form `without`. Usually the recorded text is already equal."""
        final_texts: dict[Place, str] = {}
        for part in form.parts_of(text):
            if without is None or not without.asks_for(part.node.__name__, part.field):
                place = self._place_of_part(part)
                if place is not None:
                    final_texts[place] = part.text
        wrong_places = [
            place
            for place in self._asked_places(form)
            if place not in final_texts or not final_texts[place].startswith(self._texts[place])
        ]
        self._void_places(wrong_places)
        self._attempt = self._attempt or 1
        for place, final_text in final_texts.items():
            delta = final_text[len(self._texts.get(place, "")) :]
            if delta:
                self._texts[place] = final_text
                self._write_text(place, delta)

    def _asked_places(self, form: AnswerForm) -> list[Place]:
        """Return the places with valid text whose fields belong to `form`."""
        return [place for place in self._texts if form.asks_for(place.node, place.field)]

    def _void_thinking(self) -> None:
        if self._thinking_place is not None:
            self._void_places([self._thinking_place])
            self._thinking_place = None

    def _void_places(self, places: Iterable[Place]) -> None:
        voided = (*places,)
        if voided:
            for place in voided:
                self._texts.pop(place, None)
            self._run.writer.write(
                TextVoided(*self._record_position(), self._asker, voided, self._attempt)
            )

    def _drop_collected(self) -> None:
        """Drop the text that is collected, but not recorded yet."""
        self._pieces.clear()
        self._thoughts.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Places.

    def _record_position(self) -> tuple[float, str, int]:
        return time(), self._run.path, self._step

    def _place_of_part(self, part: FieldPart) -> Place | None:
        """Return the place of a string; None if its field is hidden."""
        node = part.node
        if part.field in self._hidden_fields(node):
            return None
        item, within = None, part.within
        if within and isinstance(within[0], int):
            item, within = within[0], within[1:]
        return Place(*self._where, node.__name__, part.field, "", item, within)

    def _hidden_fields(self, node: type[Node]) -> frozenset[str]:
        """Return the fields of a class that must not be shown."""
        hidden = self._hidden.get(node)
        if hidden is None:
            copies = (self._run.scene.hidden or {}).get(node, ())
            hidden = self._hidden[node] = frozenset((*secret_fields(node), *copies))
        return hidden

    def _hides_thinking(self) -> bool:
        """Return whether the LLM fills a hidden field. Its thinking may then contain the value."""
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
    """Return the place of an asker: a node, or the field whose function asks."""
    node_step = step - (asker.kind in ("choice", "body"))
    source = asker.field, asker.parameter, asker.item
    return Place(run.path, node_step, asker.node.__name__, *source)


def stream_for(run: Run, asker: Asker) -> AnswerStream:
    """Make the stream for a question of the run itself: to fill a node, or to choose the next
    node."""
    form = AnswerForm.of(asker.node) if asker.kind == "fill" else AnswerForm()
    return AnswerStream(run, asker, run.step, (run.path, run.step), form)


def inner_stream_for(
    run: Run, asker: Asker, step: int, number: int, target: type[Node] | None
) -> AnswerStream:
    """Make the stream for a question that a body or a function asks at a step. `number` counts the
    questions of this body or function."""
    form = AnswerForm() if target is None else AnswerForm.of(target)
    where = str(_place_of(run, asker, step)), number
    return AnswerStream(run, asker, step, where, form)


def _ignore(_: object) -> None:
    pass
