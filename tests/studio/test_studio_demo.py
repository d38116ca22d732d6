"""`make studio-demo`: runs of the examples, a team at work and a chat with the model inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_demo_shows_runs_a_team_and_a_chat(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, ROOT / "examples" / "studio" / "demo.py", tmp_path, "--json"],
        env={**os.environ, "DEMO_SECONDS": "0", "BAE_STUDIO_TOKEN": "token-of-a-test"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        url = next(line for line in process.stdout if '"url"' in line).split('"')[3]
        with httpx.Client(
            base_url=f"{url}/api",
            headers={"authorization": "Bearer token-of-a-test"},
            timeout=120,
        ) as client:
            rows = client.get("/runs").json()["runs"]
            statuses = {row["run_id"]: row["status"] for row in rows}
            assert statuses["outfit-1"] == "ended"
            assert statuses["refund-1"] == "waiting"
            [team] = client.get("/teams").json()["teams"]
            assert sum(team["counts"].values()) == 5
            body = {"start": {"text": "Hello!"}, "thread": "ana-1"}
            run = client.post("/graphs/talk/runs?wait=100", json=body).json()
            assert run["status"] == "ended"
            assert run["result"]["text"]
    finally:
        process.terminate()  # as a closed terminal does, to the demo alone
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert [place for place in working_folders() if place.is_relative_to(tmp_path)] == []


def working_folders() -> list[Path]:
    """The folders that processes of this machine work in."""
    folders: list[Path] = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            folders.append(link.readlink())
    return folders
