"""Cases for evaluations: read from files, checked against the graph before anything runs, and with
answers for the gates of their runs."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, Field, SecretStr, ValidationError, field_validator

from bae import BaeError, Dep, Gate, Graph, Node, OpenGate
from bae.evals import Case, evaluate, load_cases
from bae.testing import ScriptedLM
from eval_graphs import Bug, Reply, always_bug, rows, tickets


class Booking(Node):
    model_config = ConfigDict(strict=True)

    day: date
    guests: int = Field(default=1, ge=1)
    nights: int = Field(default=1, alias="nightCount")

    async def __call__(self) -> None: ...


bookings = Graph(start=Booking)
DAY = {"day": "2026-02-03"}


def write_cases(tmp_path: Path, *lines: Any) -> Path:
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


def test_a_line_can_have_every_key_of_a_case_and_needs_only_the_input(tmp_path: Path) -> None:
    whole = {
        "input": {"text": "it crashes"},
        "name": "a crash",
        "expected": {"severity": "high"},
        "expected_type": "Bug",
        "nodes": {"Question": {"topic": "none"}},
        "metadata": {"from": "mail"},
    }
    nothing = dict.fromkeys([*whole][1:])
    file = write_cases(tmp_path, whole, {"input": "it crashes"}, {"input": "a", **nothing})

    assert load_cases(file, tickets) == [
        Case(*whole.values()),  # type: ignore[arg-type]
        Case({"text": "it crashes"}, "case 2"),
        Case({"text": "a"}, "case 3"),
    ]


def test_case_files_may_have_a_byte_order_mark_blank_lines_and_crlf(
    tmp_path: Path,
) -> None:
    file = tmp_path / "cases.jsonl"
    text = '{"input": {"text": "ä"}}\r\n\r\n   \r\n{"input": {"text": "b"}}\r\n'
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())

    assert load_cases(file, tickets) == [
        Case({"text": "ä"}, "case 1"),
        Case({"text": "b"}, "case 4"),
    ]


def test_all_problems_of_a_case_file_are_reported_with_line_and_field(tmp_path: Path) -> None:
    ticket = {"input": {"text": "a"}}
    wrong: list[tuple[Any, str]] = [
        ({"input": {"text": 3}}, "input.text: Input should be a valid string"),
        ({"input": {"txt": "a"}}, "input.txt: Ticket has no such field, did you mean text?"),
        ({"inputs": {"text": "a"}}, "inputs: there is no such key, did you mean input?"),
        ("{nonsense", "is not JSON: "),
        ("[" * 100_000, "is not JSON: "),
        ("[]", "is no JSON object"),
        (
            {**ticket, "expected": {"severty": "low"}, "expected_type": "Bug"},
            "expected.severty: Bug has no such field, did you mean severity?",
        ),
        (
            {**ticket, "expected": {"severity": "hgih"}, "expected_type": "Bug"},
            "expected.severity: Input should be 'low' or 'high'",
        ),
        (
            {**ticket, "expected_type": "Question"},
            "expected_type: no run of Ticket ends there: 'Question' is no such node",
        ),
        ({**ticket, "nodes": {"Bugg": {}}}, "nodes: 'Bugg' is no such node, did you mean Bug?"),
        (
            {**ticket, "nodes": {"Bug": {"severity": 1}}},
            "nodes.Bug.severity: Input should be 'low' or 'high'",
        ),
        ({**ticket, "expected": 3}, "expected: Input should be a valid dictionary"),
        (
            {**ticket, "expected": {"repl": "x"}},
            "expected.repl: no end has such a field, did you mean reply?",
        ),
        ({**ticket, "name": "case 1"}, "name: line 1 is called 'case 1' too"),
        ({**ticket, "nodes": {"Bug": "high"}, "name": 3}, "name: Input should be a valid string"),
    ]

    message = refusal(write_cases(tmp_path, *(line for line, _ in wrong)))

    assert "cases.jsonl has cases that Ticket cannot run:" in message
    for number, (_, problem) in enumerate(wrong, 1):
        assert f"line {number}: {problem}" in message
    assert "line 3: input: there is none" in message
    assert "line 15: nodes.Bug: Input should be a valid dictionary" in message


def test_at_most_twenty_problems_of_a_case_file_are_listed(tmp_path: Path) -> None:
    message = refusal(write_cases(tmp_path, *[{"input": {"text": n}} for n in range(1000)]))

    assert message.count("\n  line ") == 20
    assert message.endswith("and more: these are the first 20")


def test_an_empty_or_undecodable_case_file_is_refused(tmp_path: Path) -> None:
    assert "there is no case in " in refusal(write_cases(tmp_path, "\n \n"))
    file = tmp_path / "cases.jsonl"
    file.write_bytes(b'{"input": {"text": "a"}}\n{"input": "\xff"}')
    assert "line 2: is not JSON: 'utf-8' codec can't decode byte 0xff" in refusal(file)


def test_an_expected_value_needs_to_match_only_one_end_of_the_graph(tmp_path: Path) -> None:
    expected: list[dict[str, Any]] = [{"reply": "b"}, {"severity": "low"}]
    file = write_cases(tmp_path, *({"input": "a", "expected": fields} for fields in expected))

    assert [case.expected for case in load_cases(file, tickets)] == expected


async def test_cases_accept_json_values_and_field_aliases(tmp_path: Path) -> None:
    file = write_cases(
        tmp_path,
        {"input": {**DAY, "nightCount": 3}, "expected": {**DAY, "nights": 3}},
        {"input": {**DAY, "nights": 3}, "expected": {"nightCount": 3}},
        {"input": DAY, "nodes": {"Booking": {"nightCount": 2}}},
    )

    evaluation = await evaluate(bookings, load_cases(file, bookings), {"no lm": None})

    assert [result.score for result in evaluation.contenders[0].cases] == [1.0, 1.0, 0.0]
    wrong = {"input": {**DAY, "guests": 0}, "expected": {"nightCount": "x"}}
    message = refusal(write_cases(tmp_path, wrong), bookings)
    assert "line 1: input.guests: Input should be greater" in message
    assert "line 1: expected.nights: Input should be a valid integer" in message


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(), st.text(min_size=1)), min_size=1, max_size=5))
def test_any_text_of_a_case_is_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, str]]
) -> None:
    cases = {name: text for text, name in texts}
    lines = [{"input": {"text": t}, "name": n} for n, t in cases.items()]
    file = write_cases(tmp_path_factory.mktemp("cases"), *lines)

    assert load_cases(file, tickets) == [Case({"text": t}, n) for n, t in cases.items()]


def test_an_exception_of_a_start_nodes_validator_is_reported_with_its_line(tmp_path: Path) -> None:
    class Only(Node):
        text: str

        @field_validator("text", mode="before")
        @classmethod
        def trim(cls, value: Any) -> Any:
            return value.strip()

        async def __call__(self) -> None: ...

    message = refusal(
        write_cases(tmp_path, {"input": {"txt": "a"}}, {"input": 3}), Graph(start=Only)
    )

    assert "line 1: input.txt: Only has no such field, did you mean text?" in message
    assert "line 2: input: Only raised AttributeError" in message


# Cases made in code are held to the same.


async def test_cases_built_in_code_are_checked_before_the_first_run() -> None:
    lm = always_bug()
    ticket = {"text": "a"}
    wrong: list[tuple[Any, str]] = [
        (Case(ticket, expected={"severity": "low"}), ""),
        (
            Case(ticket, expected={"sverity": "low"}, expected_type="Bug"),
            "case 2: expected.sverity: Bug has no such field, did you mean severity?",
        ),
        (
            Case(Booking(day=date(2026, 2, 3))),
            "case 3: input: a run starts with a Ticket, not a Booking",
        ),
        (Case(ticket, "case 1"), "case 1: name: another case is called 'case 1' too"),
        (Case("e"), "case 5: input: give an object of the fields of Ticket"),  # type: ignore[arg-type]
        ("hi", "case 6: give a Case, and not 'hi'"),
    ]

    with pytest.raises(BaeError) as caught:
        await evaluate(tickets, [case for case, _ in wrong], {"lm": lm})

    assert caught.value.code == "bae-cases-invalid"
    for _, problem in wrong:
        assert problem in caught.value.message
    assert lm.asked == []
    with pytest.raises(ValidationError, match="expected_type\n  Input should be a valid string"):
        Case(ticket, expected_type=Bug)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"load_cases\(file, graph\)"):
        await evaluate(tickets, "cases.jsonl", {"lm": lm})  # type: ignore[arg-type]


async def test_inputs_and_expected_fields_may_be_python_values_or_nodes() -> None:
    day = date(2026, 2, 3)
    cases = [
        Case({"day": day}, expected={"day": day}),
        Case(Booking(day=day), expected={"day": "2026-02-03"}),
        Case({"day": "2026-02-03"}, expected={"day": date(2026, 2, 4)}),
    ]

    evaluation = await evaluate(bookings, cases, {"no lm": None})

    assert [result.score for result in evaluation.contenders[0].cases] == [1.0, 1.0, 0.0]


async def test_node_classes_with_one_name_are_distinguished_in_cases() -> None:
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

    lm = ScriptedLM(
        {"Reply": lambda asked: {"count": 1} if asked.target is other else {"reply": "a"}}
    )
    case = Case({}, nodes={"Reply 2": {"count": 1}})

    found = rows(await evaluate(Graph(start=Start), [case], {"lm": lm}))

    assert {name: row.score and row.score.mean for name, row in found.items()} == {
        "Reply": None,
        "Reply 2": 1.0,
    }


# Answers to gates


class Order(Node):
    item: str

    async def __call__(self) -> Refund: ...


class Refund(Node):
    approved: Annotated[bool, Gate("Refund it?")]
    until: Annotated[date, Gate("Until when?")]
    pin: Annotated[SecretStr | None, Gate("The PIN?")] = None

    async def __call__(self) -> None: ...


class Checking(Node):
    fine: Annotated[bool, Gate("Is it fine?")]

    async def __call__(self) -> None: ...


class Parcel(Node):
    checked: Annotated[Checking, Dep(Graph(start=Checking))]

    async def __call__(self) -> None: ...


class Sending(Node):
    item: str

    async def __call__(self) -> Parcel: ...


ANSWERS = {"Refund.approved": True, "Refund.until": "2026-02-03", "Refund.pin": "4711"}


async def evaluate_case(start: type[Node], more: Any = None, **case: Any) -> Any:
    given = Case({"item": "hat"}, **case)
    evaluation = await evaluate(Graph(start=start), [given], {"script": ScriptedLM()}, answer=more)
    return evaluation.contenders[0].cases[0]


async def test_a_case_answers_the_gates_of_its_run() -> None:
    expected = {"approved": True, "until": "2026-02-03"}
    result = await evaluate_case(Order, expected=expected, answers=ANSWERS)
    assert (result.outcome, result.score) == ("ended", 1.0)
    assert result.asked["answers"] == {"Refund.approved": True, "Refund.until": "2026-02-03"}
    inside = await evaluate_case(Sending, answers={"Checking.fine": True})
    assert inside.end["fields"]["checked"]["fine"] is True


async def test_a_gate_without_an_answer_in_its_case_uses_the_common_answerer() -> None:
    met: list[str] = []

    async def answer(gate: OpenGate) -> Any:
        met.append(gate.place)
        return date(2026, 1, 1) if gate.field_name == "until" else None

    answers = {"Refund.approved": False}
    assert (await evaluate_case(Order, answer, answers=answers)).outcome == "ended"
    assert sorted(met) == ["Refund.pin", "Refund.until"]
    left = await evaluate_case(Order, answers=answers)
    assert left.failed
    assert "Refund.until: Until when?" in left.error
    assert '"answers": {"Refund.' in left.error


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({"Refund.aproved": True}, "did you mean Refund.approved?"),
        ({"Refund.until": "soon"}, "answers.Refund.until: "),
    ],
)
async def test_answers_for_unknown_gates_are_refused_before_the_first_run(
    answers: Any, says: str
) -> None:
    with pytest.raises(BaeError) as caught:
        await evaluate_case(Order, answers=answers)
    assert caught.value.code == "bae-cases-invalid"
    assert says in caught.value.message
