"""Questions to an LM of DSPy's with settings that no request of its own engine can carry: the
credentials of a cloud, the options of a server, whatever LiteLLM knows. They are asked by messages,
as DSPy's adapters ask, and answered as all others are. `dspy_adapter.py` asks by it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from bae.lm.dspy_package import load_dspy

_dspy = load_dspy("JSONSchemaAdapter")


@dataclass(slots=True)
class Asked:
    """An LM to ask by `messages`, and after that its `response`."""

    lm: Any
    messages: list[dict[str, Any]]
    kept: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def response(self) -> Any:
        """What was answered, in the form in which DSPy answers a request."""
        lm15 = _dspy.lm15
        raw = self.kept[0]["response"]
        if isinstance(raw, lm15.Response):
            return raw
        bare = lm15.request_from_openai_chat({"model": self.lm.model, "messages": self.messages})
        boundary: Any = import_module("dspy.clients.lm15_boundary")
        response: Any = boundary.response_value(raw, self.lm.model_type, bare)
        if getattr(raw, "cache_hit", False):
            response = replace(response, usage=lm15.Usage(input_tokens=0, output_tokens=0))
        return response


@contextmanager
def by_messages(lm: Any, messages: list[dict[str, Any]]) -> Generator[Asked]:
    """A copy of an LM that keeps what it is answered. The original hears of it too, where it keeps
    a history."""
    adapters: Any = import_module("dspy.adapters.base")
    copy = lm.copy()
    for name in ("n", "num_generations"):  # each answer is asked for by itself
        copy.kwargs.pop(name, None)
    asked = Asked(copy, messages)
    copy.update_history = asked.kept.append
    # What is answered besides the text, as why it ended, is told to the history alone.
    with adapters.adapter_message_call(copy, messages), _dspy.context(disable_history=False):
        yield asked
    if not _dspy.settings.disable_history:
        for entry in asked.kept:
            lm.update_history(entry)


def can_be_carried(settings: Mapping[str, Any]) -> bool:
    """Whether a request can carry what an LM is set to."""
    body = {"model": "any", "messages": [{"role": "user", "content": "any"}], **settings}
    try:
        _dspy.lm15.request_from_openai_chat(body)
    except _dspy.lm15.UnsupportedFeatureError:
        return False
    except (TypeError, ValueError):  # the question itself will tell
        return True
    return True
