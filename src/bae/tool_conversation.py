"""`Conversation`: the rounds in which an LM calls tools and then fills a node. It records every
message, so that a resumed run continues the conversation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from time import time
from typing import TYPE_CHECKING, Any, Final, Literal

from bae.exceptions import ToolCallError
from bae.files import in_use, visible_files_in
from bae.prompts.messages import CallPart
from bae.records import WITHHELD_MESSAGE, RoundMade, RoundReplied, ToolEnded
from bae.sources.tools import tools_of
from bae.tools import ToolCall, ToolProgress
from bae.unicode import readable
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.files import File
    from bae.plan import NodePlan
    from bae.prompts.messages import ResultPart
    from bae.records import Asker
    from bae.run import Run

_WITHHELD: Final = "withheld"
"""The key that marks a call in the record of a round, if its arguments are masked or removed."""
_SHOWN_CALLS: Final = 5
"""How many calls an error shows."""


@dataclass(slots=True)
class Round:
    """One request of the conversation: the answer of the LM, and the replies that it reads besides
    the results of its calls."""

    number: int
    at: float
    """When the LM had answered."""
    text: str = ""
    calls: tuple[CallPart, ...] = ()
    echo: Any = None
    stop: Literal["end", "cut-off", "refused"] = "end"
    """Why the answer ended."""
    replies: list[str] = field(default_factory=list[str])
    is_wrong: bool = False
    """Whether a correction followed."""
    is_refused: bool = False
    """Whether `Tools(accept=…)` refused the answer."""
    repeated: tuple[str, ...] = ()
    """The tools of calls that are equal to a call of an earlier round."""
    ran: tuple[str, ...] = ()
    """The ids of the calls that the provider has run."""


class Conversation:
    """The rounds so far. `question` distinguishes the questions of one body or function."""

    def __init__(
        self, run: Run, plan: NodePlan, asker: Asker, step: int, question: str = ""
    ) -> None:
        self.plan = plan
        self.field = tools_of(plan)
        self.marker = self.field.marker
        self.rounds: list[Round] = []
        self.told_first: list[str] = []
        """Messages that the LM reads before its first round."""
        self._steered: dict[int, str] = {}
        """The texts of `before_round`, by the number of rounds before them."""
        self.cut = 0
        """The results of the rounds up to this number are left out of the conversation."""
        self.run, self.asker, self.step, self.question = run, asker, step, question
        self._results: dict[str, ToolCall] = {}
        self._wrong: set[str] = set()
        """Calls that could not be made: an unknown tool, or wrong arguments."""
        self._began: dict[str, int] = {}
        """The calls that have begun and have no result, and how often each has begun."""
        self._lost: set[str] = set()
        """Calls without the arguments that the LM wrote: no journal has these."""
        self._numbered = 0
        """How many calls have an id."""
        self._called: set[str] = set()
        """The calls of all rounds, by tool and arguments."""
        self._accepted = False
        earlier = run.conversations.pop(self._key, None)
        if earlier is not None:
            self._continue(earlier)
        else:
            self._restore()
        if question:
            run.conversations[self._key] = self

    @property
    def files(self) -> dict[str, File]:
        """The files in results of tools, by their hashes."""
        return self.run.notes.files

    @property
    def calls(self) -> list[ToolCall]:
        """The calls so far that have a result, in the order the LM made them."""
        return sorted(self._results.values(), key=lambda call: number_of(call.id))

    def result(self, call: CallPart) -> ToolCall:
        """The result of a call."""
        return self._results[call.id]

    @property
    def open_round(self) -> Round | None:
        """The last round, if its calls have no result yet, or its answer was not judged."""
        if not self.rounds:
            return None
        last = self.rounds[-1]
        if last.calls:
            return last if any(call.id not in self._results for call in last.calls) else None
        return None if last.is_wrong or last.is_refused else last

    @property
    def wrong_rounds(self) -> int:
        """How many of the last rounds in a row were wrong: an answer that was corrected, or calls
        that could not be made."""
        count = 0
        for round_ in reversed(self.rounds):
            if not (round_.is_wrong or (round_.calls and self._is_all_wrong(round_))):
                break
            count += 1
        return count

    def _is_all_wrong(self, each: Round) -> bool:
        return all(call.id in self._wrong for call in each.calls)

    @property
    def is_over(self) -> bool:
        """Whether no round with tool calls is left."""
        return len(self.rounds) >= self.marker.limit

    def check_limit(self) -> None:
        """Raise if the conversation has no round left. With `on_limit="answer"` there is one more
        round. A wrong answer in it is corrected; a refused answer ends the conversation."""
        if self.is_over and (
            self.marker.on_limit == "error"
            or (len(self.rounds) > self.marker.limit and self.rounds[-1].is_refused)
        ):
            raise self.over_limit()

    # Messages and calls.

    def take(
        self,
        text: str,
        calls: Sequence[CallPart] = (),
        echo: Any = None,
        usage: Usage | None = None,
        ran: Sequence[tuple[CallPart, ResultPart]] = (),
        stop: Literal["end", "cut-off", "refused"] = "end",
    ) -> Round:
        """Record an answer of the LM. Its calls get ids of their own."""
        number, used = len(self.rounds) + 1, self._numbered
        done: list[dict[str, Any]] = []
        for call, result in ran:
            used += 1
            done.append({"id": f"c{used}", "name": call.name, "arguments": arguments_of(call)})
            done[-1]["error" if result.is_error else "result"] = readable(result.result, 0)
        named = tuple(
            CallPart(f"c{used + n}", call.name, call.arguments) for n, call in enumerate(calls, 1)
        )
        self._numbered = used + len(named)
        stored = (*map(self._stored_call, named),)
        details = number, text, stored, usage or Usage(), echo, tuple(done)
        if any(_WITHHELD in each for each in stored):  # the rest may have what is masked, too
            details = number, "", stored, usage or Usage(), None, tuple(done)
        record = self._record(RoundMade, *details)
        record.stop = "" if stop == "end" else stop
        self.run.writer.write(record)
        return self._add(Round(number, record.at, text, named, echo, stop), done)

    def _stored_call(self, call: CallPart) -> dict[str, Any]:
        """A call for the record of its round."""
        shown = self.shown_arguments(call)
        stored = {"id": call.id, "name": call.name, "arguments": call.arguments}
        if not isinstance(call.arguments, Mapping):  # no JSON, perhaps with a secret in it
            return {**stored, "arguments": "", _WITHHELD: True} if self._takes_secrets else stored
        if shown == call.arguments:
            return stored
        return {**stored, "arguments": shown, _WITHHELD: True}

    def shown_arguments(self, call: CallPart) -> dict[str, Any]:
        """The arguments of a call, with masks in place of secrets."""
        return arguments_of(call)

    @property
    def _takes_secrets(self) -> bool:
        """Whether the LM passes a secret to a tool."""
        return False

    def _add(self, made: Round, ran: Iterable[Mapping[str, Any]]) -> Round:
        for each in ran:
            self._results[each["id"]] = ToolCall(**each)
            made.ran += (each["id"],)
        keys = [key_of(call) for call in made.calls]
        made.repeated = tuple(
            call.name for call, key in zip(made.calls, keys, strict=True) if key in self._called
        )
        self._called.update(keys)
        self.rounds.append(made)
        return made

    def reply(self, to: Round, text: str) -> None:
        """Tell the LM what is wrong with its answer."""
        self._write(RoundReplied, to.number, "correction", text)
        to.replies.append(text)
        to.is_wrong = True

    async def take_told(self) -> None:
        """Take the messages of people that the LM reads before its next round."""

        def record(text: str) -> RoundReplied:
            return self._record(RoundReplied, len(self.rounds), "told", text)

        for told in await self.run.writer.take_told(self.run, record):
            self._tell(len(self.rounds), told)

    def _tell(self, number: int, text: str) -> None:
        """Add a message that the LM reads after a round, or before the first."""
        (self.rounds[number - 1].replies if number else self.told_first).append(text)

    @property
    def progress(self) -> ToolProgress:
        """The state of the conversation."""
        return ToolProgress(
            limit=self.marker.limit,
            by_round=tuple(
                tuple(
                    self._results[id] for id in (*round_.ran, *(call.id for call in round_.calls))
                )
                for round_ in self.rounds
            ),
            refused=sum(round_.is_refused for round_ in self.rounds),
            messages=(*self._steered.values(),),
        )

    def cut_results(self, number: int) -> None:
        """Leave the results of the rounds up to this number out of the conversation."""
        self._write(RoundReplied, number, "cut")
        self.cut = number

    def _end(
        self,
        call: CallPart,
        result: Any = None,
        error: str | None = None,
        reused: str = "",
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """End a call that was not made."""
        made = ToolCall(
            id=call.id,
            name=call.name,
            arguments=self.shown_arguments(call) if arguments is None else arguments,
            result=result,
            error=error,
        )
        self._results[call.id] = made
        self.run.writer.write(self._end_record(made, reused))

    def _end_record(self, made: ToolCall, reused: str = "") -> ToolEnded:
        what = made.name, made.arguments, made.result, made.error, made.seconds, reused
        return self._record(ToolEnded, made.id, *what)

    def idempotency_key(self, call: CallPart) -> str:
        """A unique key of a call of the last round. A graph that starts again may make a call with
        the same id, at another time."""
        who = self.run.run_id, *self._key[:2], *self.asker[:1], self.asker.node.__name__
        which = *self.asker[2:], self.question, call.id, self.rounds[-1].at
        return sha256(json.dumps([*who, *which]).encode()).hexdigest()[:32]

    # Records.

    @property
    def _key(self) -> tuple[str, int, Asker, str]:
        return self.run.path, self.step, self.asker, self.question

    def _record(self, kind: Any, *what: Any) -> Any:
        return kind(time(), self.run.path, self.step, self.asker, *what, question=self.question)

    def _write(self, kind: Any, *what: Any) -> None:
        self.run.writer.write(self._record(kind, *what))

    async def _store(self, kind: Any, *what: Any) -> None:
        await self.run.writer.store(self._record(kind, *what))

    def _restore(self) -> None:
        """Restore the conversation from its records."""
        loop = self.run.past.tool_loop(*self._key)
        if loop is None:
            return
        for round_ in loop.rounds:
            calls = tuple(CallPart(c["id"], c["name"], c["arguments"]) for c in round_.calls)
            text = "" if calls and round_.withheld else round_.text
            made = Round(round_.number, round_.at, text, calls, round_.echo, round_.stop or "end")
            self._add(made, round_.ran)
            self._lost |= {call["id"] for call in round_.calls if _WITHHELD in call}
        for record in loop.replies:
            match record.kind:
                case "cut":
                    self.cut = record.number
                case "accepted":
                    self._accepted = True
                case "steered":
                    if record.text not in ("", WITHHELD_MESSAGE):  # what no journal has is lost
                        self._tell(record.number, record.text)
                        self._steered[record.number] = record.text
                case "told":
                    self._tell(record.number, record.text)
                case _:
                    answered = self.rounds[record.number - 1]
                    answered.replies.append(record.text)
                    answered.is_wrong |= record.kind == "correction"
                    answered.is_refused |= record.kind == "refused"
        for id, ended in loop.ended.items():
            if ended.error is not None and id not in loop.started and id not in loop.gates:
                self._wrong.add(id)
            self._results[id] = ToolCall(
                id=id,
                name=ended.name,
                arguments=ended.arguments,
                result=ended.result,
                error=ended.error,
                seconds=ended.seconds,
            )
            if in_use():
                self.files.update((file.hash, file) for file in visible_files_in(ended.result))
        self._began = {id: n for id, n in loop.starts.items() if id not in loop.ended}
        ids = [call.id for round_ in self.rounds for call in round_.calls]
        self._numbered = max(map(number_of, (*ids, *self._results)), default=0)
        last = self.open_round
        if last is not None and not last.calls and loop.rounds[-1].withheld:
            self._accepted = False
            self.reply(last, "The program was interrupted, and lost this answer. Answer again.")

    def _continue(self, earlier: Conversation) -> None:
        """Take over a conversation of this process that has failed."""
        self.rounds, self.told_first, self.cut = earlier.rounds, earlier.told_first, earlier.cut
        self._results, self._wrong = earlier._results, earlier._wrong
        self._began = {id: n for id, n in earlier._began.items() if id not in earlier._results}
        self._numbered, self._called = earlier._numbered, earlier._called
        self._accepted, self._steered = earlier._accepted, earlier._steered

    def _finish(self) -> None:
        """Record that the LM has filled the node."""
        self.run.conversations.pop(self._key, None)

    # Errors.

    def error(
        self,
        message: str,
        fix: str,
        *,
        code: str = ToolCallError.code,
        cause: BaseException | None = None,
    ) -> ToolCallError:
        """An error of the conversation, with the calls so far."""
        calls = self.calls
        text = f"{self.plan.name}.{self.field.name}: {message}"
        if calls:
            shown = [str(call)[:200] for call in calls[-_SHOWN_CALLS:]]
            many = f"{len(calls)} calls" if len(calls) > 1 else "1 call"
            text += f"; after {many}{', the last' if len(calls) > _SHOWN_CALLS else ''}: "
            text += ", ".join(shown)
        return ToolCallError(
            text,
            cause=cause,
            code=code,
            fix=fix,
            node_type=self.plan.node,
            field_name=self.field.name,
            calls=calls,
        )

    def wrong_too_often(self, attempts: int) -> ToolCallError:
        """The error after too many wrong rounds in a row."""
        last = self.rounds[-1]
        why = [self._results[call.id].error or "" for call in last.calls] or last.replies[-1:]
        return self.error(
            f"{attempts + 1} rounds in a row were wrong, and the last because: {'; '.join(why)}",
            "describe the tools and their parameters better, or use another model",
            code="bae-tool-wrong-rounds",
        )

    def over_limit(self) -> ToolCallError:
        """The error if no round is left."""
        limit = self.marker.limit
        many = "1 round" if limit == 1 else f"{limit} rounds"
        last = self.rounds[-1]
        if last.is_refused:
            return self.error(
                f"after {many}, which is the limit, the answer was refused: {last.replies[-1]}",
                "raise the bound with Tools(…, limit=…), or accept more answers",
                code="bae-tools-limit",
            )
        return self.error(
            f"the LM has not answered after {many}, which is the limit",
            'raise the bound with Tools(…, limit=…), or have it answer then with on_limit="answer"',
            code="bae-tools-limit",
        )


def number_of(id: str) -> int:
    """The number in the id of a call."""
    return int(id[1:])


def arguments_of(call: CallPart) -> dict[str, Any]:
    """The arguments of a call; empty if the LM wrote no object."""
    return dict(call.arguments) if isinstance(call.arguments, Mapping) else {}


def key_of(call: CallPart | ToolCall) -> str:
    """The key that equal calls share."""
    return f"{call.name} {json.dumps(call.arguments, sort_keys=True, default=str)}"
