"""`bae runs`: everything one does with the runs that a journal has kept. Each module has a few of
the commands; `meant.py` knows which journal and which run somebody means by what they type."""

from __future__ import annotations

import typer

from bae.cli.options import examples
from bae.cli.runs.listing import list_runs
from bae.cli.runs.moving import export, load
from bae.cli.runs.removing import prune, redact
from bae.cli.runs.repeating import make_test, replay
from bae.cli.runs.resuming import (
    ANSWER_EPILOG,
    FORK_EPILOG,
    RESUME_EPILOG,
    answer,
    fork,
    resume,
)
from bae.cli.runs.showing import show, why

__all__ = ["group"]

group = typer.Typer(
    no_args_is_help=True,
    help="Look into the runs that a journal has kept, and go on with them.",
    epilog=examples(
        "bae runs list --status waiting",
        "bae runs show  # the newest one",
        "bae runs why last Outfit.mood",
        "bae runs resume 3f2a -m app.py",
    ),
)

group.command("list", epilog=examples("bae runs list --status failed --limit 5"))(list_runs)
group.command("show", epilog=examples("bae runs show", "bae runs show 3f2a --full"))(show)
group.command("why", epilog=examples("bae runs why last Outfit.mood"))(why)
group.command("resume", epilog=RESUME_EPILOG)(resume)
group.command("answer", epilog=ANSWER_EPILOG)(answer)
group.command("fork", epilog=FORK_EPILOG)(fork)
group.command(
    "replay", epilog=examples("bae runs replay 3f2a -m app.py  # after you have changed it")
)(replay)
group.command("export", epilog=examples("bae runs export out.jsonl 3f2a 77b0"))(export)
group.command("load", epilog=examples("bae runs load out.jsonl -j other.db"))(load)
group.command("prune", epilog=examples("bae runs prune --older-than 30d --dry-run"))(prune)
group.command("redact", epilog=examples("bae runs redact 3f2a Person.email"))(redact)
group.command("test", epilog=examples("bae runs test 3f2a -m app.py -o tests/test_outfit.py"))(
    make_test
)
