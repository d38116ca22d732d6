"""What holds for every test: no LM is picked up from the machine the tests run on, and none that
is real is asked unless that is wanted."""

import gc
import os
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from default_signals import default_signals
from packages import PACKAGES, is_missing
from postgres_server import PostgresServer, postgres_server

# How long an example takes says more about the machine than about bae.
settings.register_profile("bae", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bae")

ONCE = ("engine", "evals", "optimizer", "otel", "pictures", "serve", "studio", "team", "testing")
"""Folders of tests that tell little about Python: what they test stands on the rooms below. They
are left out with those that are marked so."""

FIRST = ("team", "engine", "docs", "optimizer", "lm", "journal", "cli")
"""Files and folders of tests that take long, the longest first."""

# Tests of the team cannot be loaded without its extra; they run on the base interpreter only.
collect_ignore_glob = ["team/test_*.py"] if is_missing("sqlalchemy") else []
if is_missing("starlette") or is_missing("httpx") or is_missing("websockets"):
    collect_ignore_glob += ["serve/test_*.py", "studio/test_*.py"]


def turn(item: pytest.Item) -> int:
    """When the file of a test has its turn."""
    for name in (item.path.name, item.path.parent.name):
        if name in FIRST:
            return FIRST.index(name)
    return len(FIRST)


def pytest_configure(config):
    missing = [name for name in PACKAGES if is_missing(name)]
    if missing and os.environ.get("BAE_REQUIRE_EXTRAS"):
        raise pytest.UsageError(f"BAE_REQUIRE_EXTRAS is set, and missing are {', '.join(missing)}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server for all tests of this process, which use schemas of their own."""
    with postgres_server() as server:
        yield server


CACHES = ("__pycache__", ".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache")
"""Folders that Python and the tools write into the clone."""


def extra_files(config) -> set[str] | None:
    """The files of the clone that are not in git, including ignored files. None where they do not
    matter: in a separate process for some tests, and where a developer may write files during the
    tests."""
    if hasattr(config, "workerinput") or not os.environ.get("BAE_REQUIRE_EXTRAS"):
        return None
    asked = ["git", "status", "--porcelain", "--ignored", "-z"]
    try:
        done = subprocess.run(asked, cwd=config.rootpath, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or no clone
        return None
    files = {
        os.fsdecode(line[3:]) for line in done.stdout.split(b"\0") if line[:2] in (b"??", b"!!")
    }
    return {file for file in files if not set(CACHES) & {*file.split("/")}}


def pytest_sessionstart(session):
    session.config.stash[FILES_BEFORE] = extra_files(session.config)


FILES_BEFORE = pytest.StashKey[set[str] | None]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    before, after = session.config.stash.get(FILES_BEFORE, None), extra_files(session.config)
    left = sorted((after or set()) - before) if before is not None else []
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line("")
        reporter.write_line(f"tests left files in the clone: {', '.join(left)}", red=True)


def pytest_addoption(parser):
    parser.addoption(
        "--run-e2e", action="store_true", help="also run the tests that ask real models"
    )


def pytest_ignore_collect(collection_path, config):
    is_once = collection_path.is_dir() and collection_path.name in ONCE
    return True if is_once and "not once" in config.getoption("markexpr") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests, and the packages they import, are there to stay: looking through them for
    garbage, now and in every test, takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)  # before those that are left out are looked for
def pytest_collection_modifyitems(config, items):
    items.sort(key=turn)
    if config.getoption("--run-e2e"):
        return
    skip = pytest.mark.skip(reason="asks a real model: --run-e2e")
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _no_lm_of_this_machine(monkeypatch):
    monkeypatch.setenv("BAE_LM", "none")


@pytest.fixture(name="default_signals")
def _default_signals():
    with default_signals():
        yield
