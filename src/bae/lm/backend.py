"""What a backend is: one method, from a prompt with a JSON schema to an answer with its usage.
Choosing, filling, asking again and routing in one call stand on top of it, in `asking.py`;
policies wrap it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, cast

from bae.language_model import RoutingLM
from bae.lm import asking
from bae.usage import Usage

if TYPE_CHECKING:
    from bae.language_model import LM
    from bae.node import Node

N = TypeVar("N", bound="Node")


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What is asked, in types: for backends that make a prompt of their own.

    With `types`, one of them is to be chosen, and filled at once where it is among `fillable`.
    Without, the `fields` of `target` are to be filled; after a wrong answer these are only the
    ones that were wrong. `method` is set where an LM that builds nodes by itself is to do so by
    this method of its own.
    """

    types: tuple[type[Node] | type[None], ...] = ()
    fillable: tuple[type[Node], ...] = ()
    target: type[Node] | None = None
    fields: tuple[str, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Mapping[str, Any] | None = None
    instruction: str = ""
    source: Node | None = None
    method: Literal["", "make", "decide"] = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A wrong answer, and what the model is told about it."""

    answer: str
    correction: str


@dataclass(frozen=True, slots=True)
class Shown:
    """An example that the model is shown before the question: what was asked, and the answer."""

    asked: str
    answer: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question to a model. Equal input gives an equal prompt.

    `system` is the same for every question. `text` is the instruction and, as JSON, what is
    known. `schema` is the JSON schema of the answer, always an object; send it by the provider's
    channel for structured output. `name` is a name for the schema that every provider takes.
    `turns` are the wrong answers so far. `examples` are other questions with their answers, for
    the model to learn from; `messages` and `flat` have them.
    """

    system: str
    text: str
    schema: Mapping[str, Any]
    name: str
    question: Question = field(compare=False)
    turns: tuple[Turn, ...] = ()
    examples: tuple[Shown, ...] = ()

    def messages(self) -> list[dict[str, str]]:
        """The conversation without the system part: user and assistant for each example, user for
        the question, and assistant and user by turns."""
        said: list[dict[str, str]] = []
        for example in self.examples:
            said.append({"role": "user", "content": example.asked})
            said.append({"role": "assistant", "content": example.answer})
        said.append({"role": "user", "content": self.text})
        for turn in self.turns:
            # Providers refuse an empty message.
            said.append({"role": "assistant", "content": turn.answer or "(no answer)"})
            said.append({"role": "user", "content": turn.correction})
        return said

    def flat(self) -> str:
        """The conversation as one text, for models that take no turns."""
        parts = [
            f"For example, when asked:\n{each.asked}\n\nthe answer is:\n{each.answer}"
            for each in self.examples
        ]
        parts.append(f"Now you are asked:\n{self.text}" if parts else self.text)
        for turn in self.turns:
            parts.append(f"Your answer was:\n{turn.answer or '(no answer)'}")
            parts.append(turn.correction)
        return "\n\n".join(parts)


class _Unparsed:
    def __repr__(self) -> str:
        return "<unparsed>"


UNPARSED: Final = _Unparsed()


_ONE_CALL: Final = Usage(calls=1)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered: its `text`, or the JSON `value` where it is parsed already.

    `stop` says why it ended: by itself, cut off by a limit on its length, or in a refusal (then
    `text` is what it said about that).
    """

    text: str = ""
    usage: Usage = _ONE_CALL
    stop: Literal["end", "cut-off", "refused"] = "end"
    value: Any = UNPARSED

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.text), str):
            raise TypeError(
                f"Answer({type(self.text).__name__}): give the text of the model, or what it said "
                "as JSON with Answer(value=…)"
            )
        if self.stop not in ("end", "cut-off", "refused"):
            raise ValueError(f'Answer(stop={self.stop!r}): give "end", "cut-off" or "refused"')


class Backend(RoutingLM):
    """A language model. Subclass it and write `answer`, and that alone: the four methods of
    `bae.LM` are here, on top of it. One that overrides these is asked through them by policies,
    as any LM that is no backend is.
    """

    model: str = ""
    """The model that answers, as its provider names it."""

    answers_unions: bool = True
    """Whether the model can be held to a schema with alternatives, for one-call routing."""

    attempts: int = 2
    """How many more times a wrong answer is asked for again, with what was wrong."""

    retries: int = 2
    """How many more times a request that failed is sent, where that can help. Wrap the backend in
    `bae.lm.Retry` to say more about it."""

    first_wait: float = 0.5
    """Seconds until a request that failed is first sent again; later waits are longer."""

    one_call: bool = True
    """Whether a choice and the filling of what is chosen may be one request."""

    free: bool = False
    """Whether requests cost nothing, failed ones too, as with a model on this machine."""

    def __init__(self, *, attempts: int = 2, retries: int = 2, one_call: bool = True) -> None:
        for name, value in (("attempts", attempts), ("retries", retries)):
            if type(value) is not int or value < 0:
                raise ValueError(f"{type(self).__name__}({name}={value!r}): give 0 or more")
        self.attempts = attempts
        self.retries = retries
        self.one_call = one_call

    @abstractmethod
    async def answer(self, prompt: Prompt) -> Answer:
        """Ask the model once.

        Raise `BaeLMError`, with `retryable` and `retry_after` where they are known, when there is
        no answer: with `sent=False` where none was asked for, and `usage` where it is known what
        that cost. An answer that is wrong is no error here: return it as it is.
        """

    @property
    def settings(self) -> Mapping[str, Any]:
        """What, besides the prompt and the model, changes answers: for cache keys. JSON values."""
        return {}

    def least_cost(self, usage: Usage) -> float | None:
        """What a request with this usage costs at least, in dollars; None where its cost will not
        be known. A budget that limits cost asks before the request is sent: a backend that tells
        the cost of its answers by itself, or costs nothing, says so here."""
        from bae.lm.prices import cost_of

        return cost_of(self.model, usage) if self.model and not self.free else 0.0

    def at_once(self, source: Node | None, fillable: Sequence[type[Node]]) -> Sequence[type[Node]]:
        """Those of `fillable` that may be filled by the very answer that chooses where to go on
        from `source`: all of them here, and fewer where some are asked for in another way."""
        return fillable

    def pinned(self, lm: LM) -> LM:
        """The LM that is pinned to a node, as it is asked in a run of this one: `lm` itself here,
        and `lm` with what was learnt where this asks with that. The same object each time."""
        return lm

    async def reject(self, prompt: Prompt) -> None:
        """Learn that the answer to this prompt was not valid: a cache forgets it."""

    async def aclose(self) -> None:
        """Close connections. The backend may be used again; it opens new ones then."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.model!r})" if self.model else f"{type(self).__name__}()"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        """Have the model fill the plain fields of `target`; wrong ones are asked for again."""
        return await asking.fill(self, target, resolved, instruction, source)

    async def choose_type(
        self, types: Sequence[type[Node] | type[None]], context: Mapping[str, Any]
    ) -> type[Node] | type[None]:
        """Have the model choose one of `types` by name; one alone needs no call."""
        chosen, _ = await asking.choose(self, types, context=context)
        return chosen

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from what `node` holds."""
        return await self.fill(target, {}, target.__name__, node)

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        from bae.plan import plan_of

        plan = plan_of(type(node), strict=True)
        chosen, filled = await self.route(node, plan.offered, plan.successors)
        if chosen is NoneType or filled is not None:
            return filled
        return await self.make(node, chosen)

    async def route(
        self,
        node: Node,
        types: Sequence[type[Node] | type[None]],
        fillable: Sequence[type[Node]] = (),
    ) -> tuple[type[Node] | type[None], Node | None]:
        """Choose one of `types` to go on to from `node`, and fill it in the same call where it is
        among `fillable` and the model can. The run uses this; the second is None where the chosen
        one is still to be filled."""
        cls = type(self)
        if cls.choose_type is not Backend.choose_type:  # it chooses in a way of its own
            return await self.choose_type(types, dict(node)), None
        if cls.fill is not Backend.fill:
            fillable = ()
        return await asking.choose(self, types, node, fillable=fillable)
