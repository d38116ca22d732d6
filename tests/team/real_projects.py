"""Let a team change published projects, as a person would: fetch a project by name, put it under
git, and run `bae team` there. Its LLM is scripted, with an answer that is right.

    python tests/team/real_projects.py                  all projects
    python tests/team/real_projects.py humanize boltons  some of them
    python tests/team/real_projects.py humanize --plain  `bae team init` without options, in a
                                                         checkout that its developer has set up
    python tests/team/real_projects.py humanize --fresh  the same, where nothing is installed
    python tests/team/real_projects.py humanize --change second

Without options `init` may stop, before any LLM call: then the commands that it prints are followed
to the letter, and the team goes on.

`real_projects.toml` lists the projects, and `real_projects/NAME.txt` has the LLM's answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__)
BAE = str(Path(sys.executable).with_name("bae"))
LONGEST = 900
"""How many seconds a command may take."""
LM = """
from pathlib import Path
from bae.testing import ScriptedLM

def answer(asked):
    with Path({calls!r}).open("a") as calls:
        calls.write("asked\\n")
    return Path({answer!r}).read_text()

def make_lm():
    return ScriptedLM({{"WorkerAnswer": answer}})
"""


@dataclass
class Outcome:
    """The result for a project: whether its change is merged, and the questions and the output."""

    name: str
    status: str = ""
    calls: int = 0
    wrong: str = ""
    seconds: float = 0.0
    output: str = ""
    followed: list[str] = field(default_factory=list[str])
    """The printed commands that were run after `init` had stopped."""

    @property
    def is_completed(self) -> bool:
        return self.status == "completed" and not self.wrong

    @property
    def is_first_try(self) -> bool:
        return self.is_completed and self.calls == 1 and not self.followed

    @property
    def is_led_to_a_merge(self) -> bool:
        """Whether no LLM call was wasted, and nothing but printed commands was needed."""
        return self.is_completed and self.calls == 1

    def __str__(self) -> str:
        calls = f"{self.calls} LLM call{'' if self.calls == 1 else 's'}"
        if self.wrong:
            return f"wrong: {self.wrong}"
        if self.is_completed:
            after = f", after {', '.join(self.followed)}" if self.followed else ""
            return f"completed {'at the first try' if self.calls == 1 else f'after {calls}'}{after}"
        return f"stopped at {calls}: {self.status}"


def read_projects() -> dict[str, dict[str, Any]]:
    """The listed projects by name."""
    return tomllib.loads(HERE.with_suffix(".toml").read_text())


def try_project(
    name: str, folder: Path, *, change: str = "change", plain: bool = False, fresh: bool = False
) -> Outcome:
    """Have a team make a change in a project, in a new folder. With `plain` and `fresh`, `init`
    gets no options; with `plain`, the checkout is set up as the project's developers do it."""
    project = read_projects()[name]
    repository = folder / name
    environment = _make_environment(folder, project)
    _put_under_git(_fetch(name, project, folder), repository, project["git"])
    if plain and "setup" in project:
        _run(["sh", "-c", project["setup"]], repository, environment, check=True)
    bare = plain or fresh
    return _run_team(name, project, repository, environment, change=change, bare=bare)


def _run_team(
    name: str,
    project: Mapping[str, Any],
    repository: Path,
    environment: Mapping[str, str],
    *,
    change: str,
    bare: bool,
) -> Outcome:
    task = project[change]
    calls = repository.with_name(f"{name}.calls")
    answer = HERE.with_suffix("") / f"{name}{'' if change == 'change' else '.' + change}.txt"
    lm = repository.with_name(f"{name}_lm.py")
    lm.write_text(LM.format(calls=str(calls), answer=str(answer)))
    named = [key for key in ("setup", "test", "report") if key in project and not bare]
    commands = [
        ["init", "--no-ask", *(word for key in named for word in (f"--{key}", project[key]))],
        ["tasks", "add", task["title"], "--key", "change"]
        + [word for each in task["criteria"] for word in ("--criterion", each)]
        + [word for each in task["files"] for word in ("--file", each)],
        ["run", "--no-wait", "--lm", f"python:{lm}:make_lm"],
    ]
    outcome, started = Outcome(name), time.monotonic()
    start = _git(repository, "rev-parse", "HEAD")
    for words in commands:
        done = _run([BAE, "team", *words], repository, environment)
        outcome.output += f"$ bae team {shlex.join(words)}\n{done.stdout}\n"
        if words[0] == "init" and bare:
            done = _follow(done, repository, environment, outcome)
        if done.returncode != 0:
            outcome.status = f"{words[0]} ended with {done.returncode}"
            break
    outcome.seconds = time.monotonic() - started
    outcome.calls = len(calls.read_text().splitlines()) if calls.exists() else 0
    shown = _run([BAE, "team", "status", "--json"], repository, environment)
    if words[0] == "run" and shown.returncode == 0:
        counts = json.loads(shown.stdout)["counts"]
        [outcome.status] = [status for status, number in counts.items() if number]
    if outcome.status == "completed":
        merged = _git(repository, "diff", "--name-only", start, "bae/team").split()
        if sorted(merged) != sorted(task["files"]):
            outcome.wrong = f"merged {merged}, not {task['files']}"
    return outcome


def _follow(
    done: subprocess.CompletedProcess[str],
    repository: Path,
    environment: Mapping[str, str],
    outcome: Outcome,
) -> subprocess.CompletedProcess[str]:
    """Run the commands that `init` prints where it stops, and `init` again."""
    for _ in range(3):
        _, _, advice = done.stdout.rpartition("  try: ")
        commands = re.findall(r"`([^`]+)`", advice)
        if done.returncode == 0 or not commands:
            break
        if not commands[-1].startswith("bae team init"):
            commands.append("bae team init")
        for command in commands:
            done = _run(["sh", "-c", command], repository, environment)
            outcome.followed.append(command)
            outcome.output += f"$ {command}\n{done.stdout}\n"
    return done


def _fetch(name: str, project: Mapping[str, Any], folder: Path) -> Path:
    """The archive of a project, from its registry."""
    downloads = folder / "downloads" / name
    package = project.get("package", name)
    downloads.mkdir(parents=True, exist_ok=True)
    if not any(downloads.iterdir()):
        if project["registry"] == "npm":
            words = ["npm", "pack", f"{package}@{project['version']}"]
        else:
            words = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", package]
            words.append(f"{package}=={project['version']}")
        _run(words, downloads, os.environ, check=True)
    [archive] = [*downloads.glob("*.tar.gz"), *downloads.glob("*.tgz")]
    return archive


def _put_under_git(archive: Path, repository: Path, how: Mapping[str, Any]) -> None:
    """Make a copy like a clone of the project: without files that git ignores."""
    with tempfile.TemporaryDirectory(dir=repository.parent) as unpacked:
        with tarfile.open(archive) as opened:
            opened.extractall(unpacked, filter="data")
        [top] = Path(unpacked).iterdir()
        top.rename(repository)
    (repository / "PKG-INFO").unlink(missing_ok=True)  # the archive has it, its repository does not
    with (repository / ".gitignore").open("a") as ignored:
        ignored.writelines(f"{line}\n" for line in how.get("ignore", ()))
    _git(repository, "init", "--quiet", "--initial-branch", "main")
    for key, value in {"user.name": "Ana", "user.email": "ana@example.org"}.items():
        _git(repository, "config", key, value)
    _git(repository, "add", "--all")
    _git(repository, "commit", "--quiet", "--message", "Start")
    _git(repository, "clean", "--quiet", "-fdX")
    if "tag" in how:
        _git(repository, "tag", how["tag"])


def _make_environment(folder: Path, project: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a person who has bae's virtual environment active, and uv."""
    tools = folder / "tools"
    needs_uv = project.get("setup", "").startswith("uv ") and shutil.which("uv") is None
    if needs_uv and not tools.exists():
        _run([sys.executable, "-m", "venv", str(tools)], folder, os.environ, check=True)
        _run([str(tools / "bin" / "pip"), "install", "uv"], folder, os.environ, check=True)
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    if tools.exists():
        places.append(str(tools / "bin"))
    return {**os.environ, "PATH": os.pathsep.join(places), "COLUMNS": "120", "NO_COLOR": "1"}


def _git(repository: Path, *words: str) -> str:
    return _run(["git", *words], repository, os.environ, check=True).stdout.strip()


def _run(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], *, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command; `stdout` has its output and its errors."""
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LONGEST,
        check=False,
    )
    if check and done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}")
    return done


def main() -> int:
    projects = read_projects()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(projects)}")
    parser.add_argument("--plain", action="store_true", help="give `bae team init` no options")
    parser.add_argument("--fresh", action="store_true", help="the same, with nothing installed")
    parser.add_argument("--change", default="change", help="which change of the list")
    parser.add_argument("--folder", type=Path, help="keep everything in this folder")
    parser.add_argument("--verbose", action="store_true", help="print the output of every command")
    given = parser.parse_args()
    if unknown := set(given.names) - set(projects):
        parser.error(f"not in the list: {', '.join(sorted(unknown))}")
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in given.names or projects:
            shutil.rmtree(folder / name, ignore_errors=True)
            for left in (*folder.glob(f".{name}.team"), *folder.glob(f"{name}.calls")):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            outcome = try_project(
                name, folder, change=given.change, plain=given.plain, fresh=given.fresh
            )
            print(f"{name:18} {outcome} ({outcome.seconds:.0f} s)", flush=True)
            if given.verbose or not outcome.is_completed:
                print(outcome.output, flush=True)
            failed += not outcome.is_completed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
