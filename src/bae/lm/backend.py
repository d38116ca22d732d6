"""What a backend is: one method, from a prompt, which asks for JSON or for plain text, to an answer
with its usage. Filling and choosing are written once on top of it: ask, judge the answer, keep what
is valid and ask again for the rest, a bounded number of times. Policies wrap it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from bae.draft import from_resolved, with_resolved
from bae.language_model import RoutingLM, ask_lm, scene_around
from bae.lm.answers import (
    Wrong,
    attempt,
    build,
    choice_failed,
    correction,
    fill_failed,
    read,
    read_choice,
    read_fill,
)
from bae.lm.file_limits import DEFAULT_LIMITS, FileLimits
from bae.lm.requests import UNPARSED, Answer, ask, send
from bae.plan import plan_of
from bae.prompts.messages import (
    CallPart,
    Correction,
    FewShot,
    FilePart,
    Message,
    Prompt,
    Question,
    ResultPart,
    TextPart,
    ToolSpec,
)
from bae.prompts.questions import Choice, Resolved, choice_of, fill_prompt, text_form
from bae.prompts.values import asked_fields, offers_tools
from bae.secrets import shown_values
from bae.usage import tell

if TYPE_CHECKING:
    from bae.language_model import LM, Scene
    from bae.node import Node
    from bae.usage import Attempt, Usage

    NodeOrEnd = type[Node] | type[None]

__all__ = [
    "UNPARSED",
    "Answer",
    "Backend",
    "CallPart",
    "Correction",
    "FewShot",
    "FilePart",
    "Message",
    "Prompt",
    "Question",
    "ResultPart",
    "TextPart",
    "ToolSpec",
]

N = TypeVar("N", bound="Node")

_NOTHING: Mapping[Any, Any] = {}


class Backend(RoutingLM):
    """A language model. Subclass it and write `answer`, and that alone: the four methods of
    `bae.LM` are written on top of it. Policies ask a backend that overrides these through them, as
    they ask an LM that is no backend.
    """

    model: str = ""
    """The model that answers, as its provider names it."""

    answers_unions: bool = True
    """Whether the model can be held to a schema with alternatives, for one-call routing."""

    attempts: int = 2
    """How many more times a wrong answer is asked for again, with its errors."""

    retries: int = 2
    """How many more times a failed request is sent, where that can help; one that took all its time
    is not. `bae.lm.Retry` around the backend sends that again too, and has more options."""

    first_wait: float = 0.5
    """Seconds until a failed request is first sent again; later waits are longer."""

    calls_tools: bool = False
    """Whether `answer` sends `prompt.tools` and returns the model's calls in `Answer.calls`. A
    backend without it gets the same tools by structured output."""

    runs_tools: bool = True
    """Whether bae has the conversation with tools. An adapted LM has it by itself."""

    context_window: int | None = None
    """How many tokens a request may have, where that is known. A conversation with tools that would
    be longer is cut."""

    native_tools: frozenset[str] | None = frozenset()
    """The names of the tools that the provider itself runs, as `bae.Native` names them."""

    takes_files: frozenset[str] = frozenset()
    """The kinds of files that `answer` sends, "image" and "document". A prompt with a file of
    another kind never gets there: `BaeLMError` is raised."""

    file_limits: FileLimits = DEFAULT_LIMITS
    """How many files a request may have, and how large: checked before `answer` is called."""

    one_call: bool = True
    """Whether a choice and the filling of what is chosen may be one request."""

    free: bool = False
    """Whether requests cost nothing, failed ones too, as with a model on this machine."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.keeps_resolved = cls.fill is Backend.fill

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
        no answer: with `sent=False` where nothing was sent, and `usage` where it is known. A wrong
        answer is no error here: return it as it is.
        """

    async def request(self, prompt: Prompt) -> Answer:
        """Have `answer` send one request, charged to the budgets in force. Policies and the methods
        below ask through this."""
        return await send(self, prompt)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What, besides the prompt and the model, changes answers: for cache keys. JSON values."""
        return {}

    @property
    def secrets(self) -> Iterable[str]:
        """Keys that this backend sends. They are masked in its errors and answers, as a provider or
        a proxy may repeat them."""
        return ()

    def least_cost(self, usage: Usage) -> float | None:
        """What a request with this usage costs at least, in dollars; None where its cost will not
        be known. A budget that limits cost asks before the request is sent. Override it in a
        backend that reports the cost of its answers, or costs nothing."""
        from bae.lm.prices import cost_of

        return cost_of(self.model, usage) if self.model and not self.free else 0.0

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """Those of `fillable` that may be filled by the answer that chooses the successor of
        `previous`: all of them here, and fewer where some are asked for in another way."""
        return fillable

    def offer(
        self,
        node: Node | None,
        types: Sequence[NodeOrEnd],
        fillable: Sequence[type[Node]] = (),
        resolved: Resolved | None = None,
    ) -> Choice:
        """The choice among `types` as this backend asks for it: with the fields of those in
        `fillable` that the model can answer in the same call, which need nothing more than what is
        `resolved`."""
        cls = type(self)
        has_own_way = cls.choose_type is not Backend.choose_type or cls.fill is not Backend.fill
        if not fillable or has_own_way or not self.one_call or not self.answers_unions:
            return choice_of(tuple(types), ())
        at_once = tuple(self.at_once(node, fillable))
        return choice_of(tuple(types), at_once, tuple(resolved) if resolved else ())

    def pinned(self, lm: LM) -> LM:
        """The LM that is pinned to a node, as it is asked in a run with this LM: `lm` itself here,
        and `lm` with the same learned prompts where this has some. The same object each time."""
        return lm

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge what a run has used before to the budgets around this LM: none here."""

    async def reject(self, prompt: Prompt) -> None:
        """Called when the answer to this prompt was not valid: a cache forgets it."""

    async def aclose(self) -> None:
        """Close connections. When the backend is used again, it opens new ones."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({repr(self.model) if self.model else ''})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
        *,
        scene: Scene | None = None,
    ) -> N:
        """Have the model fill the plain fields of `target`; wrong ones are asked for again."""
        here = scene or scene_around.get()
        return await ask_to_fill(self, target, resolved, instruction, source, here)

    async def choose_type(
        self,
        types: Sequence[NodeOrEnd],
        context: Mapping[str, Any],
        *,
        scene: Scene | None = None,
    ) -> NodeOrEnd:
        """Have the model choose one of `types` by name; a single type needs no call."""
        here = scene or scene_around.get()
        chosen, _ = await ask_to_choose(self, types, context=context, scene=here)
        return chosen

    async def make(self, node: Node, target: type[N], *, scene: Scene | None = None) -> N:
        """Build a `target` from what `node` holds."""
        here, instruction = scene or scene_around.get(), plan_of(target).instruction
        return await ask_lm(self, "fill", here, target, {}, instruction, node)

    async def decide(self, node: Node, *, scene: Scene | None = None) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        plan, here = plan_of(type(node), strict=True), scene or scene_around.get()
        chosen, filled = await ask_lm(self, "route", here, node, plan.offered, plan.successors)
        if chosen is NoneType or filled is not None:
            return filled
        return await ask_lm(self, "make", here, node, chosen)

    async def route(
        self,
        node: Node,
        types: Sequence[NodeOrEnd],
        fillable: Sequence[type[Node]] = (),
        resolved: Resolved | None = None,
        *,
        scene: Scene | None = None,
    ) -> tuple[NodeOrEnd, Node | None]:
        """Choose one of `types` as the successor of `node`, and fill it in the same call where it
        is among `fillable` and the model can. `resolved` has the values for those of `fillable`
        that need some first. The second value is None where the chosen one is still to be
        filled."""
        here = scene or scene_around.get()
        if type(self).choose_type is not Backend.choose_type:  # it has its own way to choose
            shown = shown_values(node, here.hidden)
            return await ask_lm(self, "choose_type", here, types, shown), None
        return await ask_to_choose(
            self, types, node, fillable=fillable, resolved=resolved, scene=here
        )


def check_positive(backend: Backend, **given: float) -> None:
    """Raise where an argument of a backend, such as a number of seconds, is not above 0."""
    for name, value in given.items():
        if not value > 0:
            raise ValueError(f"{type(backend).__name__}({name}={value!r}): give a number above 0")


async def ask_to_fill(
    backend: Backend,
    target: type[N],
    resolved: Mapping[str, Any],
    instruction: str,
    previous: Node | None,
    scene: Scene,
    first: tuple[Prompt, Answer, dict[str, Any] | Wrong] | None = None,
    before: Sequence[Attempt] = (),
) -> N:
    """A `target` whose plain fields the model has filled.

    `first` is an answer that is there already, from a choice that came filled, with the values in
    it, and `before` are the attempts at that choice: they count.
    """
    if first is None and offers_tools(target):
        from bae.toolbox import toolbox_of

        box = toolbox_of(target, resolved, scene)
        if box is not None and backend.runs_tools:
            from bae.lm.tool_loop import fill_with_tools

            return await fill_with_tools(
                backend, target, resolved, instruction, previous, scene, box
            )
    asked = wanted = asked_fields(target)
    if not asked and scene.toolbox is None:
        return from_resolved(target, resolved)
    kept: dict[str, Any] = {}
    tried = list(before)
    corrections: tuple[Correction, ...] = ()
    while True:
        if first is not None:
            prompt, answer, found = first
            first = None
        else:
            prompt = fill_prompt(
                target, wanted, resolved, instruction, previous, scene, corrections
            )
            answer = await ask(backend, prompt)
            if type(answer.value) is target:  # from an LM that builds nodes by itself
                tell(attempt(len(tried) + 1, prompt, answer))
                return with_resolved(answer.value, resolved)
            found = read_fill(prompt, answer)
        if not isinstance(found, Wrong):
            for name in wanted:
                if name in found:
                    kept[name] = found[name]
            built = build(target, asked, kept, resolved, scene)
            if not isinstance(built, Wrong):
                tell(attempt(len(tried) + 1, prompt, answer))
                return built
            found, wanted = built, built.fields
            kept = {name: value for name, value in kept.items() if name not in wanted}
        if not await asks_again(backend, prompt, answer, found, tried):
            raise fill_failed(target, tried, found.cause)
        form = text_form(target)
        again = correction(tried[-1], (), form) if form else correction(tried[-1], wanted)
        corrections = (*corrections, again)


async def ask_to_choose(
    backend: Backend,
    types: Sequence[NodeOrEnd],
    previous: Node | None = None,
    *,
    context: Mapping[str, Any] | None = None,
    fillable: Sequence[type[Node]] = (),
    resolved: Resolved | None = None,
    scene: Scene,
) -> tuple[NodeOrEnd, Node | None]:
    """One of `types`, chosen by name, and the node itself where it came filled. A single type needs
    no call."""
    if not types:
        raise ValueError("there is nothing to choose from: give choose_type one type or more")
    if len(types) == 1:
        return types[0], None
    choice = backend.offer(previous, types, fillable, resolved)
    tried: list[Attempt] = []
    corrections: tuple[Correction, ...] = ()
    while True:
        prompt = choice.prompt(previous, context, resolved, scene, corrections)
        answer = await ask(backend, prompt)
        found = read(answer)
        if not isinstance(found, Wrong):
            got = read_choice(choice, found)
            if not isinstance(got, Wrong):
                chosen, fields = got
                if fields is None:
                    tell(attempt(len(tried) + 1, prompt, answer))
                    return chosen, None
                target = cast("type[Node]", chosen)
                first = prompt, answer, fields
                instruction = plan_of(target).instruction
                known = (resolved or _NOTHING).get(target, _NOTHING)
                node = await ask_to_fill(
                    backend, target, known, instruction, previous, scene, first, tried
                )
                return target, node
            found = got
        if not await asks_again(backend, prompt, answer, found, tried):
            raise choice_failed(choice.names, previous, tried)
        corrections = (*corrections, correction(tried[-1], ()))


async def asks_again(
    backend: Backend, prompt: Prompt, answer: Answer, wrong: Wrong, tried: list[Attempt]
) -> bool:
    """Record an answer that is wrong, and say whether the model is asked again."""
    tried.append(attempt(len(tried) + 1, prompt, answer, wrong))
    tell(tried[-1])
    await backend.reject(prompt)
    return len(tried) <= backend.attempts and wrong.verdict != "refused"
