"""A team builds a small program before your eyes, without a network: `make team-demo`.

The LLM is scripted (scripted_lm.py); git, worktrees, sandboxes, tests and merges are real. Each
command is printed before it is run, so that you can type it yourself.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LM = ("--lm", f"python:{HERE / 'scripted_lm.py'}:make_lm")
TEXT = "The sea is the sea, and the tree is a tree: it's the sea that is the largest.\n"


def main(folder: Path) -> int:
    """Build the program in a folder that does not exist yet."""
    # Without the plugins of this environment, which may take seconds to load.
    tests = f"env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {shlex.quote(sys.executable)} -m pytest -q"
    if bae("init", str(folder), "--test", tests, at=folder.parent):
        return 1
    steps = (
        (("plan", "--file", str(HERE / "goal.md"), *LM), 0),
        (("tasks", "approve"), 0),
        (("run", "--no-wait", *LM), 3),  # one task asks something
        (("answer", "report", "The five most frequent ones."), 0),
        (("run", "--no-wait", *LM), 0),
    )
    for arguments, expected in steps:
        if (code := bae(*arguments, at=folder)) != expected:
            print(f"this ended with {code}, and not with {expected}", file=sys.stderr)
            return 1
    (folder.parent / "text.txt").write_text(TEXT, encoding="utf-8")
    bae("log", "chart", at=folder)  # a check fails, and the worker corrects itself
    bae("log", "lengths", at=folder)  # a submission is refused
    bae("diff", "lengths", "--stat", at=folder)
    bae("tasks", "show", "report", at=folder)  # with what the reviewer found
    show("git", "merge", "--quiet", "bae/team", at=folder)
    show("git", "log", "--oneline", at=folder)
    show("python", "-m", "textfacts", "../text.txt", at=folder)
    print(f"\nThe program is in {folder}.")
    return 0


def bae(*arguments: str, at: Path) -> int:
    """Run a command of the team."""
    return show("bae", "team", *arguments, at=at)


def show(*command: str, at: Path) -> int:
    """Print a command, and run it."""
    words = [word.replace(str(HERE.parents[1]), "$BAE") for word in command]
    print(f"\n$ {shlex.join(words).replace(sys.executable, 'python')}", flush=True)
    programs = {"bae": [sys.executable, "-m", "bae"], "python": [sys.executable]}
    return subprocess.run(
        [*programs.get(command[0], command[:1]), *command[1:]], cwd=at, check=False
    ).returncode


if __name__ == "__main__":
    place = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="bae-team-")
    raise SystemExit(main(Path(place).resolve() / "textfacts"))
