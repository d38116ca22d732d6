"""What routing promises: the return type declares the next nodes. The LLM chooses and fills the
next node where the body is empty, a written body returns it. Any other node is an error that names
the declared and the returned class."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, ClassVar, cast

import pytest

from bae import (
    LM,
    BaeError,
    BaeLMError,
    Dep,
    DepError,
    FillError,
    Graph,
    GraphResult,
    LimitError,
    Map,
    Node,
    NodeConfig,
    NodeError,
    Recall,
    RouteError,
)
from bae.journal import (
    AnswerJudged,
    ChoiceMade,
    ChoiceStarted,
    FillEnded,
    FillStarted,
    RunEnded,
    StepStarted,
)
from bae.testing import ScriptedLM
from bounded import error_from, run
from end_node import EndNode, leading_to


class Done(EndNode):
    text: str = ""


class Other(EndNode): ...


class RecordingLM:
    """An LM written by hand: fills from one table, chooses the type named next."""

    def __init__(self, choices: Sequence[Any] = (), **values: dict[str, Any]) -> None:
        self.choices = list(choices)
        self.values = values
        self.calls: list[tuple[Any, ...]] = []

    async def make(self, node: Node, target: type[Any]) -> Any:
        self.calls.append(("make", node, target))
        return target(**self.values.get(target.__name__, {}))

    async def decide(self, node: Node) -> Any:
        self.calls.append(("decide", node))
        return self.choices.pop(0)

    async def choose_type(self, types: Sequence[Any], context: Mapping[str, Any]) -> Any:
        self.calls.append(("choose_type", tuple(types), dict(context)))
        return self.choices.pop(0)

    async def fill(
        self,
        target: type[Any],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
    ) -> Any:
        self.calls.append(("fill", target, dict(resolved), instruction, source))
        return target(**{**self.values.get(target.__name__, {}), **resolved})


def classes(result: GraphResult[Any]) -> list[type[Node]]:
    return [type(node) for node in result.trace]


# Empty bodies


async def test_one_successor_is_filled_without_a_choice():
    lm = RecordingLM(Done={"text": "filled"})
    start = leading_to(Done, topic=str)(topic="t")
    result = await run(start, lm)

    assert lm.calls == [("fill", Done, {}, "Done", start)]
    assert classes(result) == [type(start), Done]
    assert result.trace[-1].text == "filled"


async def test_a_choice_offers_the_whole_union_in_order_before_the_fill():
    class Start(Node):
        topic: str

        async def __call__(self) -> Done | Other | Start: ...

    lm = RecordingLM([Other])
    start = Start(topic="t")
    result = await run(start, lm)

    assert lm.calls == [
        ("choose_type", (Done, Other, Start), {"topic": "t"}),
        ("fill", Other, {}, "Other", start),
    ]
    assert classes(result) == [Start, Other]


async def test_none_in_a_union_lets_the_llm_end_the_run():
    lm = RecordingLM([NoneType])
    start = leading_to(Done, None)
    result = await run(start(), lm)

    assert lm.calls == [("choose_type", (Done, NoneType), {})]
    assert classes(result) == [start]


async def test_an_empty_terminal_ends_the_run_without_the_lm():
    result = await Graph(start=Done).arun(Done(text="alone"))

    assert classes(result) == [Done]
    assert result.node is None


async def test_fill_gets_the_resolved_values_the_source_and_the_class_name():
    def get_number() -> int:
        return 7

    class WriteTheReport(EndNode):
        text: str
        number: Annotated[int, Dep(get_number)]
        word: Annotated[str, Recall()]

    lm = RecordingLM(WriteTheReport={"text": "…"})
    start = leading_to(WriteTheReport, word=str)(word="w")
    result = await run(start, lm)

    assert lm.calls == [
        ("fill", WriteTheReport, {"number": 7, "word": "w"}, "WriteTheReport", start)
    ]
    assert result.trace[-1].model_dump() == {"text": "…", "number": 7, "word": "w"}


# Written bodies


@pytest.mark.parametrize("how", ["lm", "model", "anything"])
async def test_a_parameter_of_a_body_annotated_lm_gets_the_lm(how: str):
    given: list[Any] = []

    async def lm_(self: Node, lm: LM) -> None:
        given.append(lm)

    async def model_(self: Node, *, model: LM, other: int = 3) -> None:
        given.append(model)

    async def anything_(self: Node, other: int = 3, anything: LM | None = None) -> None:
        given.append(anything)

    class Start(Node):
        __call__ = {"lm": lm_, "model": model_, "anything": anything_}[how]

    lm = RecordingLM()
    await run(Start(), lm)

    assert [given_lm.calls is lm.calls for given_lm in given] == [True]


async def test_a_written_body_may_let_the_lm_make_or_decide():
    class Start(Node):
        async def __call__(self, lm: LM) -> Middle:
            return await lm.make(self, Middle)

    class Middle(Node):
        n: int

        async def __call__(self, model: LM) -> Done | None:
            return await model.decide(self)

    lm = RecordingLM([Done(text="decided")], Middle={"n": 3})
    result = await run(Start(), lm)

    assert [call[0] for call in lm.calls] == ["make", "decide"]
    assert result.trace[-1].text == "decided"


async def test_a_body_may_return_its_own_node_again():
    class Count(Node):
        n: int = 0

        async def __call__(self) -> Count | None:
            self.n += 1
            return self if self.n < 3 else None

    result = await run(Count())

    assert len(result.trace) == 3


# What was not declared


async def test_a_forgotten_await_is_an_error_without_a_warning_of_python(
    recwarn: pytest.WarningsRecorder,
):
    class Start(Node):
        async def __call__(self, lm: LM) -> Done:
            return lm.make(self, Done)

    with pytest.raises(RouteError) as caught:
        await run(Start(), ScriptedLM({Done: {}}))

    assert "make(…), which was not awaited" in caught.value.message
    assert caught.value.fix == "write `return await …` there"
    del caught
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


class Special(Done):
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("returned", "said", "fix"),
    [
        (Other(), "a value of type Other", "return one of these, or add Other to the return type"),
        (Special(), "a value of type Special", "add Special to"),
        (None, "None", "add None to"),
        ("text", "a value of type str", "return a node: Done("),
        (Done, "the class Done", "return Done(…)"),
    ],
    ids=["node", "subclass", "none", "text", "class"],
)
async def test_an_error_for_an_undeclared_return_names_both_types(
    returned: Any, said: str, fix: str
):
    class Start(Node):
        async def __call__(self) -> Done | Start:
            return returned

    start = Start()
    error = await error_from(RouteError, run(start))
    assert error.message == f"Start returned {said}, but declares -> Done | Start"
    assert fix in (error.fix or "")
    assert (error.code, error.node_type) == ("bae-route-undeclared", Start)
    assert error.trace == [start]


async def test_a_wrong_return_is_reported_with_the_declared_return():
    class End(Node):
        async def __call__(self) -> None:
            return Done()  # type: ignore[return-value]

    class Astray(Node):
        async def __call__(self) -> Done:
            return Other()  # type: ignore[return-value]

    with pytest.raises(RouteError, match="End is the result itself"):
        await run(End())
    with pytest.raises(RouteError, match="return a Done, or add Other to the return type"):
        await run(Astray())


@pytest.mark.parametrize("chosen", [Node, int, "Done", None], ids=str)
async def test_a_choice_outside_the_offered_types_is_an_error(chosen: Any):
    start = leading_to(Done, Other)()
    error = await error_from(RouteError, run(start, RecordingLM([chosen])))
    assert error.code == "bae-choice-outside"
    assert error.node_type is type(start)
    assert getattr(chosen, "__name__", str(chosen)) in error.message
    assert "not among Done, Other" in error.message
    assert error.trace == [start]
    error = await error_from(RouteError, run(leading_to(Done, None)(), RecordingLM([None])))
    assert "type(None) to end the run" in (error.fix or "")


@pytest.mark.parametrize("filled", [Other(), None, {"text": "x"}, Done], ids=str)
async def test_an_lm_that_fills_another_class_is_an_error(filled: Any):
    class Wrong(RecordingLM):
        async def fill(self, *args: Any, **options: Any) -> Any:
            return filled

    error = await error_from(BaeLMError, run(leading_to(Done)(), Wrong()))

    assert error.code == "bae-fill-other-type"
    assert error.message.startswith("Done: the LM filled a ")


# Validation of what is filled and resolved


async def test_an_invalid_node_from_a_custom_lm_is_a_fill_error():
    class Pair(EndNode):
        low: int

    error = await error_from(FillError, run(leading_to(Pair)(), RecordingLM(Pair={"low": "x"})))
    assert (error.code, error.node_type, error.attempts) == ("bae-fill-invalid", Pair, 1)
    assert error.validation_errors[0]["loc"] == ("low",)


# Bounds


class Count(Node):
    n: int = 0

    async def __call__(self) -> Count | None:
        return Count(n=self.n + 1) if self.n < 24 else None


async def test_no_more_than_ten_nodes_run_unless_more_are_allowed():
    error = await error_from(LimitError, run(Count()))
    assert (error.code, error.limit) == ("bae-limit-reached", "max_iters")
    assert (error.bound, error.used) == (10, 10)
    assert [node.n for node in error.trace] == list(range(10))
    assert "exceeded 10 iterations: Count would be one more" in error.message
    assert "max_iters=20" in (error.fix or "")


async def test_a_run_may_have_exactly_as_many_nodes_as_its_bound():
    for bound in (25, 0):
        assert len((await run(Count(), max_iters=bound)).trace) == 25
    with pytest.raises(LimitError):
        await run(Count(), max_iters=24)


async def test_the_llm_does_not_fill_a_node_beyond_the_bound():
    class Start(Node):
        async def __call__(self) -> Start: ...

    lm = ScriptedLM()
    with pytest.raises(LimitError):
        await run(Start(), lm, max_iters=3)

    assert [asked.kind for asked in lm.asked] == ["fill", "fill"]


async def test_the_llm_may_still_choose_to_end_the_run_at_the_bound():
    start, lm = leading_to(Done, None), RecordingLM([Done])
    assert len((await run(start(), RecordingLM([NoneType]), max_iters=1)).trace) == 1
    with pytest.raises(LimitError):
        await run(start(), lm, max_iters=1)
    assert [call[0] for call in lm.calls] == ["choose_type"]


class Turn(Node):
    async def __call__(self) -> Turn | Other: ...


class DecidingTurn(Node):
    async def __call__(self, lm: LM) -> DecidingTurn | Other:
        return cast("DecidingTurn | Other", await lm.decide(self))


@pytest.mark.parametrize(
    ("start", "choice", "asked"),
    [
        (Turn, Turn, ["choose_type", "fill"] * 2),
        (DecidingTurn, DecidingTurn(), ["decide"] * 2),
    ],
)
async def test_the_llm_does_not_choose_if_every_option_is_beyond_the_bound(
    start: type[Node], choice: Any, asked: list[str]
):
    lm = RecordingLM([choice] * 9)
    error = await error_from(LimitError, run(start(), lm, max_iters=3))
    assert (error.code, error.used, error.bound) == ("bae-limit-reached", 3, 3)
    assert f"{start.__name__} or Other would be one more" in error.message
    assert "give the loop a way out" in (error.fix or "")
    assert [call[0] for call in lm.calls] == asked


async def test_a_body_may_let_the_llm_end_the_run_at_the_bound():
    class Fork(Node):
        async def __call__(self, lm: LM) -> Done | None:
            return cast("Done | None", await lm.decide(self))

    assert len((await run(Fork(), RecordingLM([NoneType]), max_iters=1)).trace) == 1
    lm = RecordingLM([Done])
    error = await error_from(LimitError, run(Fork(), lm, max_iters=1))
    assert "Done would be one more" in error.message
    assert "fill" not in [call[0] for call in lm.calls]


async def test_a_subgraph_makes_no_llm_call_for_a_choice_beyond_its_bound():
    class Item(Node):
        number: int

        async def __call__(self) -> Item | Other: ...

    class One(EndNode):
        one: Annotated[Other, Dep(Graph(start=Turn, end=Other))]

    class Each(EndNode):
        numbers: list[int]
        every: Annotated[list[Other], Map(Graph(start=Item, end=Other), over="numbers")]

    for start in (One.model_construct(), Each.model_construct(numbers=[1, 2])):
        lm = RecordingLM([Other] * 9)
        error = await error_from(DepError, run(start, lm, max_iters=1))
        assert isinstance(error.cause, LimitError)
        assert lm.calls == []


@pytest.mark.parametrize("bound", [-1, None, "ten", 2.5], ids=str)
async def test_a_max_iters_that_is_not_a_number_of_nodes_is_refused(bound: Any):
    with pytest.raises(ValueError, match=f"max_iters={bound}"):
        await run(Count(), max_iters=bound)


# What a run needs before it starts


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Other(), "was given an instance of Other"),
        (Special(), "was given an instance of Special"),
        ("text", "was given an instance of str"),
        (Done, "was given the class Done"),
    ],
    ids=["node", "subclass", "text", "class"],
)
async def test_a_start_of_the_wrong_type_is_refused(given: Any, said: str):
    error = await error_from(BaeError, Graph(start=Done).arun(given))

    assert error.code == "bae-start-type"
    assert "starts at an instance of Done" in error.message
    assert said in error.message


class Half:
    def make(self) -> None: ...
    def fill(self) -> None: ...


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ("lcoal", "bae-lm-unknown-name", "no LM"),
        (ScriptedLM, "bae-lm-type", "is a class, not an LM"),
        (3, "bae-lm-type", "no make, decide, choose_type and fill"),
        (Half(), "bae-lm-type", "no decide and choose_type"),
    ],
    ids=["text", "class", "other", "half"],
)
async def test_a_value_that_is_not_an_lm_is_refused(given: Any, code: str, said: str):
    error = await error_from(BaeLMError, run(Done(), lm=given))

    assert error.code == code
    assert said in error.message


async def test_run_inside_an_event_loop_raises_an_error_that_suggests_arun():
    with pytest.raises(BaeError, match="running event loop") as caught:
        Graph(start=Done).run(Done())

    assert isinstance(caught.value, RuntimeError)  # as in bae 3.0
    assert caught.value.code == "bae-run-in-loop"
    assert "await graph.arun(" in (caught.value.fix or "")


async def test_a_missing_lm_is_an_error_before_the_first_call():
    called: list[str] = []
    middle = leading_to(Done, name="Middle")

    def get_number() -> int:
        called.append("dep")
        return 1

    class Start(Node):
        number: Annotated[int, Dep(get_number)]

        async def __call__(self) -> middle:  # type: ignore[valid-type]
            called.append("body")
            return middle()

    error = await error_from(BaeLMError, run(Start()))

    assert called == []
    assert error.code == "bae-lm-missing"
    assert error.message == (
        "there is no LM, and Middle has an empty body: the LM fills the next node, Done"
    )
    assert 'NodeConfig(lm="…")' in (error.fix or "")


async def test_the_error_for_a_missing_lm_names_every_use_of_an_lm():
    async def ask(lm: LM) -> int:
        return 1

    async def below(x: Annotated[int, Dep(ask)]) -> int:
        return x

    class Asks(Node):
        async def __call__(self, lm: LM) -> None:
            assert lm

    class Needs(EndNode):
        x: Annotated[int, Dep(below)]

    class Inside(EndNode):
        x: Annotated[Asks, Dep(Asks)]

    for start, why in [
        (Chooses, "Chooses has an empty body: the LM chooses the next node"),
        (Asks, "Asks.__call__ asks for one"),
        (Needs, "Needs.x needs one: ask asks for it"),
        (Inside, "Inside.x needs one: Asks.__call__ asks for one"),
    ]:
        error = await error_from(BaeLMError, run(start()))
        assert error.message == f"there is no LM, and {why}"


async def test_a_pinned_lm_takes_precedence_over_the_lm_of_the_run_for_its_class():
    pinned = RecordingLM(Special={"n": 1})

    class Special(Node):
        node_config: ClassVar[NodeConfig] = NodeConfig(lm=pinned)
        n: int

        async def __call__(self, lm: LM) -> Done:
            return await lm.make(self, Done)

    run_lm = RecordingLM()
    await run(leading_to(Special)(), run_lm)
    await run(leading_to(Done)(), run_lm)

    assert [call[:1] for call in pinned.calls] == [("fill",), ("make",)]
    assert [call[1] for call in run_lm.calls] == [Done]


async def test_a_pinned_lm_is_inherited_by_subclasses_and_not_seen_by_parents_or_siblings():
    pinned = RecordingLM()

    class Base(EndNode):
        text: str = ""

    class Child(Base):
        node_config: ClassVar[NodeConfig] = NodeConfig(lm=pinned)

    class Grandchild(Child): ...

    class Sibling(Base): ...

    for target in (Base, Sibling):
        with pytest.raises(BaeLMError):
            await run(leading_to(target)())
    for target in (Child, Grandchild):
        await run(leading_to(target)())
    assert len(pinned.calls) == 2


# Failures


async def test_an_exception_in_a_body_is_a_node_error_with_the_cause():
    class Start(Node):
        async def __call__(self) -> Middle:
            return Middle()

    class Middle(Node):
        async def __call__(self) -> Done:
            raise LookupError("no such thing")

    start = Start()
    error = await error_from(NodeError, run(start))
    assert isinstance(error.cause, LookupError)
    assert error.__cause__ is error.cause
    assert (error.code, error.node_type) == ("bae-node-failed", Middle)
    assert error.message == "Middle.__call__ raised LookupError"
    assert "cause: LookupError: no such thing" in str(error)
    assert [type(node) for node in error.trace] == [Start, Middle]
    assert error.run_id
    assert error.journal.of(RunEnded)[-1].error is error


async def test_a_bae_error_raised_in_a_body_passes_unchanged():
    mine = BaeError("mine", code="my-own", fix="do this")

    class Start(Node):
        async def __call__(self) -> None:
            raise mine

    start = Start()
    error = await error_from(BaeError, run(start))

    assert error is mine
    assert error.trace == [start]
    assert error.journal is not None


class Broken(RecordingLM):
    def __init__(self, error: Exception, choices: Sequence[Any] = ()) -> None:
        super().__init__(choices)
        self.error = error

    async def choose_type(self, types: Sequence[Any], context: Mapping[str, Any]) -> Any:
        if self.choices:
            return self.choices.pop(0)
        raise self.error

    async def fill(self, *args: Any, **options: Any) -> Any:
        raise self.error


Chooses = leading_to(Done, Other, name="Chooses")


@pytest.mark.parametrize(
    ("choices", "doing"),
    [([], "choosing after Chooses"), ([Done], "filling Done")],
    ids=["choosing", "filling"],
)
async def test_an_exception_of_the_lm_is_an_lm_error(choices: Any, doing: str):
    cause = ConnectionError("no route")
    start = Chooses()
    error = await error_from(BaeLMError, run(start, Broken(cause, choices)))
    assert error.cause is cause
    assert error.__cause__ is cause
    assert error.code == "bae-lm-failed"
    assert error.message == f"Broken raised ConnectionError while {doing}"
    assert error.trace == [start]

    mine = BaeLMError("over quota", code="my-quota")
    error = await error_from(
        BaeLMError,
        Graph(start=Chooses).arun(start, Broken(mine, [Done] if doing == "filling Done" else [])),
    )
    assert error is mine


# What is written down


async def test_choices_and_fills_are_recorded_in_order():
    lm = ScriptedLM([Done, {"text": "x"}])
    result = await run(Chooses(), lm)

    kinds = [type(record) for record in result.journal]
    assert kinds[1:-1] == [
        StepStarted,
        ChoiceStarted,
        AnswerJudged,
        ChoiceMade,
        FillStarted,
        AnswerJudged,
        FillEnded,
        StepStarted,
    ]
    (started,) = result.journal.of(ChoiceStarted)
    (made,) = result.journal.of(ChoiceMade)
    (filling,) = result.journal.of(FillStarted)
    (filled,) = result.journal.of(FillEnded)
    assert (started.node, started.offered) == (result.trace[0], (Done, Other))
    assert (made.node, made.chosen) == (result.trace[0], Done)
    assert (filling.target, filling.resolved) == (Done, {})
    assert filled.node is result.trace[-1]
    assert made.seconds >= 0
    assert filled.seconds >= 0
