"""Published projects that a team changes, fetched from their registries: `make real-projects`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("typer")

from real_projects import read_projects, try_project

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's"),
    pytest.mark.slow,
    pytest.mark.registries,
]
PROJECTS = read_projects()


@pytest.mark.parametrize("name", PROJECTS)
def test_a_team_changes_a_published_project_at_the_first_try(name: str, tmp_path: Path):
    outcome = try_project(name, tmp_path)
    assert outcome.is_first_try, f"{outcome}\n{outcome.output}"


@pytest.mark.parametrize("checkout", ["plain", "fresh"])
@pytest.mark.parametrize("name", PROJECTS)
def test_the_printed_commands_of_init_without_options_lead_to_a_merge(
    name: str, checkout: str, tmp_path: Path
):
    """In a checkout that its developer has set up, and in one where nothing is installed."""
    outcome = try_project(name, tmp_path, plain=checkout == "plain", fresh=checkout == "fresh")
    assert outcome.is_led_to_a_merge, f"{outcome}\n{outcome.output}"


@pytest.mark.parametrize("name", PROJECTS)
def test_a_team_makes_a_second_change_to_a_published_project_at_the_first_try(
    name: str, tmp_path: Path
):
    outcome = try_project(name, tmp_path, change="second")
    assert outcome.is_first_try, f"{outcome}\n{outcome.output}"
