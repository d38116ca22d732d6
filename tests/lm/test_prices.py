"""What prices promise: what the list says, to the last digit, and None rather than a guess."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae import Usage
from bae.lm import prices
from bae.lm.prices import cost_of

SOME = Usage(calls=1, input_tokens=1000, cached_tokens=900, output_tokens=100)


@pytest.fixture
def _not_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    prices._find.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "genai_prices"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    yield
    prices._find.cache_clear()


@pytest.mark.usefixtures("_not_installed")
def test_a_cost_is_unknown_without_the_price_list():
    assert cost_of("claude-sonnet-4-5", SOME, "anthropic") is None


def test_a_model_without_a_list_price_has_an_unknown_cost():
    assert cost_of("some-model-of-mine", SOME) is None
    assert cost_of("claude-sonnet-4-5", SOME, "a provider of mine") is None
    assert cost_of("", SOME) is None


@pytest.mark.parametrize("name", ["anthropic/claude-sonnet-4-5", "anthropic:claude-sonnet-4-5"])
def test_a_price_is_found_by_a_name_that_includes_the_provider(name: str):
    pytest.importorskip("genai_prices")
    assert cost_of(name, SOME) is not None
    assert cost_of(name, SOME) == cost_of("claude-sonnet-4-5", SOME, "anthropic")


def list_models() -> list[tuple[object, object]]:
    try:
        from genai_prices.data import providers
    except ImportError:
        return []
    return [(provider, model) for provider in providers for model in provider.models]


@settings(max_examples=40)
@given(
    st.integers(0, 2_000_000), st.floats(0, 1), st.floats(0, 1), st.integers(0, 100_000), st.data()
)
def test_every_model_costs_its_list_price(
    size: int, cached: float, written: float, output: int, data: st.DataObject
):
    genai_prices = pytest.importorskip("genai_prices")
    provider, model = data.draw(st.sampled_from(list_models()))
    read = int(size * cached)
    wrote = int((size - read) * written)
    usage = Usage(calls=1, input_tokens=size, cached_tokens=read, output_tokens=output)
    cost = cost_of(model.id, usage, provider.id, cache_write_tokens=wrote)
    counts = genai_prices.Usage(
        input_tokens=size, cache_read_tokens=read, cache_write_tokens=wrote, output_tokens=output
    )
    try:
        wanted = genai_prices.calc_price(counts, model.id, provider_id=provider.id)
    except LookupError:  # some ids are those of a group of models
        assert cost is None
        return
    if cost is None:
        prices = wanted.model_price
        assert prices.input_mtok is None or prices.output_mtok is None
    else:
        assert Decimal(cost) == pytest.approx(
            wanted.total_price, rel=Decimal("1e-9"), abs=Decimal("1e-12")
        )


def test_a_model_without_an_output_price_costs_only_its_input():
    pytest.importorskip("genai_prices")
    name = "text-embedding-3-small"
    assert cost_of(name, Usage(calls=1, input_tokens=1000), "openai")
    assert cost_of(name, SOME, "openai") is None


def test_the_cost_of_cached_tokens_is_bounded_by_the_input_tokens():
    pytest.importorskip("genai_prices")
    odd = Usage(calls=1, input_tokens=10, cached_tokens=99)
    every = Usage(calls=1, input_tokens=10, cached_tokens=10)
    assert cost_of("claude-sonnet-4-5", odd, "anthropic") == cost_of(
        "claude-sonnet-4-5", every, "anthropic"
    )


def test_no_price_update_is_fetched_in_the_background():
    pytest.importorskip("genai_prices")
    before = threading.enumerate()
    assert cost_of("claude-sonnet-4-5", SOME, "anthropic")
    assert threading.enumerate() == before
    from genai_prices.data_snapshot import get_snapshot

    assert not get_snapshot().from_auto_update
