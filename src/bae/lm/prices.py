"""What tokens cost, in US dollars, from the price list that the package `genai-prices` carries in
its wheel. Nothing is fetched. Backends put the cost into the usage of an answer; a budget asks
here, before the first call, whether there is a price at all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, NamedTuple

from bae.usage import Usage


class Rates(NamedTuple):
    """Dollars for a million tokens, by the number of input tokens from which they hold.

    None is a price that the list does not have. `request` is what a request costs by itself.
    """

    input: tuple[tuple[int, float], ...] | None
    output: tuple[tuple[int, float], ...] | None
    cached: tuple[tuple[int, float], ...] | None
    written: tuple[tuple[int, float], ...] | None
    request: float


def cost_of(
    model: str, usage: Usage, provider: str | None = None, *, cache_write_tokens: int = 0
) -> float | None:
    """What a call of `model` cost, or None where that is not known; it is never guessed at.

    Tokens that were read from the provider's cache have a price of their own. Of the input tokens,
    `cache_write_tokens` were written to it, which some providers charge more for. `provider` is
    whose prices to take, `"anthropic"` say; without it the name of the model has to tell.
    """
    rates = rates_of(model, provider)
    if rates is None:
        return None
    size = usage.input_tokens
    written = min(max(0, cache_write_tokens), size)
    cached = min(max(0, usage.cached_tokens), size - written)
    parts = (
        (size - cached - written, rates.input),
        (cached, rates.cached or rates.input),
        (written, rates.written or rates.input),
        (usage.output_tokens, rates.output),
    )
    dollars = 0.0
    for tokens, prices in parts:
        if tokens:
            if prices is None:
                return None
            dollars += tokens * _at(prices, size)
    return dollars / 1_000_000 + rates.request * usage.calls


def knows(model: str, provider: str | None = None) -> bool:
    """Whether the price list has what `model` charges for tokens in and out."""
    rates = rates_of(model, provider)
    return rates is not None and rates.input is not None and rates.output is not None


def rates_of(model: str, provider: str | None = None) -> Rates | None:
    """The prices of `model` at this moment, or None where the list has none, or is not installed.

    The first call reads the list, which takes a tenth of a second; a backend that wants its first
    answer without that calls this when it is made.
    """
    key = model, provider
    found = _found.get(key)
    if found is None:
        if len(_found) >= MOST_MODELS:
            _found.clear()
        found = _found[key] = _find(model, provider)
    return found()


MOST_MODELS = 1000
"""How many models the lookup remembers."""

_found: dict[tuple[str, str | None], Callable[[], Rates | None]] = {}


def _find(model: str, provider: str | None) -> Callable[[], Rates | None]:
    """The prices of a model as a function of nothing: a few depend on the date and time of day."""
    listed = _listed(model, provider)
    if listed is None:
        return lambda: None
    by_price: dict[int, tuple[Any, Rates | None]] = {}

    def now() -> Rates | None:
        prices = listed.get_prices(datetime.now(UTC))
        known = by_price.get(id(prices))
        if known is None:
            known = by_price[id(prices)] = prices, _rates(prices)
        return known[1]

    if isinstance(listed.prices, list):
        return now
    always = _rates(listed.prices)
    return lambda: always


def _listed(model: str, provider: str | None) -> Any:
    try:
        snapshot = import_module("genai_prices.data_snapshot").get_snapshot()
    except ImportError:
        return None
    names = [(model, provider)]
    if provider is None:
        # "anthropic/claude-…" and "anthropic:claude-…" name the provider themselves.
        for mark in "/:":
            before, found, after = model.partition(mark)
            if found and before and after:
                names.append((after, before))
    for name, by in names:
        try:
            return snapshot.find_provider_model(name, None, by, None)[1]
        except LookupError:
            continue
    return None


def _rates(prices: Any) -> Rates | None:
    def tiers(name: str) -> tuple[tuple[int, float], ...] | None:
        price = getattr(prices, name)
        if price is None:
            return None
        if not hasattr(price, "tiers"):
            return ((-1, float(price)),)
        return (
            (-1, float(price.base)),
            *((tier.start, float(tier.price)) for tier in price.tiers),
        )

    rates = Rates(
        tiers("input_mtok"),
        tiers("output_mtok"),
        tiers("cache_read_mtok"),
        tiers("cache_write_mtok"),
        float(prices.requests_kcount or 0) / 1000,
    )
    # What is priced by the hour or the page is not priced by what a usage counts.
    return None if rates.input is None and rates.output is None else rates


def _at(prices: tuple[tuple[int, float], ...], size: int) -> float:
    """The price that holds for this many input tokens: the whole request pays that of its tier."""
    return next(price for start, price in reversed(prices) if size > start)
