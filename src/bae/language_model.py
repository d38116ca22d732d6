"""The `LM` protocol: the methods of a language model that a graph calls. Backends implement these
methods; runs and written bodies call them."""

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
    """A language model with four async methods. To use the LM of the run in a written body or a
    dependency, annotate a parameter with `LM`."""

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from the fields of `node`."""
        ...

    async def decide(self, node: Node) -> Node | None:
        """Choose a successor of `node` and build it. Return None to end the run."""
        ...

    async def choose_type(
        self, types: Sequence[type[Node] | type[None]], context: Mapping[str, Any]
    ) -> type[Node] | type[None]:
        """Choose one of `types`, without building a node. If `types` contains `type(None)`, the LM
        may choose it to end the run."""
        ...

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        """Fill the plain fields of `target` and build it together with the `resolved` fields.

        Call the class to build the node: `target(**resolved, **answer)`. The call validates the
        values. Fields that bae resolves after the answer may be missing. `source` is the previous
        node.
        """
        ...


class RoutingLM(ABC):
    """An LM that can choose and fill in one request, and that wraps the LMs pinned to nodes. Every
    `bae.lm.Backend` is a `RoutingLM`.

    This is a base class and not a protocol, because an unrelated LM may have methods with the same
    names.
    """

    keeps_resolved: ClassVar[bool] = False
    """Whether `fill` is sure to leave the resolved fields unchanged. If not, the run checks
    them."""

    calls_tools: bool = True
    """Whether the model has native tool calls. If not, the text of the question describes the
    tools."""

    native_tools: frozenset[str] | None = None
    """The names of the tools that the provider itself can run. None allows any name."""

    takes_files: frozenset[str] = frozenset({"image", "document"})
    """The kinds of files that bae sends to the model. A kind is missing only if the model is known
    to refuse it."""

    def find_refuser(self, kind: str) -> RoutingLM | None:
        """Return the LM that refuses files of a kind: this LM or an LM inside it. None if no LM
        refuses them."""
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
        """Choose one of `types` as the successor of `node`. Return the class and the filled node,
        or the class and None if the answer only chooses.

        The same answer may fill a class in `fillable`. For these classes, `resolved` has the values
        of fields that are resolved already. `scene` has the other contents of the question. The
        default is the scene of the run around the call.
        """

    def offer(
        self,
        node: Node | None,
        types: Sequence[type[Node] | type[None]],
        fillable: Sequence[type[Node]] = (),
        resolved: Mapping[type[Node], Mapping[str, Any]] | None = None,
    ) -> Choice:
        """Return the choice that `route` asks for. By default, the answer only chooses and fills no
        option."""
        from bae.prompts.questions import choice_of

        return choice_of(tuple(types), ())

    def with_learned(self, prompt: Prompt) -> Prompt:
        """Return the prompt as this LM sends it, with the learned prompts of this LM, if any."""
        return prompt

    @abstractmethod
    def pinned(self, lm: LM) -> LM:
        """Return the LM to ask if `lm` is pinned to a node: `lm` with the policies or the learned
        prompts of this LM. The same `lm` gives the same object each time."""

    @abstractmethod
    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the usage and the duration of a run so far to the budgets around this LM."""


class SpendingLimit(ABC):
    """A limit on the LM calls made in a context, such as in the block of a budget."""

    @abstractmethod
    def charge(self, lm: LM) -> LM:
        """Return the LM to ask in place of `lm`. Its calls count against the limit."""

    @abstractmethod
    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Charge the usage and the duration of a run so far."""


spending_limit: ContextVar[SpendingLimit | None] = ContextVar("bae_spending_limit", default=None)
"""The active limit on LM calls; None if there is no limit."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The contents of a question besides the previous node and the requested node."""

    system: str | None = None
    """The system text of the graph. None stands for bae's own."""
    shown: tuple[Node, ...] = ()
    """The earlier nodes that the setting `context` names, the oldest first."""
    omitted: int = 0
    """The number of earlier nodes that were left out, because the text would be too long."""
    hidden: Copies | None = None
    """The fields of each class that may hold a copy of a secret. None if there are none."""
    unstorable: Callable[[Node], Mapping[str, str]] | None = None
    """Returns the fields of a filled node that cannot be stored, with the reasons. The LM is asked
    for these fields again. None if the run stores nothing."""
    origins: Mapping[type[Node], Origins] | None = None
    """The origins of recalled values, by class. The question shows a recalled value only once."""
    toolbox: Toolbox | None = None
    """The tools that the model may call before it answers."""

    def storing(self, unstorable: Callable[[Node], Mapping[str, str]] | None) -> Scene:
        """Return this scene with `unstorable`, or the scene itself if `unstorable` is None."""
        if unstorable is None:
            return self
        return Scene(
            *(self.system, self.shown, self.omitted, self.hidden),
            *(unstorable, self.origins, self.toolbox),
        )

    def recalling(self, origins: Mapping[type[Node], Origins] | None) -> Scene:
        """Return this scene with the origins of recalled values."""
        return Scene(
            *(self.system, self.shown, self.omitted, self.hidden),
            *(self.unstorable, origins, self.toolbox),
        )

    def offering(self, toolbox: Toolbox | None) -> Scene:
        """Return this scene with the tools that the model may call before it answers."""
        return Scene(
            *(self.system, self.shown, self.omitted, self.hidden),
            *(self.unstorable, self.origins, toolbox),
        )


PLAIN_SCENE = Scene()
scene_around: ContextVar[Scene] = ContextVar("bae_scene", default=PLAIN_SCENE)
"""The scene of the run in progress. A question without a scene of its own gets this scene, such as
a question from a body to an LM other than the run's."""


@contextmanager
def in_scene(own: Scene) -> Generator[None]:
    """Use the scene `own` for questions in the block that have no scene of their own."""
    token = scene_around.set(own)
    try:
        yield
    finally:
        scene_around.reset(token)


def ask_lm(lm: LM, method: str, scene: Scene, *arguments: Any, **keywords: Any) -> Awaitable[Any]:
    """Call a method of an LM for a question in a scene.

    If the method has a parameter `scene`, as in bae's own LMs, the scene is an argument. Otherwise
    `scene_around` is set to the scene during the call.
    """
    call: Any = getattr(lm, method)
    if "scene" in (getattr(call, "__kwdefaults__", None) or ()):
        answer: Awaitable[Any] = call(*arguments, scene=scene, **keywords)
        if type(cast(object, answer)) is CoroutineType:  # nearly always
            return answer
        from bae.failures import check_awaitable

        return check_awaitable(answer, lm, method)
    return _ask_in_scene(lm, method, scene, call, arguments, keywords)


async def _ask_in_scene(
    lm: LM,
    method: str,
    scene: Scene,
    call: Any,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Any:
    from bae.failures import check_awaitable

    with in_scene(scene):
        return await check_awaitable(call(*arguments, **keywords), lm, method)


def with_limit(lm: LM) -> LM:
    """Return the LM to ask in place of `lm`, so that its calls count against the active limit. If
    there is no limit, return `lm`."""
    limit = spending_limit.get()
    return lm if limit is None else limit.charge(lm)


def is_lm(value: object) -> bool:
    """Whether an object has the methods of an LM. `isinstance` would take longer than a short
    run."""
    return all(hasattr(value, name) for name in METHODS)


METHODS: Final = ("make", "decide", "choose_type", "fill")
"""The methods of every LM."""
