"""Language models: backends, the policies that wrap them, and the names of LMs.

bae imports each module on first use, and a provider's package when you construct its backend.
"""

from typing import TYPE_CHECKING

from bae.language_model import LM
from bae.rooms import export_lazily
from bae.usage import Attempt, Discard, Restart, Thought, Usage, metered, report_usage, tell

if TYPE_CHECKING:
    from bae.lm.anthropic_backend import AnthropicBackend
    from bae.lm.backend import Backend
    from bae.lm.claude_cli import ClaudeCLIBackend
    from bae.lm.dspy_backend import DSPyBackend
    from bae.lm.file_limits import FileLimits
    from bae.lm.http import PerLoop, is_secret_name, remove_passwords
    from bae.lm.local import LocalBackend
    from bae.lm.optimized import OptimizedLM
    from bae.lm.policies.budget import Budget, Remaining
    from bae.lm.policies.cache import Cached
    from bae.lm.policies.cache_stores import CacheStore, MemoryCache, SQLiteCache
    from bae.lm.policies.fallback import Fallback
    from bae.lm.policies.learned import LearnedPrompt, NodePrompts, PromptExample, WithPrompts
    from bae.lm.policies.limits import Concurrency, RateLimit, RateStore
    from bae.lm.policies.policy import Budgeted, Policy, Retry, Timeout
    from bae.lm.policies.postgres_store import PostgresStore
    from bae.lm.prices import cost_of
    from bae.lm.pydantic_ai_backend import PydanticAIBackend
    from bae.lm.registry import check_lm_name, resolve
    from bae.lm.requests import Answer
    from bae.lm.signatures import node_to_signature
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

__all__ = [
    "LM",
    "Answer",
    "AnthropicBackend",
    "Attempt",
    "Backend",
    "Budget",
    "Budgeted",
    "CacheStore",
    "Cached",
    "CallPart",
    "ClaudeCLIBackend",
    "Concurrency",
    "Correction",
    "DSPyBackend",
    "Discard",
    "Fallback",
    "FewShot",
    "FileLimits",
    "FilePart",
    "LearnedPrompt",
    "LocalBackend",
    "MemoryCache",
    "Message",
    "NodePrompts",
    "OptimizedLM",
    "PerLoop",
    "Policy",
    "PostgresStore",
    "Prompt",
    "PromptExample",
    "PydanticAIBackend",
    "Question",
    "RateLimit",
    "RateStore",
    "Remaining",
    "Restart",
    "ResultPart",
    "Retry",
    "SQLiteCache",
    "TextPart",
    "Thought",
    "Timeout",
    "ToolSpec",
    "Usage",
    "WithPrompts",
    "check_lm_name",
    "cost_of",
    "is_secret_name",
    "metered",
    "node_to_signature",
    "remove_passwords",
    "report_usage",
    "resolve",
    "tell",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "anthropic_backend": "AnthropicBackend",
        "backend": (
            "Backend CallPart Correction FewShot FilePart Message Prompt Question ResultPart "
            "TextPart ToolSpec"
        ),
        "claude_cli": "ClaudeCLIBackend",
        "dspy_backend": "DSPyBackend",
        "file_limits": "FileLimits",
        "http": "PerLoop is_secret_name remove_passwords",
        "local": "LocalBackend",
        "optimized": "OptimizedLM",
        "policies.budget": "Budget Remaining",
        "policies.cache": "Cached",
        "policies.cache_stores": "CacheStore MemoryCache SQLiteCache",
        "policies.fallback": "Fallback",
        "policies.learned": "LearnedPrompt NodePrompts PromptExample WithPrompts",
        "policies.limits": "Concurrency RateLimit RateStore",
        "policies.policy": "Budgeted Policy Retry Timeout",
        "policies.postgres_store": "PostgresStore",
        "prices": "cost_of",
        "pydantic_ai_backend": "PydanticAIBackend",
        "registry": "check_lm_name resolve",
        "requests": "Answer",
        "signatures": "node_to_signature",
    },
    former={
        "DefaultName": ("lm.registry", "`bae lm list --json` has the name and why"),
        "LMKind": ("lm.kinds", "`bae lm list --json` lists the models"),
        "estimate_tokens": ("lm.policies.budget", "Budget and RateLimit estimate tokens"),
        "find_default_lm": ("lm.registry", "leave `lm=` out"),
        "find_default_name": ("lm.registry", "`bae lm list --json` has the name and why"),
        "list_lm_kinds": ("lm.registry", "`bae lm list --json` lists the models"),
        "report": ("usage:report_usage", "call report_usage"),
    },
)
