"""What users install: the wheel, in an empty environment, far from the clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command: object, at: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=at,
        env={**os.environ, "PYTHONPATH": "", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_runs_the_first_program_and_a_new_project(
    tmp_path: Path,
):
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, at=tmp_path)
    (wheel,) = tmp_path.glob("bae_graphs-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "bae/serve/page/index.html" in names
    assert any(name.startswith("bae/serve/page/assets/index-") for name in names)
    assert not [name for name in names if "node_modules" in name or "/tests/" in name]

    run(sys.executable, "-m", "venv", tmp_path / "empty", at=tmp_path)
    python = tmp_path / "empty" / "bin" / "python"
    run(*(python, *pip[1:]), "install", f"{wheel}[cli,serve]", at=tmp_path)
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    title, program = re.findall(r'```python title="(\w+\.py)"\n(.*?)```', page, re.DOTALL)[0]
    (tmp_path / title).write_text(program)
    printed = run(python, "-m", "bae", "check", title, at=tmp_path)
    assert "no problems" in printed
    script = tmp_path / "script.json"
    script.write_text('{"fills": {"Outfit": {"top": "linen shirt", "shoes": "sandals"}}}')
    options = ("--set", "message=hello", "--lm", f"scripted:{script}", "--no-journal")
    assert "linen shirt" in run(python, "-m", "bae", "run", title, *options, at=tmp_path)

    run(python, "-m", "bae", "new", "wardrobe", at=tmp_path)
    (required,) = tomllib.loads((tmp_path / "wardrobe" / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]
    run(*(python, *pip[1:]), "install", "--find-links", tmp_path, required, "pytest", at=tmp_path)
    assert "3 passed" in run(python, "-m", "pytest", at=tmp_path / "wardrobe")
    where = run(python, "-c", "import bae; print(bae.__file__)", at=tmp_path)
    assert where.startswith(str(tmp_path / "empty"))
