"""Token prices in US dollars and context windows of models, from the list in the installed package
`genai-prices`. Nothing is fetched."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, cast

from bae.usage import Usage


def cost_of(
    model: str, usage: Usage, provider: str | None = None, *, cache_write_tokens: int = 0
) -> float | None:
    """Return the cost of a call to `model` in US dollars. None if the price is unknown, because bae
    never guesses a price.

    - `provider`: the provider whose prices to use, such as "anthropic". Without it, the model's
      name decides.
    - `cache_write_tokens`: how many of the input tokens were written to the provider's cache. Some
      providers charge more for such tokens.

    Tokens read from the provider's cache (`usage.cached_tokens`) have their own price.

    The first call takes a fifth of a second to read the list. Call this function once when you make
    a backend, so that the backend's first answer does not wait.
    """
    listed = _find(model, provider)
    if listed is None:
        return None
    size, output = usage.input_tokens, usage.output_tokens
    written = min(max(0, cache_write_tokens), size)
    cached = min(max(0, usage.cached_tokens), size - written)
    if (size and not listed.prices_input) or (output and not listed.prices_output):
        return None
    rates = listed.rates
    if rates is None:
        return listed.calculate(size, cached, written, output)
    tokens = (size - cached - written, cached, written, output)
    return rates[0] + sum(map(float.__mul__, rates[1:], map(float, tokens)))


@lru_cache(maxsize=1000)
def window_of(model: str, provider: str | None = None) -> int | None:
    """Return how many tokens a request to `model` and its answer may have together. None if
    unknown."""
    try:
        package: Any = import_module("genai_prices")
        price = package.calc_price(package.Usage(), model, provider_id=provider)
    except (ImportError, LookupError):
        return None
    return price.model.context_window


class _Listed(NamedTuple):
    """A model on the price list."""

    name: str
    provider: str | None
    prices_input: bool
    """Whether input tokens have a price."""
    prices_output: bool
    """Whether output tokens have a price."""
    rates: tuple[float, ...] | None = None
    """Dollars for a request, and for a token of each kind: uncached input, cached input, input
    written to the cache, output. None if prices depend on the time or on the prompt's length."""

    def calculate(self, size: int, cached: int, written: int, output: int) -> float:
        """Return the cost that genai-prices calculates for these numbers of tokens."""
        package: Any = import_module("genai_prices")
        counts = package.Usage(
            input_tokens=size,
            cache_read_tokens=cached,
            cache_write_tokens=written,
            output_tokens=output,
        )
        return float(package.calc_price(counts, self.name, provider_id=self.provider).total_price)


# A calculation by genai-prices takes 0.09 ms, and bae may add only 0.3 ms to a call
# (benchmarks.fills). So the rates of most models are computed once.
@lru_cache(maxsize=1000)
def _find(model: str, provider: str | None) -> _Listed | None:
    try:
        package: Any = import_module("genai_prices")
    except ImportError:
        return None
    names = [(model, provider)]
    if provider is None:
        # "anthropic/claude-…" and "anthropic:claude-…" name the provider themselves.
        names += [(after, before) for before, _, after in map(model.partition, "/:") if after]
    for name, provider_name in names:
        try:
            price = package.calc_price(package.Usage(), name, provider_id=provider_name)
        except LookupError:
            continue
        prices = price.model_price
        listed = _Listed(
            name, provider_name, prices.input_mtok is not None, prices.output_mtok is not None
        )
        if not listed.prices_input and not listed.prices_output:
            return None  # priced by the hour, or by the page
        token_prices = cast(dict[str, Any], vars(prices)).values()
        tiered = any(hasattr(token_price, "tiers") for token_price in token_prices)
        if tiered or isinstance(price.model.prices, list):
            return listed
        base = listed.calculate(0, 0, 0, 0)
        million = 10**6
        per_million = (
            listed.calculate(million, 0, 0, 0),
            listed.calculate(million, million, 0, 0),
            listed.calculate(million, 0, million, 0),
            listed.calculate(0, 0, 0, million),
        )
        return listed._replace(rates=(base, *((cost - base) / million for cost in per_million)))
    return None
