"""Cases for evaluations: read from files, and checked against the graph before anything runs."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, Field, field_validator

from bae import BaeError, Dep, Graph, Node
from bae.evals import Case, evaluate, load_cases
from bae.testing import ScriptedLM


class Ticket(Node):
    text: str

    async def __call__(self) -> Bug | Question: ...


class Bug(Node):
    severity: Literal["low", "high"]
    seen: date | None = None

    async def __call__(self) -> None: ...


class Question(Node):
    topic: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    reply: str

    async def __call__(self) -> None: ...


class Booking(Node):
    model_config = ConfigDict(strict=True)

    day: date
    guests: int = Field(default=1, ge=1)
    nights: int = Field(default=1, alias="nightCount")

    async def __call__(self) -> None: ...


tickets = Graph(start=Ticket, end=(Bug, Reply))
bookings = Graph(start=Booking)


def written(tmp_path: Path, *lines: Any) -> Path:
    file = tmp_path / "cases.jsonl"
    said = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("\n".join(said), encoding="utf-8")
    return file


def refusal(file: Path, graph: Graph[Any, Any] = tickets) -> str:
    with pytest.raises(BaeError) as caught:
        load_cases(file, graph)
    assert caught.value.code == "bae-cases-invalid"
    assert caught.value.fix
    return caught.value.message


def test_a_line_has_all_that_a_case_has(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {
            "input": {"text": "it crashes"},
            "name": "a crash",
            "expected": {"severity": "high"},
            "expected_type": "Bug",
            "nodes": {"Question": {"topic": "none"}},
            "metadata": {"from": "mail"},
        },
    )

    assert load_cases(file, tickets) == [
        Case(
            {"text": "it crashes"},
            "a crash",
            {"severity": "high"},
            "Bug",
            {"Question": {"topic": "none"}},
            {"from": "mail"},
        )
    ]


def test_a_byte_order_mark_blank_lines_and_line_ends_of_windows_are_no_matter(
    tmp_path: Path,
) -> None:
    file = tmp_path / "cases.jsonl"
    text = '{"input": {"text": "ä"}}\r\n\r\n   \r\n{"input": {"text": "b"}}\r\n'
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())

    found = load_cases(file, tickets)

    assert [case.inputs for case in found] == [{"text": "ä"}, {"text": "b"}]
    assert [case.name for case in found] == ["case 1", "case 4"]


def test_the_only_field_of_the_start_can_be_given_by_its_value(tmp_path: Path) -> None:
    file = written(tmp_path, {"input": "it crashes"})

    assert load_cases(file, tickets)[0].inputs == {"text": "it crashes"}


def test_everything_that_is_wrong_is_reported_at_once_with_line_and_field(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {"input": {"text": 3}},
        {"input": {"txt": "a"}},
        {"inputs": {"text": "a"}},
        "{nonsense",
        "[]",
        {"input": {"text": "a"}, "expected": {"severty": "low"}, "expected_type": "Bug"},
        {"input": {"text": "a"}, "expected": {"severity": "hgih"}, "expected_type": "Bug"},
        {"input": {"text": "a"}, "expected_type": "Question"},
        {"input": {"text": "a"}, "nodes": {"Bugg": {}}},
        {"input": {"text": "a"}, "nodes": {"Bug": {"severity": 1}}},
        {"input": {"text": "a"}, "nodes": {"Bug": "high"}, "name": 3},
        {"input": {"text": "a"}, "expected": {"repl": "x"}},
    )

    said = refusal(file)

    for expected in (
        f"{file} has cases that Ticket cannot run:",
        "line 1: input.text: Input should be a valid string",
        "line 2: input.txt: Ticket has no such field, did you mean text?",
        "line 3: inputs: there is no such key, did you mean input?",
        "line 3: input: there is none",
        "line 4: is not JSON: ",
        "line 5: is no JSON object",
        "line 6: expected.severty: Bug has no such field, did you mean severity?",
        "line 7: expected.severity: Input should be 'low' or 'high'",
        "line 8: expected_type: no run of Ticket ends there: 'Question' is no such node",
        "line 9: nodes: 'Bugg' is no such node, did you mean Bug?",
        "line 10: nodes.Bug.severity: Input should be 'low' or 'high'",
        "line 11: name: Input should be a valid string",
        "line 11: nodes.Bug: Input should be a valid dictionary",
        "line 12: expected.repl: no end has such a field, did you mean reply?",
    ):
        assert expected in said


def test_no_more_than_twenty_problems_are_listed(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, *[{"input": {"text": n}} for n in range(1000)]))

    assert said.count("\n  line ") == 20
    assert said.endswith("and more: these are the first 20")


def test_what_is_expected_need_fit_only_one_of_the_ends(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {"input": "a", "expected": {"reply": "b"}},
        {"input": "c", "expected": {"severity": "low"}},
    )

    assert len(load_cases(file, tickets)) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"input": {"text": "a"}, "name": "x"}\n' * 2, "line 2: name: line 1 is called 'x' too"),
        (
            '{"input": {"text": "a"}, "expected": 3}',
            "line 1: expected: Input should be a valid dictionary",
        ),
        ("[" * 100_000, "line 1: is not JSON: "),
        ("\n \n", "there is no case in "),
    ],
)
def test_a_file_without_valid_cases_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(text, encoding="utf-8")

    assert problem in refusal(file)


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_bytes(b'{"input": {"text": "a"}}\n{"input": "\xff"}')

    assert "line 2: is not JSON: 'utf-8' codec can't decode byte 0xff" in refusal(file)


def test_values_are_read_as_json_and_fields_may_go_by_their_alias(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {"input": {"day": "2026-02-03", "nightCount": 2}, "expected": {"day": "2026-02-03"}},
        {"input": {"day": "2026-02-03", "nights": 2}},
    )

    assert len(load_cases(file, bookings)) == 2
    assert "line 1: input.guests: Input should be greater" in refusal(
        written(tmp_path, {"input": {"day": "2026-02-03", "guests": 0}}), bookings
    )


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(), st.text(min_size=1)), min_size=1, max_size=5))
def test_whatever_text_a_case_has_comes_back_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]]
) -> None:
    cases = {name: text for text, name in texts}
    file = tmp_path_factory.mktemp("cases") / "cases.jsonl"
    lines = [json.dumps({"input": {"text": t}, "name": n}) for n, t in cases.items()]
    file.write_text("\n".join(lines), encoding="utf-8")

    assert load_cases(file, tickets) == [Case({"text": t}, n) for n, t in cases.items()]


# Cases made in code are held to the same.


async def test_cases_made_in_code_are_checked_before_one_of_them_runs() -> None:
    lm = ScriptedLM({Bug: lambda _: {"severity": "low"}})
    cases = [
        Case({"text": "a"}, expected={"severity": "low"}),
        Case({"text": "b"}, expected={"sverity": "low"}, expected_type="Bug"),
        Case(Booking(day=date(2026, 2, 3))),
        Case({"text": "d"}, "case 1"),
        Case("e"),  # type: ignore[arg-type]
    ]

    with pytest.raises(BaeError) as caught:
        await evaluate(tickets, cases, {"lm": lm})

    assert caught.value.code == "bae-cases-invalid"
    for problem in (
        "case 2: expected.sverity: Bug has no such field, did you mean severity?",
        "case 3: input: a run starts with a Ticket, not a Booking",
        "case 1: name: another case is called 'case 1' too",
        "case 5: input: give an object of the fields of Ticket",
    ):
        assert problem in caught.value.message
    assert lm.asked == []


async def test_inputs_and_expected_fields_may_be_python_values_or_nodes() -> None:
    day = date(2026, 2, 3)
    cases = [
        Case({"day": day}, expected={"day": day}),
        Case(Booking(day=day), expected={"day": "2026-02-03"}),
        Case({"day": "2026-02-03"}, expected={"day": date(2026, 2, 4)}),
    ]

    found = await evaluate(bookings, cases, {"no lm": None})

    assert [result.score for result in found.contenders[0].cases] == [1.0, 1.0, 0.0]


async def test_a_field_that_is_given_by_its_alias_is_there() -> None:
    cases = [Case({"day": "2026-02-03", "nightCount": 3}, expected={"nights": 3})]

    found = await evaluate(bookings, cases, {"no lm": None})

    assert found.contenders[0].cases[0].score == 1.0


async def test_node_classes_of_one_name_have_different_names_in_cases() -> None:
    def inner() -> type[Node]:
        class Reply(Node):
            count: int

            async def __call__(self) -> None: ...

        return Reply

    other = inner()

    class Asking(Node):
        async def __call__(self) -> other: ...  # type: ignore[valid-type]

    class Outer(Node):
        async def __call__(self) -> Reply: ...

    class Start(Node):
        first: Annotated[Any, Dep(Asking)]

        async def __call__(self) -> Outer: ...

    graph = Graph(start=Start)
    lm = ScriptedLM(
        {"Reply": lambda asked: {"count": 1} if asked.target is other else {"reply": "a"}}
    )
    names = ["Reply", "Reply 2"]

    found = await evaluate(graph, [Case({}, nodes={names[1]: {"count": 1}})], {"lm": lm})

    rows = {row.node: row for row in found.contenders[0].nodes}
    assert list(rows) == names
    assert rows[names[0]].score is None
    assert rows[names[1]].score is not None
    assert rows[names[1]].score.mean == 1.0


# What goes wrong in a file, or in code, is said as what it is.


def test_what_a_validator_of_the_start_raises_is_reported_with_its_line(tmp_path: Path) -> None:
    class Only(Node):
        text: str

        @field_validator("text", mode="before")
        @classmethod
        def trim(cls, value: Any) -> Any:
            return value.strip()

        async def __call__(self) -> None: ...

    said = refusal(written(tmp_path, {"input": {"txt": "a"}}, {"input": 3}), Graph(start=Only))

    assert "line 1: input.txt: Only has no such field, did you mean text?" in said
    assert "line 2: input: Only raised AttributeError" in said


def test_a_key_that_is_null_is_as_one_that_is_left_out(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("name", "expected", "expected_type", "nodes", "metadata"))

    assert load_cases(written(tmp_path, {"input": "a", **nothing}), tickets) == [
        Case({"text": "a"}, "case 1")
    ]


async def test_expected_fields_may_go_by_their_alias(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        {"input": {"day": "2026-02-03", "nights": 3}, "expected": {"nightCount": 3}},
        {"input": {"day": "2026-02-03"}, "nodes": {"Booking": {"nightCount": 2}}},
    )

    found = await evaluate(bookings, load_cases(file, bookings), {"no lm": None})

    first, second = found.contenders[0].cases
    assert first.score == 1.0
    assert second.nodes["Booking"].value == 0.0
    assert "line 1: expected.nights: Input should be a valid integer" in refusal(
        written(tmp_path, {"input": {"day": "2026-02-03"}, "expected": {"nightCount": "x"}}),
        bookings,
    )


async def test_cases_of_another_kind_are_refused_by_what_they_are() -> None:
    cases: list[Any] = [
        "hi",
        {"input": {"text": "a"}},
        Case({"text": "a"}, expected="calm"),  # type: ignore[arg-type]
        Case({"text": "a"}, nodes={"Bug": "low"}),  # type: ignore[dict-item]
        Case({"text": "a"}, expected_type=Bug),  # type: ignore[arg-type]
        Case({"text": "a"}, metric="exact"),  # type: ignore[arg-type]
    ]

    with pytest.raises(BaeError) as caught:
        await evaluate(tickets, cases, {"lm": ScriptedLM()})

    assert caught.value.code == "bae-cases-invalid"
    for problem in (
        "case 1: give a Case, and not 'hi'",
        "case 2: give a Case, and not {'input'",
        "case 3: expected: Input should be a valid dictionary",
        "case 4: nodes.Bug: Input should be a valid dictionary",
        "case 5: expected_type: Input should be a valid string",
        "case 6: metric: Input should be callable",
    ):
        assert problem in caught.value.message
