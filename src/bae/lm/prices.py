"""What tokens cost in US dollars, by the price list in the wheel of the package `genai-prices`.
Nothing is fetched."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bae.usage import Usage


def cost_of(
    model: str, usage: Usage, provider: str | None = None, *, cache_write_tokens: int = 0
) -> float | None:
    """What a call of `model` costs, or None where that is not known; it is never guessed.

    Tokens read from the provider's cache have their own price. Of the input tokens,
    `cache_write_tokens` were written to that cache, which some providers charge more for.
    `provider` says whose prices to take, `"anthropic"` say; without it the model's name decides.

    The first call reads the list, which takes a fifth of a second: a backend that wants its first
    answer without that wait calls this when it is made.
    """
    try:
        listed: Any = import_module("genai_prices")
    except ImportError:
        return None
    size = usage.input_tokens
    written = min(max(0, cache_write_tokens), size)
    counts = listed.Usage(
        input_tokens=size,
        cache_write_tokens=written,
        cache_read_tokens=min(max(0, usage.cached_tokens), size - written),
        output_tokens=usage.output_tokens,
    )
    for name, by in _names(model, provider):
        try:
            found = listed.calc_price(counts, name, provider_id=by)
        except LookupError:
            continue
        per_input, per_output = found.model_price.input_mtok, found.model_price.output_mtok
        # The package takes a price that it does not have for zero.
        unknown = per_input is None and per_output is None
        unknown = unknown or (size and per_input is None)
        unknown = unknown or (usage.output_tokens and per_output is None)
        return None if unknown else float(found.total_price)
    return None


def _names(model: str, provider: str | None) -> list[tuple[str, str | None]]:
    """The model and its provider; "anthropic/claude-…" and "anthropic:claude-…" name both."""
    names = [(model, provider)]
    if provider is None:
        for separator in "/:":
            before, found, after = model.partition(separator)
            if found and before and after:
                names.append((after, before))
    return names
