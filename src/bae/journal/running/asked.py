"""The LM that a written body or a dependency gets in a run with a journal: what it answers is kept,
so that a body which is called again after an interruption does not ask for it again. `keeper.py`
makes one for each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from time import time
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from bae.journal.node_codec import node_codec
from bae.lm.prompts import choice_prompt, fill_prompt, names_of
from bae.lm.schemas import asked_fields
from bae.node import Node
from bae.plan import plan_of
from bae.records import Asker, LMAnswered

if TYPE_CHECKING:
    from bae.journal.running.keeper import Keeper
    from bae.language_model import LM
    from bae.lm.backend import Prompt
    from bae.run import Run

N = TypeVar("N", bound=Node)
Method = Literal["make", "decide", "choose_type", "fill"]


class Asked:
    """Asks the LM of the run, except for what it has answered already to the same question, from
    the same place. What else the LM can do, it can do still."""

    def __init__(
        self, keeper: Keeper, run: Run, step: int, asker: Asker, lm: Callable[[], LM | None]
    ) -> None:
        self._keeper = keeper
        self._run = run
        self._step = step
        self._asker = asker
        self._find = lm

    async def make(self, node: Node, target: type[N]) -> N:
        """Build a `target` from what `node` holds."""
        prompt = fill_prompt(target, asked_fields(target), {}, target.__name__, node)
        return await self._answer("make", prompt, (target,), lambda lm: lm.make(node, target))

    async def decide(self, node: Node) -> Node | None:
        """Choose among the successors of `node` and build the chosen one; None to end the run."""
        offered = plan_of(type(node), strict=True).offered
        prompt = choice_prompt(names_of(offered), (), node, None)
        return await self._answer("decide", prompt, offered, lambda lm: lm.decide(node))

    async def choose_type(
        self, types: Sequence[type[Node] | type[None]], context: Mapping[str, Any]
    ) -> type[Node] | type[None]:
        """Choose one of `types`, and nothing else; `type(None)`, where offered, ends the run."""
        prompt = choice_prompt(names_of(types), (), None, context)
        return await self._answer(
            "choose_type", prompt, tuple(types), lambda lm: lm.choose_type(types, context)
        )

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> N:
        """Fill the plain fields of `target` and build it together with the `resolved` ones."""
        prompt = fill_prompt(target, asked_fields(target), resolved, instruction, source)
        return await self._answer(
            "fill",
            prompt,
            (target,),
            lambda lm: lm.fill(target, resolved, instruction, source=source),
        )

    async def _answer(
        self,
        method: Method,
        prompt: Prompt,
        types: Sequence[type[Node] | type[None]],
        ask: Callable[[LM], Awaitable[Any]],
    ) -> Any:
        target = types[0].__name__ if method in ("make", "fill") else ""
        asked = sha256(f"{prompt.system}\n{prompt.text}".encode()).hexdigest()[:16]
        known = self._keeper.asked(
            self._run, self._step, self._asker, method, asked, target, prompt
        )
        if known is not None:
            return _read(known, method, types)
        value = await ask(cast("LM", self._find()))
        await self._keeper.keep(
            self._run,
            LMAnswered(
                time(), self._run.path, self._step, self._asker, method, asked, target, value
            ),
        )
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._find(), name)

    def __repr__(self) -> str:
        return repr(self._find())


def _read(known: LMAnswered, method: Method, types: Sequence[type[Node] | type[None]]) -> Any:
    value = cast(Any, known.value)
    if not isinstance(value, dict):
        return value
    said = cast(dict[str, Any], value)
    if method == "choose_type":
        named = {None if cls is NoneType else cls.__name__: cls for cls in types}
        return named[said["class"]]
    cls = next(cls for cls in types if cls.__name__ == said["type"])
    return node_codec(cast("type[Node]", cls)).load(said)
