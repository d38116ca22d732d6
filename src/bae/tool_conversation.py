"""`Conversation`: the rounds in which an LLM calls tools and then fills a node. Every message is
recorded, so that a resumed run continues the conversation."""

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
"""A key of a call in the record of a round. It marks that the arguments are masked or removed."""
_SHOWN_CALLS: Final = 5
"""How many of the last calls an error shows."""


@dataclass(slots=True)
class Round:
    """One request of the conversation, with the LLM's answer and the replies to the answer."""

    number: int
    at: float
    """When the LLM had answered."""
    text: str = ""
    calls: tuple[CallPart, ...] = ()
    """The calls that bae runs."""
    echo: Any = None
    """Data of the backend that is sent back with the calls."""
    stop: Literal["end", "cut-off", "refused"] = "end"
    """Why the answer ended."""
    replies: list[str] = field(default_factory=list[str])
    """The messages that the LLM reads after the results of the calls."""
    is_wrong: bool = False
    """Whether a reply corrects the answer."""
    is_refused: bool = False
    """Whether `Tools(accept=…)` refused the answer."""
    repeated: tuple[str, ...] = ()
    """The names of tools that were called with the same arguments in an earlier round too."""
    ran: tuple[str, ...] = ()
    """The ids of the calls that the provider has run."""


class Conversation:
    """A conversation with tools: its rounds, and the results of its calls.

    A body or function may have several conversations. Each has its own `question` key.
    """

    def __init__(
        self, run: Run, plan: NodePlan, asker: Asker, step: int, question: str = ""
    ) -> None:
        self.plan = plan
        self.field = tools_of(plan)
        self.marker = self.field.marker
        self.rounds: list[Round] = []
        self.first_messages: list[str] = []
        """The messages that the LLM reads before its first round."""
        self._steered: dict[int, str] = {}
        """The texts of `before_round`, by the number of finished rounds."""
        self.cut = 0
        """The number of the last round whose results are cut: the LLM reads one line for each."""
        self.run, self.asker, self.step, self.question = run, asker, step, question
        self._results: dict[str, ToolCall] = {}
        """The calls that have ended, by id."""
        self._wrong: set[str] = set()
        """The ids of calls that could not be made: an unknown tool, or wrong arguments."""
        self._began: dict[str, int] = {}
        """How often each call without a result has begun, by id."""
        self._lost: set[str] = set()
        """The ids of calls whose arguments the journal does not have, because they are secret."""
        self._numbered = 0
        """The number of the newest call id."""
        self._called: set[str] = set()
        """The keys of the calls of all rounds: see `key_of`."""
        self._accepted = False
        """Whether `Tools(accept=…)` has accepted the answer."""
        earlier = run.conversations.pop(self._key, None)
        if earlier is not None:
            self._continue(earlier)
        else:
            self._restore()
        if question:
            run.conversations[self._key] = self

    @property
    def files(self) -> dict[str, File]:
        """The files in the results of tools, by hash."""
        return self.run.notes.files

    @property
    def calls(self) -> list[ToolCall]:
        """The calls that have ended, in the order in which the LLM made them."""
        return sorted(self._results.values(), key=lambda call: number_of(call.id))

    def result(self, call: CallPart) -> ToolCall:
        """Return a call as it ended."""
        return self._results[call.id]

    @property
    def open_round(self) -> Round | None:
        """The last round, if it is unfinished: a call has no result yet, or the answer is not
        judged."""
        if not self.rounds:
            return None
        last = self.rounds[-1]
        if last.calls:
            return last if any(call.id not in self._results for call in last.calls) else None
        return None if last.is_wrong or last.is_refused else last

    @property
    def wrong_rounds(self) -> int:
        """How many rounds in a row, up to the last, were wrong. A round is wrong if its answer was
        corrected, or none of its calls could be made."""
        count = 0
        for round_ in reversed(self.rounds):
            if not (round_.is_wrong or (round_.calls and self._is_all_wrong(round_))):
                break
            count += 1
        return count

    def _is_all_wrong(self, round_: Round) -> bool:
        return all(call.id in self._wrong for call in round_.calls)

    @property
    def is_over(self) -> bool:
        """Whether the limit of rounds is reached."""
        return len(self.rounds) >= self.marker.limit

    def check_limit(self) -> None:
        """Raise an error if the LLM may not answer once more. With `on_limit="answer"`, it has one
        round after the limit. There, a wrong answer may still be corrected, but a refused answer is
        an error."""
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
        """Record an answer of the LLM as a round, and return the round. Each call gets a new id.

        `ran` has the calls that the provider has run, with their results.
        """
        number, last_id = len(self.rounds) + 1, self._numbered
        finished: list[dict[str, Any]] = []
        for call, result in ran:
            last_id += 1
            finished.append(
                {"id": f"c{last_id}", "name": call.name, "arguments": arguments_of(call)}
            )
            finished[-1]["error" if result.is_error else "result"] = readable(result.result, 0)
        numbered_calls = tuple(
            CallPart(f"c{last_id + n}", call.name, call.arguments)
            for n, call in enumerate(calls, 1)
        )
        self._numbered = last_id + len(numbered_calls)
        stored = (*map(self._build_stored_call, numbered_calls),)
        details = number, text, stored, usage or Usage(), echo, tuple(finished)
        if any(_WITHHELD in call for call in stored):  # the text may repeat a masked argument
            details = number, "", stored, usage or Usage(), None, tuple(finished)
        record = self._record(RoundMade, *details)
        record.stop = "" if stop == "end" else stop
        self.run.writer.write(record)
        return self._add(Round(number, record.at, text, numbered_calls, echo, stop), finished)

    def _build_stored_call(self, call: CallPart) -> dict[str, Any]:
        """Return a call as the record of its round stores it: with masks in place of secrets."""
        masked = self.mask_arguments(call)
        stored = {"id": call.id, "name": call.name, "arguments": call.arguments}
        if not isinstance(call.arguments, Mapping):  # invalid JSON, which may contain a secret
            return {**stored, "arguments": "", _WITHHELD: True} if self._takes_secrets else stored
        if masked == call.arguments:
            return stored
        return {**stored, "arguments": masked, _WITHHELD: True}

    def mask_arguments(self, call: CallPart) -> dict[str, Any]:
        """Return the arguments of a call. A subclass that has the tools masks secrets in them."""
        return arguments_of(call)

    @property
    def _takes_secrets(self) -> bool:
        """Whether a tool has a secret parameter that the LLM passes. A subclass that has the tools
        implements it."""
        return False

    def _add(self, round_: Round, ran: Iterable[Mapping[str, Any]]) -> Round:
        for call in ran:
            self._results[call["id"]] = ToolCall(**call)
            round_.ran += (call["id"],)
        keys = [key_of(call) for call in round_.calls]
        round_.repeated = tuple(
            call.name for call, key in zip(round_.calls, keys, strict=True) if key in self._called
        )
        self._called.update(keys)
        self.rounds.append(round_)
        return round_

    def reply(self, to: Round, text: str) -> None:
        """Send the LLM a correction of its answer."""
        self._write(RoundReplied, to.number, "correction", text)
        to.replies.append(text)
        to.is_wrong = True

    async def add_messages(self) -> None:
        """Add the new messages of people, which the LLM reads before its next round."""

        def record(text: str) -> RoundReplied:
            return self._record(RoundReplied, len(self.rounds), "told", text)

        for message in await self.run.writer.take_messages(self.run, record):
            self._tell(len(self.rounds), message)

    def _tell(self, number: int, text: str) -> None:
        """Add a message that the LLM reads after round `number`; 0 is before the first round."""
        (self.rounds[number - 1].replies if number else self.first_messages).append(text)

    @property
    def progress(self) -> ToolProgress:
        """The state of the conversation, for the function in `Tools(before_round=…)`."""
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
        """Cut the results of all rounds up to `number`. The LLM then reads one line for each."""
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
        """End a call whose tool is not called, with an error or with the result of another call.
        `reused` is the id of the other call."""
        ended = ToolCall(
            id=call.id,
            name=call.name,
            arguments=self.mask_arguments(call) if arguments is None else arguments,
            result=result,
            error=error,
        )
        self._results[call.id] = ended
        self.run.writer.write(self._make_end_record(ended, reused))

    def _make_end_record(self, call: ToolCall, reused: str = "") -> ToolEnded:
        values = call.name, call.arguments, call.result, call.error, call.seconds, reused
        return self._record(ToolEnded, call.id, *values)

    def idempotency_key(self, call: CallPart) -> str:
        """Return a unique key for a call of the last round. It includes the time of the round,
        because a graph that starts again may make another call with the same id."""
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
            restored = Round(
                round_.number, round_.at, text, calls, round_.echo, round_.stop or "end"
            )
            self._add(restored, round_.ran)
            self._lost |= {call["id"] for call in round_.calls if _WITHHELD in call}
        for record in loop.replies:
            match record.kind:
                case "cut":
                    self.cut = record.number
                case "accepted":
                    self._accepted = True
                case "steered":
                    if record.text not in ("", WITHHELD_MESSAGE):  # the journal may not have it
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
        """Continue a conversation of this process that an error has ended."""
        self.rounds, self.first_messages, self.cut = (
            earlier.rounds,
            earlier.first_messages,
            earlier.cut,
        )
        self._results, self._wrong = earlier._results, earlier._wrong
        self._began = {id: n for id, n in earlier._began.items() if id not in earlier._results}
        self._numbered, self._called = earlier._numbered, earlier._called
        self._accepted, self._steered = earlier._accepted, earlier._steered

    def _finish(self) -> None:
        """Note that the LLM has filled the node, so that no later question continues this
        conversation."""
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
        """Make an error of the conversation, with the calls so far."""
        calls = self.calls
        text = f"{self.plan.name}.{self.field.name}: {message}"
        if calls:
            last_calls = [str(call)[:200] for call in calls[-_SHOWN_CALLS:]]
            many = f"{len(calls)} calls" if len(calls) > 1 else "1 call"
            text += f"; after {many}{', the last' if len(calls) > _SHOWN_CALLS else ''}: "
            text += ", ".join(last_calls)
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
        """Make the error for too many wrong rounds in a row."""
        last = self.rounds[-1]
        reasons = [self._results[call.id].error or "" for call in last.calls] or last.replies[-1:]
        return self.error(
            f"{attempts + 1} rounds in a row were wrong, and the last because: "
            f"{'; '.join(reasons)}",
            "describe the tools and their parameters better, or use another model",
            code="bae-tool-wrong-rounds",
        )

    def over_limit(self) -> ToolCallError:
        """Make the error for a conversation that has reached its limit of rounds."""
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
    """Return the number in a call's id: 7 for "c7"."""
    return int(id[1:])


def arguments_of(call: CallPart) -> dict[str, Any]:
    """Return the arguments of a call; empty if the LLM wrote no JSON object."""
    return dict(call.arguments) if isinstance(call.arguments, Mapping) else {}


def key_of(call: CallPart | ToolCall) -> str:
    """Return the key of a call: calls with the same tool and arguments have the same key."""
    return f"{call.name} {json.dumps(call.arguments, sort_keys=True, default=str)}"
