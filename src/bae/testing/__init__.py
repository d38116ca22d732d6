"""For tests, shipped: `ScriptedLM` answers a graph's questions without a model; `assert_prompt`
looks into what a model would be sent; `replaying` runs what was recorded once more; `Provider` is a
model provider on loopback for tests of real clients, with the faults that real providers have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bae.testing.scripted import Answerer, Asked, Scripted, ScriptedLM, ScriptError

if TYPE_CHECKING:
    from bae.testing.cassette import Recorded, replaying
    from bae.testing.faults import (
        Cut,
        Empty,
        Fault,
        Malformed,
        Overlong,
        Refusal,
        Stall,
        Status,
        WrongSchema,
    )
    from bae.testing.prompts import assert_prompt
    from bae.testing.provider import Provider, ThreadedProvider
    from bae.testing.samples import sample
    from bae.testing.wire import Received, tokens_in

__all__ = [
    "Answerer",
    "Asked",
    "Cut",
    "Empty",
    "Fault",
    "Malformed",
    "Overlong",
    "Provider",
    "Received",
    "Recorded",
    "Refusal",
    "ScriptError",
    "Scripted",
    "ScriptedLM",
    "Stall",
    "Status",
    "ThreadedProvider",
    "WrongSchema",
    "assert_prompt",
    "replaying",
    "sample",
    "tokens_in",
]

# A test with a ScriptedLM needs no server: what a provider is made of is imported when it is used.
_MODULES = {
    "Provider": "provider",
    "Received": "wire",
    "Recorded": "cassette",
    "ThreadedProvider": "provider",
    "assert_prompt": "prompts",
    "replaying": "cassette",
    "sample": "samples",
    "tokens_in": "wire",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bae.testing' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"bae.testing.{_MODULES.get(name, 'faults')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
