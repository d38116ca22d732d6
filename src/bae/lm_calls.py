"""How the methods of an LM are called: with the scene of the question, where they take one."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from bae.failures import awaitable
from bae.language_model import in_scene

if TYPE_CHECKING:
    from bae.language_model import LM, Scene


def ask_lm(lm: LM, method: str, scene: Scene, *given: Any, **named: Any) -> Awaitable[Any]:
    """Call one of the methods of an LM for a question in a scene. LMs of bae take the scene as an
    argument; for another one, and the LMs that it asks, it is the scene around the call."""
    call: Any = getattr(lm, method)
    if "scene" in (getattr(call, "__kwdefaults__", None) or ()):
        asking: Awaitable[Any] = call(*given, scene=scene, **named)
        if type(cast(object, asking)) is CoroutineType:  # nearly always
            return asking
        return awaitable(asking, lm, method)
    return _ask_around(lm, method, scene, call, given, named)


async def _ask_around(
    lm: LM, method: str, scene: Scene, call: Any, given: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    with in_scene(scene):
        return await awaitable(call(*given, **named), lm, method)
