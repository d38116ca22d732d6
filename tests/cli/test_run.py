"""`bae run`, and `bae runs resume`, `fork` and `answer`: arguments, output, and printed commands,
which all work."""

from __future__ import annotations

import io
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from pydantic import BaseModel, Field, SecretStr

from bae import Node

APP = """
from __future__ import annotations

from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, SecretStr

from bae import Dep, Gate, Graph, Node


def log(line: str) -> None:
    with open("log", "a") as file:
        file.write(line + "\\n")


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Place(BaseModel):
    city: str
    floor: int = 0


class Order(Node):
    what: str = Field(description="What is ordered.")
    count: int
    size: Size = Size.SMALL
    day: date | None = None
    place: Place | None = None
    notes: list[str] = []

    async def __call__(self) -> Packed:
        return Packed(**self.__dict__)


class Packed(Node):
    what: str
    count: int
    size: Size
    day: date | None
    place: Place | None
    notes: list[str]

    async def __call__(self) -> None: ...


orders = Graph(start=Order, end=Packed)


class Complaint(Node):
    text: str

    async def __call__(self) -> Proposal: ...


class Proposal(Node):
    euros: int

    async def __call__(self) -> Approval:
        log("proposed")
        return Approval(euros=self.euros)


class Approval(Node):
    euros: int
    approved: Annotated[bool, Gate("Send this refund?")]

    async def __call__(self) -> Refunded:
        return Refunded(euros=self.euros if self.approved else 0)


class Refunded(Node):
    euros: int

    async def __call__(self) -> None: ...


graph = Graph(start=Complaint, end=Refunded)


class Countdown(Node):
    left: int

    async def __call__(self) -> Countdown | None:
        log(f"at {self.left}")
        return Countdown(left=self.left - 1) if self.left else None


async def look() -> str:
    log("looked")
    return "seen"


class Fragile(Node):
    seen: Annotated[str, Dep(look)]

    async def __call__(self) -> Whole:
        if not Path("mended").exists():
            raise RuntimeError("it broke")
        return Whole(seen=self.seen)


class Whole(Node):
    seen: str

    async def __call__(self) -> None: ...


class Login(Node):
    token: SecretStr
    tries: int = 1

    async def __call__(self) -> Asked:
        return Asked(letters=len(self.token.get_secret_value()))


class Asked(Node):
    letters: int
    again: Annotated[str, Gate("Once more?")]

    async def __call__(self) -> None: ...


class Paid(Node):
    amount: Annotated[Decimal, Gate("How much?")]

    async def __call__(self) -> None: ...


class Card(Node):
    number: Annotated[SecretStr, Field(max_length=4), Gate("Which card?")]

    async def __call__(self) -> None: ...


class Client:
    pass


class Live(Node):
    client: Client | None = None

    async def __call__(self) -> None: ...
"""

SCRIPT = {"fills": {"Proposal": [{"euros": 20}]}}


@pytest.fixture(autouse=True)
def _script(folder: Path) -> None:
    Path("script.json").write_text(json.dumps(SCRIPT))


LM = ("--lm", "scripted:script.json")


# What comes out


def test_bae_run_prints_only_the_result_on_stdout(bae: Any) -> None:
    done = bae("run", "app.py:orders", "--set", "what=tea", "--set", "count=2")
    assert done.code == 0
    assert done.out.splitlines() == [
        "Packed",
        "  what: tea",
        "  count: 2",
        "  size: small",
        "  day: none",
        "  place: none",
        "  notes: none",
    ]
    assert "Order" in done.err
    assert "2 nodes" in done.err
    assert "\x1b" not in done.out + done.err


def test_the_json_of_bae_run_has_the_result_the_trace_and_the_usage(bae: Any) -> None:
    done = bae("run", "app.py:Countdown", "--set", "left=2", "--json", "--run-id", "mine")
    data = done.data
    assert data.pop("seconds") >= 0
    assert data == {
        "run_id": "mine",
        "outcome": "ended",
        "graph": "Countdown",
        "result": {"type": "Countdown", "fields": {"left": 0}},
        "trace": ["Countdown", "Countdown", "Countdown"],
        "usage": {"calls": 0, "input_tokens": 0, "output_tokens": 0, "cost": 0.0},
        "waiting": [],
        "error": None,
    }


def test_a_recalled_secret_and_a_hidden_computed_field_are_withheld_from_the_result(
    bae: Any, folder: Path
) -> None:
    Path("copies.py").write_text(
        "from __future__ import annotations\n\n"
        "from typing import Annotated\n\n"
        "from pydantic import Field, computed_field\n\n"
        "from bae import Graph, Node, Recall\n\n\n"
        "class First(Node):\n"
        "    pin: str = Field(repr=False)\n\n"
        "    async def __call__(self) -> Last:\n"
        "        return Last()\n\n\n"
        "class Last(Node):\n"
        "    pin: Annotated[str, Recall(First)]\n\n"
        "    @computed_field(repr=False)\n"
        "    @property\n"
        "    def link(self) -> str:\n"
        "        return f'https://{self.pin}'\n\n"
        "    async def __call__(self) -> None: ...\n\n\n"
        "graph = Graph(start=First)\n"
    )
    given = ("run", "copies.py", "--set", "pin=hunter2")
    done = bae(*given)
    assert done.out.splitlines() == ["Last", "  pin: (withheld)"]
    assert "hunter2" not in done.err
    assert bae(*given, "--json").data["result"]["fields"] == {"pin": "(withheld)"}


def test_a_terminal_that_stops_reading_does_not_change_the_outcome(
    bae: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = count(step=3600)
    monkeypatch.setattr("bae.observers.perf_counter", lambda: next(hours))
    done = bae("run", "app.py:Countdown", "--set", "left=20", "--json")  # it has 10 nodes at most
    assert done.data["trace"] == ["Countdown"] * 10


# What is given


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["-i", '{"what": "tea", "count": 2}'], None),
        (["-i", "@order.json"], None),
        (["-i", "-"], '{"what": "tea", "count": 2}\n'),
        (["-i", '{"what": "tea", "count": 9}', "--set", "count=2"], None),
        (["-i", '{"what": "tea", "count": "nine"}', "--set", "count=2"], None),
        (["--set", "what=tea", "--set", "count=2"], None),
        (["--set", 'what="tea"', "--set", "count=2"], None),
    ],
)
def test_start_fields_come_from_json_a_file_stdin_and_set(
    bae: Any, tmp_path: Path, arguments: list[str], stdin: str | None
) -> None:
    (tmp_path / "order.json").write_text('{"what": "tea", "count": 2}')
    done = bae("run", "app.py:orders", *arguments, "--json", stdin=stdin)
    fields = done.data["result"]["fields"]
    assert (fields["what"], fields["count"]) == ("tea", 2)


@pytest.mark.parametrize("given", ["3", '"3"', '{"left": 3}'])
def test_a_single_start_field_can_be_given_without_its_name(bae: Any, given: str) -> None:
    assert len(bae("run", "app.py:Countdown", "-i", given, "--json").data["trace"]) == 4


def test_a_single_text_needs_no_quotes_and_a_parked_run_lists_its_questions_in_json(
    bae: Any,
) -> None:
    done = bae("run", "app.py", "-i", "-", *LM, "--json", stdin="my umbrella\narrived wet\n")
    assert "my umbrella\\narrived wet" in done.err
    assert done.code == 3
    assert (done.data["outcome"], done.data["result"]) == ("waiting", None)
    assert done.data["waiting"] == [
        {
            "gate": "2:Approval.approved",
            "place": "Approval.approved",
            "question": "Send this refund?",
            "type": "bool",
            "call": None,
            "deadline": None,
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "waht=tea"], ["Order has no field waht", "did you mean what?"]),
        (["-i", '{"waht": "tea"}'], ["Order has no field waht", "did you mean what?"]),
        (["-i", "{what: tea}"], ["is not JSON", "what, count"]),
        (["-i", "tea"], ["is not JSON"]),
        (["-i", "[1]"], ["is no JSON object"]),
        (["-i", "@gone.json"], ["cannot be read", "gone.json"]),
        (["--set", "count=two"], ["count", '"two" does not fit', "valid integer"]),
        (["--set", "place.town=Ulm"], ["Place has no field town", "city"]),
        (
            ["-i", '{"what": 1, "count": "two"}'],
            ["what: 1 does not fit", 'count: "two" does not fit'],
        ),
        (["--set", "what=tea", "--set", "count=2", "--set", "place.floor=1"], ["place.city"]),
    ],
)
def test_an_invalid_start_value_is_reported_with_its_field_and_the_reason(
    bae: Any, arguments: list[str], said: list[str]
) -> None:
    done = bae("run", "app.py:orders", *arguments)
    assert done.code == 1
    assert done.out == ""
    assert "bae-start-fields" in done.err
    for text in said:
        assert text in done.err
    assert not Path(".bae").exists()


def test_missing_start_fields_are_reported_with_a_command_that_works(bae: Any) -> None:
    done = bae("run", "app.py:orders")
    assert done.code == 1
    assert "Order needs what, count" in done.err
    assert "what: text (What is ordered.)" in done.err
    assert "count: int" in done.err
    assert bae(*done.command("run")).code == 0


def test_a_secret_is_in_no_message_and_not_in_the_result(bae: Any) -> None:
    done = bae("run", "app.py:Login", "--set", "token=hunter2", "--set", "tries=many")
    assert "hunter2" not in done.err + done.out
    done = bae("run", "app.py:Login", "-i", '{"token": {"hunter2": 1}, "tries": 1}')
    assert "token: the value does not fit" in done.err
    assert "hunter2" not in done.err + done.out


# The journal


def test_the_default_journal_is_ignored_by_git(bae: Any) -> None:
    bae("run", "app.py:Countdown", "--set", "left=0")
    assert Path(".bae/runs.db").is_file()
    assert Path(".bae/.gitignore").read_text() == "*\n"
    bae("run", "app.py:Countdown", "--set", "left=0", "--journal", "other.db")
    assert Path("other.db").is_file()


def test_no_journal_leaves_no_file_and_quiet_prints_only_the_result(bae: Any) -> None:
    done = bae("run", "app.py:Countdown", "--set", "left=0", "--no-journal", "--quiet")
    assert (done.code, done.out, done.err) == (0, "Countdown\n  left: 0\n", "")
    assert not Path(".bae").exists()


def test_an_unstorable_graph_runs_without_a_journal_and_reports_why(bae: Any) -> None:
    done = bae("run", "app.py:Live")
    assert done.code == 0
    assert "no journal is kept, so this run cannot be resumed: Live.client" in done.err
    done = bae("run", "app.py:Live", "--journal", "runs.db")
    assert done.code == 1
    assert "Live.client" in done.err
    assert "--no-journal" in done.err


def test_a_run_without_a_writable_journal_continues_and_reports_why(bae: Any) -> None:
    Path(".bae").write_text("in the way")
    done = bae("run", "app.py:Countdown", "--set", "left=0")
    assert done.code == 0
    assert "no journal is kept" in done.err
    assert ".bae" in done.err


# Runs that come to a stop, and the commands that go on with them


def test_a_run_parks_at_a_gate_and_the_printed_command_resumes_it(bae: Any) -> None:
    parked = bae("run", "app.py", "-i", "it arrived wet", *LM)
    assert (parked.code, parked.out) == (3, "")
    assert "Send this refund?" in parked.err
    done = bae(*parked.command("runs answer"))
    assert done.code == 0
    assert done.out == "Refunded\n  euros: 20\n"
    assert Path("log").read_text() == "proposed\n"


def test_an_answer_is_validated_before_it_is_stored(bae: Any) -> None:
    bae("run", "app.py", "-i", "wet", *LM, "--run-id", "r1")
    wrong = bae("runs", "answer", "r1", "approved", "perhaps", "-m", "app.py")
    assert wrong.code == 1
    assert "bae-gate-invalid" in wrong.err
    assert "yes or no" in wrong.err
    nothing = bae("runs", "answer", "r1", "-m", "app.py")
    assert "no VALUE was given for Approval.approved: Send this refund?" in nothing.err
    assert nothing.command("runs answer")[2:] == ["r1", "Approval.approved", "yes", "-m", "app.py"]
    stored = bae("runs", "answer", "r1", "Approval.approved", "no", "-m", "app.py", "--no-run")
    assert stored.code == 0
    again = bae("runs", "answer", "r1", "approved", "yes", "-m", "app.py")
    assert "bae-gate-answered" in again.err
    done = bae(*stored.command("runs resume"))
    assert done.out == "Refunded\n  euros: 0\n"


def test_a_failed_run_prints_how_to_resume_and_repeats_no_work(bae: Any) -> None:
    failed = bae("run", "app.py:Fragile")
    assert failed.code == 1
    assert "bae-node-failed" in failed.err
    assert "it broke" in failed.err
    Path("mended").touch()
    done = bae(*failed.command("runs resume"))
    assert done.out == "Whole\n  seen: seen\n"
    assert Path("log").read_text() == "looked\n"
    again = bae("runs", "resume", "-m", "app.py:Fragile")
    assert again.out == done.out
    assert "has ended before" in again.err


def test_the_printed_command_raises_a_reached_limit(bae: Any) -> None:
    failed = bae("run", "app.py:Countdown", "--set", "left=3", "--max-iters", "2")
    assert failed.code == 1
    assert "bae-limit-reached" in failed.err
    words = failed.command("runs resume")
    done = bae(*words[: words.index("app.py:Countdown") + 1])
    assert done.code == 0
    assert Path("log").read_text().split() == ["at", "3", "at", "2", "at", "1", "at", "0"]


def test_a_spent_budget_is_reported_with_its_limit_and_how_to_raise_it(bae: Any) -> None:
    failed = bae("run", "app.py", "-i", "wet", *LM, "--budget", "calls=0")
    assert failed.code == 1
    assert "bae-budget-spent" in failed.err
    assert "0 of 0 calls" in failed.err
    assert bae(*failed.command("runs resume")).code == 3


def test_a_run_id_may_look_like_an_option(bae: Any) -> None:
    parked = bae("run", "app.py:Paid", "--run-id=-x")
    words = parked.command("runs answer")
    assert words[-3:-1] == ["-x", "Paid.amount"]
    assert bae(*words[:-1], "0.25").out == "Paid\n  amount: 0.25\n"
    assert bae("runs", "resume", "-m", "app.py:Paid", "--", "-x").code == 0


def test_the_printed_answer_command_prompts_for_a_secret(bae: Any) -> None:
    parked = bae("run", "app.py:Card", "--run-id", "r1")
    words = parked.command("runs answer")
    assert words == ["runs", "answer", "r1", "Card.number", "-m", "app.py:Card"]
    nothing = bae(*words)
    assert "no VALUE was given for Card.number" in nothing.err
    assert "at a terminal" in nothing.err
    wrong = bae(*words[:4], "hunter2", *words[4:])
    assert wrong.code == 1
    assert "hunter2" not in wrong.err


@pytest.mark.parametrize("said", ["", " ", "last", "a\nb"])
def test_run_ids_are_easy_to_type(bae: Any, said: str) -> None:
    done = bae("run", "app.py:Countdown", "--set", "left=0", f"--run-id={said}")
    assert done.code == 2
    assert "--run-id" in done.err
    bae("run", "app.py:Countdown", "--set", "left=0", "--run-id", "r1")
    forked = bae("runs", "fork", "r1", "--at", "0", f"--run-id={said}", "-m", "app.py:Countdown")
    assert forked.code == 2


def test_a_field_that_is_set_twice_is_refused_for_a_fork_and_on_resume(bae: Any) -> None:
    bae("run", "app.py:Login", "--set", "token=hunter2", "--run-id", "r1")
    twice = ("--set", "Login.token=a", "--set", "Login.token=b")
    resumed = bae("runs", "resume", "r1", *twice, "-m", "app.py:Login")
    assert "--set gives Login.token twice" in resumed.err
    twice = ("--set", "tries=1", "--set", "tries=2")
    forked = bae("runs", "fork", "r1", "--at", "0", *twice, "-m", "app.py:Login")
    assert "--set gives tries twice" in forked.err


@pytest.mark.parametrize(
    "said",
    [
        *("", "calls", "calls=x", "calls=1.5", "call=1", "cost=-1", "calls=1,calls=2"),
        *("calls=1_0", "tokens=\u0661", "cost=nan", "cost=inf", "cost=1_0", "seconds=1e9"),
    ],
)
def test_an_invalid_budget_is_wrong_usage(bae: Any, said: str) -> None:
    done = bae("run", "app.py", "--budget", said)
    assert done.code == 2
    assert "--budget" in done.err


@pytest.mark.parametrize("said", ["cost=0.5", "cost=.5", "cost=$.50,calls=20", "seconds=9.5"])
def test_a_budget_accepts_numbers_in_common_notations(bae: Any, said: str) -> None:
    assert (
        bae("run", "app.py", "-i", "wet", *LM, "--budget", said).code == 3
    )  # it waits for a person


@pytest.mark.parametrize("said", ["1_0", "\u0661", " 1", "nan", "9" * 50, "."])
@pytest.mark.parametrize(
    "command",
    [
        ("run", "app.py", "--max-iters"),
        ("runs", "list", "--limit"),
        ("lm", "try", "local", "--timeout"),
        ("eval", "app.py", "--data", "x.jsonl", "--fail-under"),
    ],
    ids=lambda command: command[-1],
)
def test_a_number_in_python_notation_is_wrong_usage(
    bae: Any, command: tuple[str, ...], said: str
) -> None:
    done = bae(*command, said)
    assert done.code == 2
    assert command[-1] in done.err
    assert "is not a number such as 20" in done.err


def test_a_fork_continues_from_a_node_with_other_values(bae: Any) -> None:
    bae("run", "app.py", "-i", "wet", *LM, "--run-id", "r1")
    made = bae("runs", "fork", "r1", "--at", "1", "--set", "euros=5", "--no-run", "-m", "app.py")
    assert made.code == 0
    new = made.out.strip()
    parked = bae(*made.command("runs resume"))
    assert parked.code == 3
    done = bae(*parked.command("runs answer"))
    assert done.out == "Refunded\n  euros: 5\n"
    assert bae("runs", "answer", "r1", "approved", "y", "-m", "app.py").out == (
        "Refunded\n  euros: 20\n"
    )
    assert new not in ("", "r1")
    wrong = bae("runs", "fork", "r1", "--at", "1", "--set", "euros=lots", "-m", "app.py")
    assert "euros" in wrong.err
    assert wrong.code == 1


def test_a_fork_runs_at_once_unless_asked_not_to(bae: Any) -> None:
    bae("run", "app.py:Countdown", "--set", "left=2", "--run-id", "r1")
    forked = ("runs", "fork", "r1", "--at", "1", "--set", "left=0", "--run-id", "r2")
    done = bae(*forked, "-m", "app.py:Countdown", "--json")
    assert done.data["run_id"] == "r2"
    assert done.data["result"]["fields"] == {"left": 0}
    assert len(done.data["trace"]) == 2


def test_a_secret_is_given_again_on_resume(bae: Any) -> None:
    bae("run", "app.py:Login", "--set", "token=hunter2", "--run-id", "r1")
    assert b"hunter2" not in Path(".bae/runs.db").read_bytes()
    refused = bae("runs", "resume", "r1", "-m", "app.py:Login")
    assert refused.code == 1
    assert "--set Login.token=" in refused.err
    parked = bae("runs", "resume", "r1", "-m", "app.py:Login", "--set", "Login.token=hunter2")
    assert parked.code == 3
    assert "hunter2" not in parked.err
    unknown = bae("runs", "resume", "r1", "-m", "app.py:Login", "--set", "Login.tokn=x")
    assert "has no field Login.tokn" in unknown.err


def test_printed_commands_leave_out_what_pyproject_sets_and_name_another_journal(
    bae: Any, tmp_path: Path
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.bae]\ngraph = "app.py"\n')
    parked = bae("run", "-i", "wet", *LM, "-j", "my runs.db")
    words = parked.command("runs answer")
    assert "-m" not in words
    assert words[-2:] == ["-j", "my runs.db"]
    assert bae(*words).code == 0


def test_an_existing_run_id_is_refused_with_the_command_to_resume(bae: Any) -> None:
    bae("run", "app.py:Countdown", "--set", "left=0", "--run-id", "r1")
    done = bae("run", "app.py:Countdown", "--set", "left=0", "--run-id", "r1")
    assert done.code == 1
    assert "bae-run-exists" in done.err
    assert bae(*done.command("runs resume")).code == 0


def test_an_invalid_graph_is_refused_with_the_command_that_lists_its_errors(bae: Any) -> None:
    Path("broken.py").write_text(
        "from bae import Graph, Node\n\n\nclass Lost(Node):\n    text: str\n\n\n"
        "graph = Graph(start=Lost)\n"
    )
    done = bae("run", "broken.py", "-i", "x")
    assert done.code == 1
    assert "bae-proof-failed" in done.err
    assert "bae check broken.py" in done.err
    assert not Path(".bae").exists()


# Results that are shown


class Inner(BaseModel):
    name: str
    parts: list[str]


class Shown(Node):
    lines: str
    inner: Inner
    several: list[Inner]
    token: SecretStr
    hidden: str = Field(repr=False)
    nothing: None = None
    sure: bool = True

    async def __call__(self) -> None: ...


def print_result(*, width: int, terminal: bool) -> str:
    from rich.console import Console

    from bae.cli.values import print_node

    inner = Inner(name="a", parts=["x", "y"])
    node = Shown(
        lines="one\n\x1b[31mtwo",
        inner=inner,
        several=[inner, inner],
        token=SecretStr("hunter2"),
        hidden="hunter2",
    )
    file = io.StringIO()
    print_node(node, Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue()


def test_a_result_is_laid_out_with_its_parts_indented_and_its_secrets_withheld() -> None:
    assert print_result(width=80, terminal=False).splitlines() == [
        "Shown",
        "  lines: one",
        "    \\x1b[31mtwo",
        "  inner:",
        "    name: a",
        "    parts:",
        "      - x",
        "      - y",
        "  several:",
        "    - name: a",
        "      parts:",
        "        - x",
        "        - y",
        "    - name: a",
        "      parts:",
        "        - x",
        "        - y",
        "  token: (withheld)",
        "  hidden: (withheld)",
        "  nothing: none",
        "  sure: yes",
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 160])
def test_a_result_fits_the_terminal_and_contains_no_terminal_commands(
    width: int,
) -> None:
    lines = print_result(width=width, terminal=True).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line for line in lines)
    assert not any("hunter2" in line for line in lines)
