"""The studio with something to see, without a network: `make studio-demo`.

It makes a journal with runs of the examples, starts a team that builds a small program, and opens
the page on both. In the runs and in the team the LLM is scripted, and everything else is real. The
chat and the runs that you start ask the small model inside the process. Ctrl-C ends it all.

    python examples/studio/demo.py [FOLDER]     # FOLDER keeps it; otherwise it is a temporary one
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

EXAMPLES = Path(__file__).resolve().parents[1]
TEAM_LM = ("--lm", f"python:{EXAMPLES / 'team' / 'scripted_lm.py'}:make_lm")
GRAPHS = ("studio/talk.py", "ootd.py", "approve_a_refund.py", "answer_with_tools.py", "chat.py")
RUNS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("outfit-1", "ootd", ("--set", "message=ugh, just got up")),
    ("tools-1", "answer_with_tools", ("--set", "text=What is a lamp in pounds?")),
    ("order-1", "look_up_an_order", ("--set", "text=Where is my lamp? Order A-17.")),
    ("refund-1", "approve_a_refund", ("--set", "text=The umbrella arrived wet.")),
    ("chat-1", "chat", ("--set", "text=Please cancel my order B-4.", "--thread", "ana-42")),
)
"""Runs of the examples: an id, the example, and the options of `bae run`."""


def main(folder: Path) -> int:
    """Show the studio until Ctrl-C."""
    folder.mkdir(parents=True, exist_ok=True)
    journal, shop = folder / "runs.db", folder / "textfacts"
    print("Making some runs …", flush=True)
    for run_id, example, inputs in RUNS:
        make_run(journal, run_id, example, inputs)
    with ExitStack() as opened:
        team: tuple[str, ...] = ()
        if make_team(shop):
            opened.enter_context(team_at_work(shop, folder / "team.log"))
            team = ("--team", str(shop))
        graphs = [str(EXAMPLES / graph) for graph in GRAPHS]
        options = [*team, *(["--open"] if sys.stdout.isatty() else []), *sys.argv[2:]]
        command = ["bae", "studio", *graphs, "--journal", str(journal), "--lm", "local", *options]
        show(command)
        return run(command[1:])


def make_run(journal: Path, run_id: str, example: str, inputs: tuple[str, ...]) -> None:
    """Store a run of an example with its scripted LLM. A run that asks a person waits."""
    if journal.exists() and run_id in run_ids(journal):
        return
    script = EXAMPLES / "scripted" / f"{example}.json"
    options = ("--lm", f"scripted:{script}", "--journal", str(journal), "--run-id", run_id)
    code = run(["run", str(EXAMPLES / f"{example}.py"), *inputs, *options], quiet=True)
    print(f"  {run_id}: {'done' if code == 0 else 'waits for you' if code == 3 else 'failed'}")


def run_ids(journal: Path) -> str:
    """Return the output of `bae runs list`, which has the id of every run."""
    process = subprocess.run(
        [sys.executable, "-m", "bae", "runs", "list", "--journal", str(journal), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout


def make_team(shop: Path) -> bool:
    """Make a repository with an approved plan. Return False if this fails."""
    if shop.exists():
        return True
    tests = f"env PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {shlex.quote(sys.executable)} -m pytest -q"
    goal = str(EXAMPLES / "team" / "goal.md")
    print("Planning the work of a team …", flush=True)
    return not (
        run(["team", "init", str(shop), "--test", tests], at=shop.parent, quiet=True)
        or run(["team", "plan", "--file", goal, *TEAM_LM], at=shop, quiet=True)
        or run(["team", "tasks", "approve"], at=shop, quiet=True)
    )


@contextmanager
def team_at_work(shop: Path, log: Path) -> Generator[None]:
    """Run the team in its own process while the block runs. It asks one question, and continues
    when a person answers on the page."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "bae", "team", "run", "--wait", *TEAM_LM],
            cwd=shop,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env={**os.environ, "DEMO_SECONDS": os.environ.get("DEMO_SECONDS", "3")},
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run(arguments: list[str], *, at: Path | None = None, quiet: bool = False) -> int:
    """Run a command of bae."""
    output = subprocess.DEVNULL if quiet else None
    words = [sys.executable, "-m", "bae", *arguments]
    with ignore_interrupts():  # the command ends by itself
        return subprocess.run(words, cwd=at, stdout=output, stderr=output, check=False).returncode


@contextmanager
def ignore_interrupts() -> Generator[None]:
    """Leave Ctrl-C to the command in the foreground."""
    before = signal.signal(signal.SIGINT, _ignore)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN, a handler is not inherited by the command."""


def end_on(number: int, frame: FrameType | None) -> None:
    """Clean up as after Ctrl-C, if a signal ends the process or its terminal is closed."""
    raise SystemExit(128 + number)


def show(command: list[str]) -> None:
    """Print a command as a person would type it."""
    words = [word.replace(str(EXAMPLES), "examples") for word in command]
    print(f"\n$ {shlex.join(words)}", flush=True)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end_on)
    if len(sys.argv) > 1:
        raise SystemExit(main(Path(sys.argv[1]).resolve()))
    with tempfile.TemporaryDirectory(prefix="bae-studio-") as place:
        raise SystemExit(main(Path(place).resolve()))
