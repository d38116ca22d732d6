"""The reports of an evaluation, for people and for programs, and their content for a case."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from bae import LM, BaeLMError, Graph, Node
from bae.evals import Case, evaluate, page
from bae.optimizer import Score
from bae.testing import ScriptedLM
from end_node import EndNode
from eval_graphs import always_bug, counting, lengths, rows, tickets, total, words


async def test_text_from_users_cannot_break_the_markdown_of_a_report() -> None:
    odd = "a | b\n# c `d` <i> [x](y) \x1b[31m"

    class Odd(ScriptedLM):
        async def fill(self, *args: Any, **kwargs: Any) -> Any:
            raise BaeLMError(odd)

    page = (await evaluate(words, [Case({"text": "a"}, odd)], {odd: Odd()})).to_markdown()

    tables = [line for line in page.splitlines() if line.startswith("|")]
    columns = {
        len([1 for a, b in itertools.pairwise(line) if b == "|" and a != "\\"]) for line in tables
    }
    assert columns == {10, 6}
    assert "\x1b" not in page
    assert "\\`d\\` \\<i\\> \\[x\\](y)" in page
    assert not any(line.startswith("# c") for line in page.splitlines())


async def test_the_markdown_report_has_every_part_once_and_in_order() -> None:
    cases = [Case({"text": n}, n, {"severity": "high"}) for n in ("a", "b")]

    evaluation = await evaluate(tickets, cases, {"low": always_bug("low"), "high": always_bug()})

    page = [line for line in evaluation.to_markdown().splitlines() if line]
    shown = [line.rsplit(" | ", 2)[0] if re.search(r"\ds \|$", line) else line for line in page]
    shown = [line.rpartition(" | eval-")[0] or line for line in shown]
    head = "|  | cases | scored | score | valid | calls | tokens | cost | p50 | p95 |"
    rule = "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    why = "severity: 'low', where 'high' was expected"
    expected, came = '\\{"severity": "high"\\}', 'Bug \\{"severity": "low", "part": "all"\\}'
    assert shown == [
        "# Ticket: 2 cases",
        head,
        rule,
        "| low | 2 | 2 | 0.00 [0.00, 0.66] | 100 % | 4 | 0 | $0",
        "| high | 2 | 2 | 1.00 [0.34, 1.00] | 100 % | 4 | 0 | $0",
        "## Differences",
        "|  | score | beyond chance |",
        "| --- | ---: | --- |",
        "| high against low | +1.00 [+0.07, +1.00] | yes |",
        "## Ticket",
        head,
        rule,
        "| low | 2 | 2 | 1.00 [0.34, 1.00] | 100 % | 2 | 0 | $0",
        "| high | 2 | 2 | 1.00 [0.34, 1.00] | 100 % | 2 | 0 | $0",
        "## Bug",
        head,
        rule,
        "| low | 2 | 2 | 0.00 [0.00, 0.66] | 100 % | 2 | 0 | $0",
        "| high | 2 | 2 | 1.00 [0.34, 1.00] | 100 % | 2 | 0 | $0",
        "## Cases of low that failed or scored less than 1",
        "| case | score | why | expected | came | its run |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| a | 0.00 | {why} | {expected} | {came}",
        f"| b | 0.00 | {why} | {expected} | {came}",
    ]


async def test_the_csv_report_has_unrounded_numbers() -> None:
    evaluation = await evaluate(words, lengths("a", "b", "c"), {"=lm": counting(b=9)})

    lines = list(csv.DictReader(io.StringIO(evaluation.to_csv())))

    assert [(line["contender"], line["node"]) for line in lines] == [
        ("'=lm", ""),
        ("'=lm", "Length"),
    ]
    assert float(lines[0]["score"]) == total(evaluation).score.mean  # type: ignore[union-attr]
    assert (lines[0]["failed"], lines[0]["not_run"], lines[1]["failed"]) == ("0", "0", "")
    assert float(lines[1]["seconds_p95"]) == rows(evaluation)["Length"].seconds_p95


async def test_the_json_report_is_complete_and_deterministic_except_for_times_and_ids() -> None:
    async def once() -> dict[str, Any]:
        cases = [*lengths("a", "bb"), Case({"text": "c"}, "c", metadata={"at": Path("x")})]
        evaluation = await evaluate(words, cases, {"x": counting(bb=9), "y": counting()})
        return json.loads(json.dumps(evaluation.to_json()))

    def steady(value: Any) -> Any:
        if isinstance(value, Mapping):
            changing = ("seconds", "run_id")
            return {k: steady(v) for k, v in value.items() if not k.startswith(changing)}
        if isinstance(value, Sequence) and not isinstance(value, str):
            return [steady(item) for item in value]
        return value

    first = await once()

    assert first["format"] == "bae-evaluation-1"
    assert steady(first) == steady(await once())
    case = first["contenders"][0]["cases"][1]
    assert (case["name"], case["score"], case["outcome"]) == ("bb", 0.0, "ended")
    assert case["why"]
    assert case["run_id"].startswith("eval-")
    assert first["contenders"][0]["cases"][2]["metadata"] == {"at": "x"}
    assert first["differences"][0]["score"]["n"] == 3


# What reports have of a case


async def test_a_report_has_inputs_expected_outputs_and_real_outputs() -> None:
    class Login(Node):
        user: str
        password: SecretStr

        async def __call__(self) -> Session:
            return Session(user=self.user, token="t0ken", odd={1, 2})  # type: ignore[arg-type]

    class Session(Node):
        user: str
        token: SecretStr
        odd: Any = None

        async def __call__(self) -> None: ...

    fields = {"user": "ann", "password": "hunter2"}
    cases = [
        Case(fields, "fields", {"user": "bob", "token": "s3same"}),
        Case(Login(**fields), "node", {"user": "ann"}),  # type: ignore[arg-type]
    ]

    evaluation = await evaluate(Graph(start=Login), cases, {"no lm": None})

    data = json.loads(json.dumps(evaluation.to_json()))
    first, second = data["contenders"][0]["cases"]
    assert first["input"] == second["input"] == {"user": "ann"}
    assert first["expected"] == {"user": "bob"}
    assert first["end"]["type"] == "Session"
    assert first["end"]["fields"]["user"] == "ann"
    assert first["end"]["withheld"] == ["token"]
    page = evaluation.to_markdown()
    assert '\\{"user": "bob"\\} | Session \\{"user": "ann"' in page
    for secret in ("hunter2", "t0ken", "s3same"):
        assert secret not in page + json.dumps(data)


async def test_a_report_survives_lone_surrogates_and_long_texts(tmp_path: Path) -> None:
    half = "\ud800"
    case = Case({"text": "a"}, half, metadata={half: [half, b"\xff", float("nan")]})
    why = Score(0.5, half + "a " * 100_000)

    evaluation = await evaluate(words, [case], {half: counting()}, metric=lambda *_: why)

    data = json.dumps(evaluation.to_json(), allow_nan=False, ensure_ascii=False)
    for text in (evaluation.to_markdown(), evaluation.to_csv(), data):
        (tmp_path / "report").write_text(text, encoding="utf-8")
    assert "\\\\ud800a a a" in evaluation.to_markdown()
    assert len(evaluation.to_markdown()) < 2000


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (page.format_score(0.9967), "0.997"),
        (page.format_score(0.999999), "0.9999"),
        (page.format_score(1.0), "1.00"),
        (page.format_score(0.004), "0.004"),
        (page.format_score(0.0), "0.00"),
        (page.format_share(0.9967), "99 %"),
        (page.format_cost(0.00002), "$2.0e-05"),
        (page.format_cost(0.99999), "$1.00"),
        (page.format_seconds(9.999), "10s"),
    ],
)
def test_no_number_in_a_report_is_rounded_to_a_better_number(number: str, said: str) -> None:
    assert number == said


async def test_error_messages_of_a_graph_with_secrets_stay_out_of_the_report() -> None:
    class Login(Node):
        password: SecretStr

        async def __call__(self) -> None:
            raise RuntimeError(self.password.get_secret_value())

    evaluation = await evaluate(
        Graph(start=Login), [Case({"password": "hunter2"})], {"no lm": None}
    )

    assert "caused by RuntimeError" in evaluation.contenders[0].cases[0].error
    assert "hunter2" not in json.dumps(evaluation.to_json()) + evaluation.to_markdown()


async def test_secrets_of_a_class_outside_the_graph_stay_out_of_the_report() -> None:
    class Login(EndNode):
        password: SecretStr

    class Enter(Node):
        async def __call__(self, lm: LM) -> None:
            login = await lm.make(self, Login)
            raise RuntimeError(login.password.get_secret_value())

    lm = ScriptedLM([{"password": "hunter2"}])
    evaluation = await evaluate(Graph(start=Enter), [Case({})], {"scripted": lm})

    assert "caused by RuntimeError" in evaluation.contenders[0].cases[0].error
    assert "hunter2" not in json.dumps(evaluation.to_json()) + evaluation.to_markdown()
