"""The `LM` protocol: the methods of a language model that a graph calls. Backends implement it; the
runner and written bodies use it."""

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
    """The origin of each recalled field: a node of the trace, and the name of its field. The name
    is empty if the value is the node itself."""

N = TypeVar("N", bound="Node")


@runtime_checkable
class LM(Protocol):
    """A language model with four async methods. Annotate a parameter of a written body, or of a
    dependency, with `LM` to get the LM of the run."""

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from the fields of `node`."""
        ...

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        ...

    async def choose_type(
        self, types: Sequence[type[Node] | type[None]], context: Mapping[str, Any]
    ) -> type[Node] | type[None]:
        """Choose one of `types` and build nothing. `type(None)`, if offered, ends the run."""
        ...

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        """Fill the plain fields of `target` and build it together with the `resolved` fields.

        Build it by calling the class, `target(**resolved, **answer)`. The call validates the
        values, and leaves out fields that are resolved after the answer. `source` is the previous
        node.
        """
        ...


class RoutingLM(ABC):
    """An LM that can choose and fill in one request, and that wraps the LMs pinned to nodes. Every
    `bae.lm.Backend` is a `RoutingLM`. It is a base class, not a protocol, since another LM may have
    methods of the same names that do something else."""

    keeps_resolved: ClassVar[bool] = False
    """Whether `fill` leaves resolved fields unchanged. Otherwise the run checks that."""

    calls_tools: bool = True
    """Whether the model has native tool calls. Without them, the tools are in the question."""

    native_tools: frozenset[str] | None = None
    """The names of the tools that the provider itself runs; None if any name is allowed."""

    takes_files: frozenset[str] = frozenset({"image", "document"})
    """The kinds of files that the model may take: all kinds, except those it is known to refuse."""

    def find_refuser(self, kind: str) -> RoutingLM | None:
        """The LM that takes no files of a kind: this LM, or an LM inside it. None if there is no
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
        """Choose one of `types` as the successor of `node`. Returns the type and the filled node.
        The node is None if it is still to be filled. `resolved` has the values that the classes in
        `fillable` depend on, if there are such values. `scene` has the other contents of the
        question. The default is the scene of the run around the call."""

    def offer(
        self,
        node: Node | None,
        types: Sequence[type[Node] | type[None]],
        fillable: Sequence[type[Node]] = (),
        resolved: Mapping[type[Node], Mapping[str, Any]] | None = None,
    ) -> Choice:
        """The choice that `route` asks for. By default, the answer fills none of the options."""
        from bae.prompts.questions import choice_of

        return choice_of(tuple(types), ())

    def with_learned(self, prompt: Prompt) -> Prompt:
        """The prompt as this LM sends it: with its learned prompts, if it has any."""
        return prompt

    @abstractmethod
    def pinned(self, lm: LM) -> LM:
        """The LM to ask if `lm` is pinned to a node. The same object each time."""

    @abstractmethod
    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the usage of a run so far to the budgets around this LM."""


class SpendingLimit(ABC):
    """A limit on the LM calls made in a context, such as a budget whose block was entered."""

    @abstractmethod
    def charge(self, lm: LM) -> LM:
        """The LM to ask in place of `lm`, so that its calls are charged."""

    @abstractmethod
    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the usage of a run so far."""


spending_limit: ContextVar[SpendingLimit | None] = ContextVar("bae_spending_limit", default=None)
"""The limit in force here; None if nothing is limited."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a question shows besides the previous node and the requested node, and the requirements
    on its answer.

    `system` is the system text of the graph; None is bae's own. `shown` are the earlier nodes that
    the setting `context` names, the oldest first. `omitted` is the number of such nodes that were
    left out, because the text would be too long. `hidden` are the fields of each class that may
    hold a copy of a secret; None if there are none. `unstorable` returns the fields of a filled
    node that cannot be stored, with the reasons. The LM is asked for these fields again.
    `unstorable` is None if the run stores nothing. `origins` has the nodes and fields from which
    values of a class were recalled, so that the question shows each value once. `toolbox` has the
    tools that the model may call before it answers.
    """

    system: str | None = None
    shown: tuple[Node, ...] = ()
    omitted: int = 0
    hidden: Copies | None = None
    unstorable: Callable[[Node], Mapping[str, str]] | None = None
    origins: Mapping[type[Node], Origins] | None = None
    toolbox: Toolbox | None = None

    def storing(self, unstorable: Callable[[Node], Mapping[str, str]] | None) -> Scene:
        """This scene with `unstorable`. Without `unstorable`, the scene itself."""
        if unstorable is None:
            return self
        return Scene(
            *(self.system, self.shown, self.omitted, self.hidden),
            *(unstorable, self.origins, self.toolbox),
        )

    def recalling(self, origins: Mapping[type[Node], Origins] | None) -> Scene:
        """This scene with the origins of the values that were recalled."""
        return Scene(
            *(self.system, self.shown, self.omitted, self.hidden),
            *(self.unstorable, origins, self.toolbox),
        )

    def offering(self, toolbox: Toolbox | None) -> Scene:
        """This scene with the tools that the model may call before it answers."""
        return Scene(
            *(self.system, self.shown, self.omitted, self.hidden),
            *(self.unstorable, self.origins, toolbox),
        )


PLAIN_SCENE = Scene()
scene_around: ContextVar[Scene] = ContextVar("bae_scene", default=PLAIN_SCENE)
"""The scene of the run in progress. A question without a scene of its own gets this scene. Such
questions come from a body that asks another LM, or from an LM that passes on its questions."""


@contextmanager
def in_scene(own: Scene) -> Generator[None]:
    """Use this scene for questions in the block that have no scene of their own."""
    token = scene_around.set(own)
    try:
        yield
    finally:
        scene_around.reset(token)


def ask_lm(lm: LM, method: str, scene: Scene, *given: Any, **named: Any) -> Awaitable[Any]:
    """Call a method of an LM for a question in a scene. LMs of bae take the scene as an argument.
    For any other LM, and for the LMs that it asks, `scene_around` is set to the scene."""
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
    """Whether an object has the four methods. An isinstance check takes longer than a short run."""
    return all(hasattr(value, name) for name in METHODS)


METHODS: Final = ("make", "decide", "choose_type", "fill")
"""The methods of every LM."""
