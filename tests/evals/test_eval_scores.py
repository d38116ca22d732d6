"""What scores are of: the end that a case expects, nodes on the way, choices, and own metrics."""

from __future__ import annotations

import asyncio
import threading
from typing import Annotated, Any

import pytest

from bae import Graph, Map, Node
from bae.evals import Case, evaluate
from bae.optimizer import Score
from bae.testing import ScriptedLM
from eval_graphs import (
    Bug,
    Hooked,
    Length,
    Question,
    Reply,
    Ticket,
    Word,
    always_bug,
    counting,
    lengths,
    results,
    rows,
    scores,
    tickets,
    words,
)

# Scores


async def test_contenders_are_compared_case_by_case() -> None:
    cases = lengths("a", "bb", "ccc", "dddd")
    wrong = counting(a=9, bb=9, ccc=9, dddd=9)

    evaluation = await evaluate(
        words, cases, {"wrong": wrong, "right": counting(), "half": counting(a=9, bb=9)}
    )

    assert [contender.name for contender in evaluation.contenders] == ["wrong", "right", "half"]
    assert [
        contender.total.score and contender.total.score.mean for contender in evaluation.contenders
    ] == [0, 1, 0.5]
    assert [(d.contender, d.against) for d in evaluation.differences] == [
        ("right", "wrong"),
        ("half", "wrong"),
    ]
    assert [d.interval and d.interval.mean for d in evaluation.differences] == [1.0, 0.5]
    assert [d.certain for d in evaluation.differences] == [True, False]
    assert [result.case.name for result in evaluation.contenders[2].cases] == [
        "a",
        "bb",
        "ccc",
        "dddd",
    ]


async def test_the_end_is_scored_only_by_its_type_and_expected_fields() -> None:
    cases = [
        Case({"text": "a"}, "typed", expected_type="Bug"),
        Case({"text": "b"}, "other", {"reply": "b"}, "Reply"),
        Case({"text": "c"}, "untyped", {"reply": "c"}),
        Case({"text": "d"}, "nothing"),
        Case({"text": "e"}, "wrong", {"severity": "low"}),
        Case({"text": "f"}, "right", {"part": "all"}),
    ]

    evaluation = await evaluate(tickets, cases, {"lm": always_bug()})

    assert {name: (r.score, r.why) for name, r in results(evaluation).items()} == {
        "typed": (1.0, ""),
        "other": (0.0, "ended at Bug, not at Reply"),
        "untyped": (0.0, "Bug has no reply"),
        "nothing": (1.0, ""),
        "wrong": (0.0, "severity: 'high', where 'low' was expected"),
        "right": (1.0, ""),
    }


async def test_a_metric_may_be_async_explain_its_score_or_belong_to_a_case() -> None:
    async def shorter(case: Case, result: Any) -> Score:
        return Score(1 / result.result.count, f"as {case.name} is")

    def truthy(case: Case, result: Any) -> bool:
        return result.result.count > 1

    evaluation = await evaluate(words, lengths("a", "bb"), {"lm": counting()}, metric=shorter)
    plain = await evaluate(words, lengths("a", "bb"), {"lm": counting()}, metric=truthy)
    cases = [
        Case({"text": "a"}, metric=lambda *_: 0.25),
        Case({"text": "b"}, expected={"count": 1}),
    ]
    own = await evaluate(words, cases, {"lm": counting()})
    overruled = await evaluate(words, cases, {"lm": counting()}, metric=lambda *_: 0.75)

    assert [(r.score, r.why) for r in evaluation.contenders[0].cases] == [
        (1, "as a is"),
        (0.5, "as bb is"),
    ]
    assert scores(plain) == [0.0, 1.0]
    assert scores(own) == [0.25, 1.0]
    assert scores(overruled) == [0.75, 0.75]


async def test_the_score_of_a_case_includes_every_expectation() -> None:
    def lm() -> ScriptedLM:
        return ScriptedLM(
            {Question: lambda _: {"topic": "billing"}, Reply: lambda _: {"reply": "no"}},
            choices=[Question] * 6,
        )

    topic = {"Question": {"topic": "billing"}}
    other = {"Question": {"topic": "login"}}
    cases = [
        Case({"text": "a"}, "all", {"reply": "no"}, "Reply", nodes=topic),
        Case({"text": "b"}, "nodes alone", nodes={**other, "Bug": {}}),
        Case({"text": "c"}, "the way", {"reply": "no"}, nodes=other),
        Case({"text": "d"}, "the end", {"reply": "yes"}, nodes=topic),
        Case({"text": "e"}, "the type", expected_type="Bug", nodes={**topic, "Bug": {}}),
        Case({"text": "f"}, "nothing"),
    ]

    evaluation = await evaluate(tickets, cases, {"lm": lm()}, concurrency=1)

    login = "Question: topic: 'billing', where 'login' was expected"
    assert {name: (r.score, r.why) for name, r in results(evaluation).items()} == {
        "all": (1.0, ""),
        "nodes alone": (0.0, f"{login}; Bug: the run did not reach it"),
        "the way": (0.5, login),
        "the end": (0.5, "reply: 'no', where 'yes' was expected"),
        "the type": (
            pytest.approx(1 / 3),
            "ended at Reply, not at Bug; Bug: the run did not reach it",
        ),
        "nothing": (1.0, ""),
    }
    # The row of the end has the score of the end alone; that of Question, of five that expect it.
    assert [results(evaluation)[name].nodes["Reply"].value for name in ("the way", "the end")] == [
        1,
        0,
    ]
    means = {
        name: row.score and (row.score.mean, row.score.n) for name, row in rows(evaluation).items()
    }
    assert means["Question"] == (0.6, 5)
    assert means["Bug"] == (0.0, 2)


async def test_node_metrics_contribute_to_the_score_of_a_case() -> None:
    lm = ScriptedLM({Question: [{"topic": "a"}], Reply: [{"reply": "b"}]}, choices=[Question])
    case = Case({"text": "a"}, expected={"reply": "x"}, nodes={"Question": {"topic": "y"}})

    evaluation = await evaluate(
        tickets,
        [case],
        {"lm": lm},
        node_metrics={Question: lambda *_: Score(0.25, "vague"), Reply: lambda *_: 0.75},
    )

    [result] = evaluation.contenders[0].cases
    assert (result.score, result.why) == (0.5, "Reply: 0.75; Question: vague")


async def test_the_last_node_or_map_item_of_a_class_is_scored() -> None:
    class Guess(Node):
        number: int

        async def __call__(self) -> Guess | None: ...

    class Titles(Node):
        texts: list[str]
        counted: Annotated[list[Length], Map(words, over="texts")]

        async def __call__(self) -> None: ...

    first_may_go = asyncio.Event()

    async def last_first(word: Word) -> None:
        if word.text != "a":
            first_may_go.set()
        await first_may_go.wait()

    guessing = ScriptedLM([Guess, {"number": 2}, Guess, {"number": 3}, None])
    guess = Case({"number": 1}, nodes={"Guess": {"number": 3}})
    title = Case({"texts": ["a", *["b"] * 9, "cc"]}, nodes={"Length": {"count": 2}})
    for graph, case, lm, name, calls in (
        (Graph(start=Guess), guess, guessing, "Guess", 5),
        (Graph(start=Titles), title, Hooked(last_first), "Length", 11),
    ):
        row = rows(await evaluate(graph, [case], {"lm": lm}))[name]
        assert row.score is not None
        assert (row.score.mean, row.calls) == (1.0, calls)


async def test_a_node_metric_receives_the_expected_and_the_actual_node() -> None:
    met: list[tuple[Bug, Bug]] = []

    async def close(expected: Bug, given: Bug) -> float:
        met.append((expected, given))
        return 0.5

    cases = [Case({"text": "a"}, expected={"severity": "low"})]

    evaluation = await evaluate(tickets, cases, {"lm": always_bug()}, node_metrics={Bug: close})

    assert met == [(Bug(severity="low", part="all"), Bug(severity="high", part="all"))]
    assert evaluation.contenders[0].cases[0].score == 0.5
    assert rows(evaluation)["Bug"].score is not None
    assert rows(evaluation)["Bug"].score.mean == 0.5


# What scores are of


class Sorting(Node):
    text: str

    async def __call__(self) -> Keep | Drop: ...


class Keep(Node):
    place: int

    async def __call__(self) -> None: ...


class Drop(Node):
    reason: str

    async def __call__(self) -> None: ...


sortings = Graph(start=Sorting)


class Flaky(ScriptedLM):
    """An LM that keeps the first thing in place 1, drops the second, and then is down."""

    def __init__(self) -> None:
        super().__init__({Keep: [{"place": 1}], Drop: [{"reason": "old"}]}, choices=[Keep, Drop])

    async def choose_type(self, types: Any, context: Any) -> Any:
        if len(self.asked) > 3:
            raise ConnectionError("down")
        return await super().choose_type(types, context)


async def test_a_node_has_the_score_of_every_case_that_expects_it_including_failed_cases() -> None:
    cases = [Case({"text": text}, text, {"place": 1}) for text in ("a", "b", "c", "d")]

    evaluation = await evaluate(sortings, cases, {"lm": Flaky()}, concurrency=1)

    assert [r.outcome for r in evaluation.contenders[0].cases] == [
        "ended",
        "ended",
        "failed",
        "failed",
    ]
    keep = rows(evaluation)["Keep"].score
    assert keep is not None
    assert (keep.n, keep.mean) == (4, 0.25)
    # The other end did nothing wrong by being there.
    assert rows(evaluation)["Drop"].score is None


async def test_a_choice_is_scored_by_whether_it_can_lead_to_the_expected_end() -> None:
    cases = [
        Case({"text": "a"}, "right", expected_type="Keep"),
        Case({"text": "b"}, "wrong", expected_type="Keep"),
        Case({"text": "c"}, "none", expected_type="Drop"),
        Case({"text": "d"}, "untold"),
    ]

    evaluation = await evaluate(sortings, cases, {"lm": Flaky()}, concurrency=1)

    told = {name: result.nodes.get("Sorting") for name, result in results(evaluation).items()}
    assert told == {
        "right": Score(1.0),
        "wrong": Score(0.0, "chose Drop, where Keep was expected"),
        "none": Score(0.0, "no valid choice, where Drop was expected"),
        "untold": None,
    }
    assert rows(evaluation)["Sorting"].score is not None
    assert rows(evaluation)["Sorting"].score.n == 3


async def test_an_intermediate_choice_is_scored_unless_every_option_is_right() -> None:
    class Digging(Node):
        async def __call__(self) -> Digging | Ticket: ...

    lm = ScriptedLM(
        {Ticket: lambda _: {"text": "a"}, Question: [{"topic": "x"}], Reply: [{"reply": "y"}]},
        choices=[Ticket, Question],
    )

    evaluation = await evaluate(
        Graph(start=Digging), [Case({}, expected={"reply": "y"})], {"lm": lm}
    )

    # Reply comes after Question alone; to dig on would have led there as well.
    assert {n: s.value for n, s in evaluation.contenders[0].cases[0].nodes.items()} == {
        "Reply": 1.0,
        "Ticket": 1.0,
    }


class Routing(Node):
    text: str

    async def __call__(self) -> Calm | Cross | Lost: ...


class Calm(Node):
    async def __call__(self) -> Sent: ...


class Cross(Node):
    async def __call__(self) -> Sent: ...


class Lost(Node):
    async def __call__(self) -> Sent: ...


class Sent(Node):
    reply: str

    async def __call__(self) -> None: ...


async def test_the_expected_nodes_decide_the_right_choice_of_merging_branches() -> None:
    lm = ScriptedLM({Sent: lambda _: {"reply": "x"}}, choices=[Cross] * 5)
    named: dict[str, list[str]] = {
        "right": ["Cross"],
        "wrong": ["Calm"],
        "one of two": ["Calm", "Cross"],
        "none of two": ["Calm", "Lost"],
        "all": ["Calm", "Cross", "Lost"],
    }
    cases = [
        Case({"text": "a"}, name, {"reply": "x"}, nodes={node: {} for node in nodes})
        for name, nodes in named.items()
    ]

    evaluation = await evaluate(Graph(start=Routing), cases, {"lm": lm}, concurrency=1)

    assert {name: r.nodes.get("Routing") for name, r in results(evaluation).items()} == {
        "right": Score(1.0),
        "wrong": Score(0.0, "chose Cross, where Calm was expected"),
        "one of two": Score(1.0),
        "none of two": Score(0.0, "chose Cross, where Calm or Lost was expected"),
        "all": None,
    }


async def test_a_loop_may_choose_an_expected_node_before_its_last_choice() -> None:
    class Desk(Node):
        note: str = ""

        async def __call__(self) -> Search | Desk | Sent: ...

    class Search(Node):
        async def __call__(self) -> Desk: ...

    def lm(*choices: Any) -> ScriptedLM:
        return ScriptedLM(
            {Sent: lambda _: {"reply": "x"}, Desk: lambda _: {"note": "n"}}, choices=choices
        )

    evaluation = await evaluate(
        Graph(start=Desk),
        [Case({}, nodes={"Search": {}, "Desk": {}})],
        {"searched": lm(Search, Sent), "not": lm(Desk, Sent)},
    )

    assert evaluation.contenders[0].cases[0].nodes["Desk"] == Score(1.0)
    # The fields are as expected, of which there are none; the choice is not.
    assert evaluation.contenders[1].cases[0].nodes["Desk"] == Score(
        0.5, "chose Sent, where Search was expected"
    )


async def test_every_case_run_has_its_own_copy_of_the_start_node() -> None:
    class Counted(Node):
        seen: list[str] = []
        anything: Any = None

        async def __call__(self) -> None:
            self.seen.append("x")
            self.anything.append("x")

    given = Counted(anything=[])
    held: list[str] = []
    cases = [
        Case(given, expected={"seen": ["x"], "anything": ["x"]}),
        Case({"anything": held, "seen": ()}, expected={"seen": ["x"], "anything": ["x"]}),
    ]

    evaluation = await evaluate(Graph(start=Counted), cases, {"a": None, "b": None}, concurrency=1)

    assert [r.score for contender in evaluation.contenders for r in contender.cases] == [1.0] * 4
    assert (given.seen, given.anything, held) == ([], [], [])


async def test_outputs_are_compared_off_the_event_loop() -> None:
    scoring_in: list[str] = []

    class Telling:
        def __eq__(self, other: object) -> bool:
            scoring_in.append(threading.current_thread().name)
            return False

        __hash__ = None  # type: ignore[assignment]

    class Long(Node):
        value: Any

        async def __call__(self) -> None: ...

    case = Case(Long(value=Telling()), expected={"value": 1})

    await evaluate(Graph(start=Long), [case], {"no lm": None})

    assert scoring_in
    assert threading.main_thread().name not in scoring_in
