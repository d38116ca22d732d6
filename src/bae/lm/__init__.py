"""Language models behind one protocol: the backends, the policies around them, and the names they
go by. A name is imported when it is first used, and a backend's package when it is made."""

from typing import TYPE_CHECKING, Any

from bae.language_model import LM
from bae.usage import Attempt, Restart, Usage, metered, report, tell

if TYPE_CHECKING:
    from bae.lm.anthropic_backend import AnthropicBackend
    from bae.lm.backend import Answer, Backend, Prompt, Question, Shown, Turn
    from bae.lm.claude_cli import ClaudeCLIBackend
    from bae.lm.dspy_backend import DSPyBackend
    from bae.lm.local import LocalBackend
    from bae.lm.named import resolve
    from bae.lm.optimized import OptimizedLM
    from bae.lm.policies.budget import Budget, Budgeted
    from bae.lm.policies.cache import Cached
    from bae.lm.policies.cache_stores import MemoryCache, SQLiteCache
    from bae.lm.policies.concurrency import Concurrency
    from bae.lm.policies.policy import Policy
    from bae.lm.policies.rate import RateLimit
    from bae.lm.policies.retry import Retry
    from bae.lm.policies.taught import Lesson, LessonExample, Lessons, Taught
    from bae.lm.policies.timeout import Timeout
    from bae.lm.pydantic_ai_backend import PydanticAIBackend
    from bae.lm.signatures import node_to_signature

__all__ = [
    "LM",
    "Answer",
    "AnthropicBackend",
    "Attempt",
    "Backend",
    "Budget",
    "Budgeted",
    "Cached",
    "ClaudeCLIBackend",
    "Concurrency",
    "DSPyBackend",
    "Lesson",
    "LessonExample",
    "Lessons",
    "LocalBackend",
    "MemoryCache",
    "OptimizedLM",
    "Policy",
    "Prompt",
    "PydanticAIBackend",
    "Question",
    "RateLimit",
    "Restart",
    "Retry",
    "SQLiteCache",
    "Shown",
    "Taught",
    "Timeout",
    "Turn",
    "Usage",
    "metered",
    "node_to_signature",
    "report",
    "resolve",
    "tell",
]

_MODULES = {
    "Answer": "backend",
    "AnthropicBackend": "anthropic_backend",
    "Backend": "backend",
    "Budget": "policies.budget",
    "Budgeted": "policies.budget",
    "Cached": "policies.cache",
    "ClaudeCLIBackend": "claude_cli",
    "Concurrency": "policies.concurrency",
    "DSPyBackend": "dspy_backend",
    "Lesson": "policies.taught",
    "LessonExample": "policies.taught",
    "Lessons": "policies.taught",
    "LocalBackend": "local",
    "MemoryCache": "policies.cache_stores",
    "OptimizedLM": "optimized",
    "Policy": "policies.policy",
    "Prompt": "backend",
    "PydanticAIBackend": "pydantic_ai_backend",
    "Question": "backend",
    "RateLimit": "policies.rate",
    "Retry": "policies.retry",
    "SQLiteCache": "policies.cache_stores",
    "Shown": "backend",
    "Taught": "policies.taught",
    "Timeout": "policies.timeout",
    "Turn": "backend",
    "node_to_signature": "signatures",
    "resolve": "named",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'bae.lm' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"bae.lm.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
