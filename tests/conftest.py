"""What holds for every test: no LM is picked up from the machine the tests run on, and none that
is real is asked unless that is wanted."""

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--run-e2e", action="store_true", help="also run the tests that ask real models"
    )


def pytest_collection_modifyitems(config, items):
    if config.getoption("--run-e2e"):
        return
    skip = pytest.mark.skip(reason="asks a real model: --run-e2e")
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _no_lm_of_this_machine(monkeypatch):
    monkeypatch.setenv("BAE_LM", "none")
