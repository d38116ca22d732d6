"""What tests of commands share: a directory of their own, and commands that are called in it."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Path]:
    """A directory of its own, with the `APP` of the test's module as `app.py`."""
    monkeypatch.chdir(tmp_path)
    for name in ("BAE_JOURNAL", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if hasattr(request.module, "APP"):
        Path("app.py").write_text(request.module.APP, encoding="utf-8")
    sys.modules.pop("app", None)
    modules, path = dict(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in sys.modules.keys() - modules.keys():
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@dataclass
class Done:
    """How a command came out."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON output, parsed."""
        return json.loads(self.out)

    @property
    def commands(self) -> list[list[str]]:
        """The words of the commands that were printed to be copied, without `bae`."""
        return [shlex.split(each) for each in re.findall(r"\bbae (runs? .*)", self.out + self.err)]

    def command(self, begins: str) -> list[str]:
        """The first of them that begins so."""
        return next(
            command for command in self.commands if command[: len(begins.split())] == begins.split()
        )


@pytest.fixture
def bae(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """Calls a command there."""
    from bae.cli import main

    def call(*arguments: str, stdin: str | None = None) -> Done:
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        sys.modules.pop("app", None)  # as in a process of its own
        code = main(arguments)
        return Done(code, *capsys.readouterr())

    return call


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A provider on loopback, which `--lm anthropic` asks."""
    pytest.importorskip("h11")
    pytest.importorskip("anthropic")
    from bae.testing import ThreadedProvider

    with ThreadedProvider() as provider:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "x")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        yield provider
