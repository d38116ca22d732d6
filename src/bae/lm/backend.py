"""The base class of backends. A subclass writes one method, `answer`, which asks a model once. The
base class fills and chooses nodes with `answer`. It validates each answer, keeps the valid fields,
and asks for the invalid fields again, a limited number of times."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from bae.draft import from_resolved, set_resolved_values
from bae.language_model import RoutingLM, ask_lm, scene_around
from bae.lm.answers import (
    Wrong,
    attempt,
    build,
    choice_error,
    correction,
    fill_error,
    read_choice,
    read_fill,
    read_json,
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
from bae.prompts.values import list_fields_to_fill, offers_tools
from bae.secrets import mask_values
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
    """The base class of language models. Subclass it and write `answer`.

    The four methods of `bae.LM` (`fill`, `choose_type`, `make` and `decide`) call `answer`. If you
    override one of the four, policies call your method instead of `answer`.
    """

    model: str = ""
    """The provider's name for the model."""

    answers_unions: bool = True
    """Whether the model can follow a schema with alternatives. One-call routing needs such a
    schema."""

    attempts: int = 2
    """How often bae sends an invalid answer back to the model with its errors."""

    retries: int = 2
    """How often bae sends a failed request again, if that can help. A request that timed out is not
    sent again. Wrap the backend in `bae.lm.Retry` to repeat such requests too, and for more
    options."""

    first_wait: float = 0.5
    """Seconds until bae first sends a failed request again. Later waits are longer."""

    calls_tools: bool = False
    """Whether `answer` sends `prompt.tools` and returns the model's calls in `Answer.calls`. If
    False, the model calls tools by structured output."""

    runs_tools: bool = True
    """Whether bae runs the tool loop. An adapted LM runs its own tool loop."""

    context_window: int | None = None
    """The most tokens that a request may have, or None if unknown. bae shortens a longer
    conversation with tools."""

    native_tools: frozenset[str] | None = frozenset()
    """The tools that the provider itself runs, by their names in `bae.Native`. None allows any
    name."""

    takes_files: frozenset[str] = frozenset()
    """The kinds of files that `answer` can send: "image", "document" or both. If a prompt has
    another kind of file, bae raises `BaeLMError` before it calls `answer`."""

    file_limits: FileLimits = DEFAULT_LIMITS
    """The limits on the number and size of a request's files. bae checks them before it calls
    `answer`."""

    one_call: bool = True
    """Whether one request may choose the next node and fill it."""

    free: bool = False
    """Whether all requests cost nothing, including failed requests. True for a model on this
    machine."""

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
        """Send the prompt to the model once, and return its answer.

        Return an invalid answer as it is: bae validates it. If there is no answer, raise
        `BaeLMError` with what you know of `retryable`, `retry_after` and `usage`. If no request was
        sent, pass `sent=False`.
        """

    async def request(self, prompt: Prompt) -> Answer:
        """Call `answer` once and charge the active budgets. Policies and the other methods of a
        backend send every request with this method."""
        return await send(self, prompt)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that change answers, as JSON values. A cache key has the settings, the
        prompt and the model."""
        return {}

    @property
    def secrets(self) -> Iterable[str]:
        """The API keys that this backend sends. bae masks them in errors and answers, because a
        provider or a proxy may repeat a key."""
        return ()

    def least_cost(self, usage: Usage) -> float | None:
        """Return the lowest cost of a request with this usage, in dollars. None if the cost will
        stay unknown.

        A budget with a limit on cost calls this method before each request. Override it if your
        backend reports the cost of its answers. For a free backend, set `free`.
        """
        from bae.lm.prices import cost_of

        return cost_of(self.model, usage) if self.model and not self.free else 0.0

    def at_once(
        self, previous: Node | None, fillable: Sequence[type[Node]]
    ) -> Sequence[type[Node]]:
        """Return the types in `fillable` that the model may choose and fill in one answer, as
        successors of `previous`.

        By default, returns all types in `fillable`. Override this method to leave out types that
        the model fills in a separate call.
        """
        return fillable

    def offer(
        self,
        node: Node | None,
        types: Sequence[NodeOrEnd],
        fillable: Sequence[type[Node]] = (),
        resolved: Resolved | None = None,
    ) -> Choice:
        """Return the choice among `types` that this backend puts to the model. If the same call can
        fill a type in `fillable`, the choice includes the type's plain fields. `resolved` has the
        values of each type's fields with a source."""
        cls = type(self)
        is_overridden = cls.choose_type is not Backend.choose_type or cls.fill is not Backend.fill
        if not fillable or is_overridden or not self.one_call or not self.answers_unions:
            return choice_of(tuple(types), ())
        at_once = tuple(self.at_once(node, fillable))
        return choice_of(tuple(types), at_once, tuple(resolved) if resolved else ())

    def pinned(self, lm: LM) -> LM:
        """Return the LM to ask for a node that pins `lm`, in a run with this LM. It is `lm`, or
        `lm` with this LM's learned prompts. For the same `lm`, the result is always the same
        object."""
        return lm

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the earlier usage of a resumed run to the budgets around this LM. A backend has no
        budgets."""

    async def reject(self, prompt: Prompt) -> None:
        """Handle an invalid answer to this prompt. bae calls this method after each invalid answer,
        so that a cache deletes the answer."""

    async def aclose(self) -> None:
        """Close the connections. The backend opens new connections when it is used again."""

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
        """Have the model fill the plain fields of `target`, and build the node. bae asks for
        invalid fields again."""
        current_scene = scene or scene_around.get()
        return await ask_to_fill(self, target, resolved, instruction, source, current_scene)

    async def choose_type(
        self,
        types: Sequence[NodeOrEnd],
        context: Mapping[str, Any],
        *,
        scene: Scene | None = None,
    ) -> NodeOrEnd:
        """Have the model choose one of `types` by name. A single type needs no call."""
        current_scene = scene or scene_around.get()
        chosen, _ = await ask_to_choose(self, types, context=context, scene=current_scene)
        return chosen

    async def make(self, node: Node, target: type[N], *, scene: Scene | None = None) -> N:
        """Build a `target` from the fields of `node`."""
        here, instruction = scene or scene_around.get(), plan_of(target).instruction
        return await ask_lm(self, "fill", here, target, {}, instruction, node)

    async def decide(self, node: Node, *, scene: Scene | None = None) -> Node | None:
        """Choose among the successors of `node` and build the chosen node. None ends the run."""
        plan, current_scene = plan_of(type(node), strict=True), scene or scene_around.get()
        chosen, filled = await ask_lm(
            self, "route", current_scene, node, plan.offered, plan.successors
        )
        if chosen is NoneType or filled is not None:
            return filled
        return await ask_lm(self, "make", current_scene, node, chosen)

    async def route(
        self,
        node: Node,
        types: Sequence[NodeOrEnd],
        fillable: Sequence[type[Node]] = (),
        resolved: Resolved | None = None,
        *,
        scene: Scene | None = None,
    ) -> tuple[NodeOrEnd, Node | None]:
        """Choose one of `types` as the successor of `node`. If the model supports one-call routing,
        the same call fills the chosen type, provided that it is in `fillable`.

        `resolved` has the values of each type's fields with a source. Returns the chosen type and
        the node. The node is None if it still has to be filled.
        """
        current_scene = scene or scene_around.get()
        if type(self).choose_type is not Backend.choose_type:  # a subclass chooses in its own way
            shown = mask_values(node, current_scene.hidden)
            return await ask_lm(self, "choose_type", current_scene, types, shown), None
        return await ask_to_choose(
            self, types, node, fillable=fillable, resolved=resolved, scene=current_scene
        )


def check_positive(backend: Backend, **values: float) -> None:
    """Raise ValueError if an argument of a backend, such as a timeout, is not above 0."""
    for name, value in values.items():
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
    """Have the model fill the plain fields of `target`, and build the node.

    If one answer both chose and filled `target`, `first` has the prompt, the answer and the field
    values. `before` are the earlier attempts at this choice. They count as attempts at the fill.
    """
    if first is None and offers_tools(target):
        from bae.toolbox import toolbox_of

        box = toolbox_of(target, resolved, scene)
        if box is not None and backend.runs_tools:
            from bae.lm.tool_loop import fill_with_tools

            return await fill_with_tools(
                backend, target, resolved, instruction, previous, scene, box
            )
    asked = wanted = list_fields_to_fill(target)
    if not asked and scene.toolbox is None:
        return from_resolved(target, resolved)
    valid: dict[str, Any] = {}
    tried = list(before)
    corrections: tuple[Correction, ...] = ()
    while True:
        if first is not None:
            prompt, answer, fields = first
            first = None
        else:
            prompt = fill_prompt(
                target, wanted, resolved, instruction, previous, scene, corrections
            )
            answer = await ask(backend, prompt)
            if type(answer.value) is target:  # an adapted LM has built the node
                tell(attempt(len(tried) + 1, prompt, answer))
                return set_resolved_values(answer.value, resolved)
            fields = read_fill(prompt, answer)
        if isinstance(fields, Wrong):
            wrong = fields
        else:
            for name in wanted:
                if name in fields:
                    valid[name] = fields[name]
            built = build(target, asked, valid, resolved, scene)
            if not isinstance(built, Wrong):
                tell(attempt(len(tried) + 1, prompt, answer))
                return built
            wrong, wanted = built, built.fields
            valid = {name: value for name, value in valid.items() if name not in wanted}
        if not await record_wrong(backend, prompt, answer, wrong, tried):
            raise fill_error(target, tried, wrong.cause)
        form = text_form(target)
        next_correction = correction(tried[-1], (), form) if form else correction(tried[-1], wanted)
        corrections = (*corrections, next_correction)


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
    """Have the model choose one of `types` by name. A single type needs no call.

    Returns the chosen type and the node. The node is None if the answer did not fill the type.
    """
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
        parsed = read_json(answer)
        if not isinstance(parsed, Wrong):
            parsed = read_choice(choice, parsed)
            if not isinstance(parsed, Wrong):
                chosen, fields = parsed
                if fields is None:
                    tell(attempt(len(tried) + 1, prompt, answer))
                    return chosen, None
                target = cast("type[Node]", chosen)
                first = prompt, answer, fields
                instruction = plan_of(target).instruction
                resolved_values = (resolved or _NOTHING).get(target, _NOTHING)
                node = await ask_to_fill(
                    backend, target, resolved_values, instruction, previous, scene, first, tried
                )
                return target, node
        if not await record_wrong(backend, prompt, answer, parsed, tried):
            raise choice_error(choice.names, previous, tried)
        corrections = (*corrections, correction(tried[-1], ()))


async def record_wrong(
    backend: Backend, prompt: Prompt, answer: Answer, wrong: Wrong, tried: list[Attempt]
) -> bool:
    """Record an invalid answer. Returns whether to ask the model again."""
    tried.append(attempt(len(tried) + 1, prompt, answer, wrong))
    tell(tried[-1])
    await backend.reject(prompt)
    return len(tried) <= backend.attempts and wrong.verdict != "refused"
