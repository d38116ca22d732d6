"""The `LM` protocol: what a graph asks of a language model. Backends implement it; the runner and
written bodies use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import CoroutineType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)

if TYPE_CHECKING:
    from bae.node import Node
    from bae.prompts.messages import Prompt
    from bae.prompts.questions import Choice
    from bae.secrets import Copies
    from bae.toolbox import Toolbox
    from bae.usage import Usage

    Shown = Literal["previous", "start", "trace"] | type[Node] | tuple[type[Node], ...]
    """Which nodes a question shows: the setting `context` of `Graph` and `NodeConfig`."""

    Origins = Mapping[str, tuple[Node, str]]
    """The nodes that the values of fields were recalled from, each with its field there; an empty
    field is the node itself."""

N = TypeVar("N", bound="Node")


@runtime_checkable
class LM(Protocol):
    """Four async methods. Annotate a parameter of a written body, or of a dependency, with `LM`
    to be given the one of the run."""

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from what `node` holds."""
        ...

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        ...

    async def choose_type(
        self, types: Sequence[type[Node] | type[None]], context: Mapping[str, Any]
    ) -> type[Node] | type[None]:
        """Choose one of `types`, and nothing else; `type(None)`, where offered, ends the run."""
        ...

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        """Fill the plain fields of `target` and build it together with the `resolved` ones.

        Build it by calling the class, `target(**resolved, **answer)`: that runs the model's own
        validation, and leaves out what is resolved after the answer. `source` is the previous node.
        """
        ...


class RoutingLM(ABC):
    """An LM that can choose and fill in one request, and that says how the LMs pinned to nodes are
    asked. Every `bae.lm.Backend` is one. It is a base class, since another LM may have methods of
    the same names that do something else."""

    keeps_resolved: ClassVar[bool] = False
    """Whether `fill` leaves the fields alone that were resolved. Otherwise the run checks."""

    calls_tools: bool = True
    """Whether the model has native tool calls. Without it, the tools are in the question."""

    native_tools: frozenset[str] | None = None
    """The names of the tools that the provider itself runs; None where any name will do."""

    takes_files: frozenset[str] = frozenset({"image", "document"})
    """The kinds of files that the model is known to take, or not known to refuse."""

    def find_refuser(self, kind: str) -> RoutingLM | None:
        """The LM that takes no files of a kind: this one, or one inside it. None where there is no
        such LM."""
        return None if kind in self.takes_files else self

    @abstractmethod
    async def route(
        self,
        node: Node,
        types: Sequence[type[Node] | type[None]],
        fillable: Sequence[type[Node]] = (),
        resolved: Mapping[type[Node], Mapping[str, Any]] | None = None,
        *,
        scene: Scene | None = None,
    ) -> tuple[type[Node] | type[None], Node | None]:
        """Choose one of `types` as the successor of `node`. The second value is the chosen node,
        filled, or None where it is still to be filled. `resolved` has the values that those of
        `fillable` need first, where they need some; it is given where there are any. `scene` is
        what the question shows besides; it is that of the run around it where none is given."""

    def offer(
        self,
        node: Node | None,
        types: Sequence[type[Node] | type[None]],
        fillable: Sequence[type[Node]] = (),
        resolved: Mapping[type[Node], Mapping[str, Any]] | None = None,
    ) -> Choice:
        """The choice that `route` asks for: none of its options comes filled, unless an LM says
        otherwise."""
        from bae.prompts.questions import choice_of

        return choice_of(tuple(types), ())

    def with_learned(self, prompt: Prompt) -> Prompt:
        """The prompt as this LM sends it: with what was learned for it, where there is such."""
        return prompt

    @abstractmethod
    def pinned(self, lm: LM) -> LM:
        """The LM to ask where `lm` is pinned to a node. The same object each time."""

    @abstractmethod
    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge what a run has used before to the budgets around this LM."""


class SpendingLimit(ABC):
    """What limits the LM calls made in a context, such as a budget whose block was entered."""

    @abstractmethod
    def charge(self, lm: LM) -> LM:
        """The LM to ask in place of `lm`, so that its calls are charged."""

    @abstractmethod
    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge what a run has used before."""


spending_limit: ContextVar[SpendingLimit | None] = ContextVar("bae_spending_limit", default=None)
"""The limit in force here; None where nothing is limited."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a question shows beyond the previous node and the node that is asked for, and what its
    answer must be.

    `system` is the system text of the graph; None is bae's own. `shown` are the earlier nodes that
    the setting `context` names, the oldest first, without the `omitted` ones, which would be too
    much text. `hidden` are the fields of each class that may hold a copy of a secret; None for
    none. `unstorable` says which fields of a filled node cannot be stored, and why: such an answer
    is wrong, and is asked for again. It is None where a run stores nothing. `origins` are the nodes
    of the trace, and their fields, that recalled values of a class come from: a value is shown
    once. `toolbox` has the tools that the model may call before it answers.
    """

    system: str | None = None
    shown: tuple[Node, ...] = ()
    omitted: int = 0
    hidden: Copies | None = None
    unstorable: Callable[[Node], Mapping[str, str]] | None = None
    origins: Mapping[type[Node], Origins] | None = None
    toolbox: Toolbox | None = None

    def storing(self, unstorable: Callable[[Node], Mapping[str, str]] | None) -> Scene:
        """The scene of questions whose answers are stored, where there is an `unstorable`."""
        if unstorable is None:
            return self
        return Scene(
            *(self.system, self.shown, self.omitted, self.hidden),
            *(unstorable, self.origins, self.toolbox),
        )

    def recalling(self, origins: Mapping[type[Node], Origins] | None) -> Scene:
        """The scene of a question about classes whose values are recalled from these nodes."""
        return Scene(
            *(self.system, self.shown, self.omitted, self.hidden),
            *(self.unstorable, origins, self.toolbox),
        )

    def offering(self, toolbox: Toolbox | None) -> Scene:
        """The scene of a question whose answer may call tools first, where there is a toolbox."""
        return Scene(
            *(self.system, self.shown, self.omitted, self.hidden),
            *(self.unstorable, self.origins, toolbox),
        )


PLAIN_SCENE = Scene()
scene_around: ContextVar[Scene] = ContextVar("bae_scene", default=PLAIN_SCENE)
"""The scene of a question for which none is given: that of the run around it. A body may ask an LM
of its own, and an LM of the caller's own may pass on what it is asked."""


@contextmanager
def in_scene(own: Scene) -> Generator[None]:
    """Have what is asked in the block asked in this scene, where none is given."""
    token = scene_around.set(own)
    try:
        yield
    finally:
        scene_around.reset(token)


def ask_lm(lm: LM, method: str, scene: Scene, *given: Any, **named: Any) -> Awaitable[Any]:
    """Call one of the methods of an LM for a question in a scene. LMs of bae take the scene as an
    argument; for another one, and the LMs that it asks, it is the scene around the call."""
    call: Any = getattr(lm, method)
    if "scene" in (getattr(call, "__kwdefaults__", None) or ()):
        asking: Awaitable[Any] = call(*given, scene=scene, **named)
        if type(cast(object, asking)) is CoroutineType:  # nearly always
            return asking
        from bae.failures import awaitable

        return awaitable(asking, lm, method)
    return _ask_around(lm, method, scene, call, given, named)


async def _ask_around(
    lm: LM, method: str, scene: Scene, call: Any, given: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    from bae.failures import awaitable

    with in_scene(scene):
        return await awaitable(call(*given, **named), lm, method)


def with_limit(lm: LM) -> LM:
    """The LM, with its calls charged to the limit in force where there is one."""
    limit = spending_limit.get()
    return lm if limit is None else limit.charge(lm)


def is_lm(value: object) -> bool:
    """Whether an object has the four methods. A check with isinstance takes longer than a short
    run."""
    return all(hasattr(value, name) for name in METHODS)


METHODS: Final = ("make", "decide", "choose_type", "fill")
"""What every LM has."""
