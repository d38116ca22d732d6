"""The outfit graph on every real model that is configured on this machine. Run it with
`make e2e`; each call may cost something."""

import importlib.util
import sys
from pathlib import Path
from typing import get_args

import pytest

from bae.lm.registry import candidates

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ootd.py"


def list_configured_lms() -> list[str]:
    return [kind.example for kind in candidates() if not kind.missing]


@pytest.fixture(scope="module")
def ootd():
    spec = importlib.util.spec_from_file_location("ootd", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ootd"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ootd"]


def test_at_least_one_lm_is_configured_for_these_tests():
    assert list_configured_lms(), "no model is configured here: " + "; ".join(
        f"{kind.example}: {kind.lacks}" for kind in candidates()
    )


@pytest.mark.parametrize("name", list_configured_lms())
async def test_the_outfit_graph_ends_in_a_complete_recommendation(ootd, name):
    run = await ootd.graph.arun(ootd.GettingDressed(message="ugh, just got up"), lm=name)
    outfit = run.result
    print(f"\n{name}: {outfit!r}\n{run.usage}")
    assert isinstance(outfit, ootd.RecommendOutfit)
    assert outfit.mood in get_args(ootd.Mood)
    assert [type(node).__name__ for node in run.trace] == [
        "GettingDressed",
        "AnticipateDay",
        "RecommendOutfit",
    ]
    assert run.usage.calls >= 2
    assert run.usage.input_tokens > 0
    assert run.usage.output_tokens > 0
    assert len(run.usage.models) >= 1
