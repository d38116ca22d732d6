"""What holds for every test of the team."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_configuration_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
