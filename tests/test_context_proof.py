"""The warning where a model would fill or choose without seeing what the caller gave."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from bae import LM, Graph, Map, Node, NodeConfig, Recall
from end_node import EndNode, leading_to

# --- a graph that loses the message, and ways to pass it on -------------------------------------


class Reply(EndNode):
    text: str


Triage = leading_to(Reply, name="Triage", urgent=bool)
Ticket = leading_to(Triage, name="Ticket", message=str)


def list_lost_inputs(start: type[Node]) -> list[tuple[str, str, str]]:
    problems = [p for p in Graph(start=start).validate() if p.code == "bae-context-lost"]
    assert {p.severity for p in problems} <= {"warning"}
    return [(p.place, p.message.rpartition("the path ")[2], p.fix) for p in problems]


def test_a_fill_that_misses_an_input_gets_a_warning_with_path_and_fix():
    fix = "add `message: Annotated[str, Recall(Ticket)]` to Reply"
    assert list_lost_inputs(Ticket) == [("Reply", "Ticket -> Triage -> Reply", fix)]


def test_a_choice_that_misses_an_input_gets_a_single_warning():
    chooses = leading_to(Reply, Triage, None, name="Sorted", urgent=bool)
    lost = list_lost_inputs(leading_to(chooses, message=str))

    fix = "add `message: Annotated[str, Recall(Start)]` to Sorted"
    assert lost[0] == ("Sorted", "Start -> Sorted", fix)
    assert [place for place, _, _ in lost].count("Sorted") == 1


def test_a_recall_on_the_previous_or_filled_node_shows_the_input():
    class Start(Node):
        message: str

        async def __call__(self) -> Middle | Last: ...

    class Middle(Node):
        message: Annotated[str, Recall(Start)]
        urgent: bool

        async def __call__(self) -> End: ...

    class End(Node):
        text: int

        async def __call__(self) -> Last: ...

    class Last(EndNode):
        said: Annotated[str, Recall(Start)]
        text: str

    assert list_lost_inputs(Start) == []


def test_a_recall_of_a_later_llm_answer_does_not_show_the_input():
    class Start(Node):
        message: str

        async def __call__(self) -> Draft: ...

    class Draft(Node):
        before: Annotated[str, Recall()]  # its own text, the second time
        text: str

        async def __call__(self) -> Check: ...

    class Check(Node):
        good: bool

        async def __call__(self) -> Draft | None: ...

    assert [(place, path) for place, path, _ in list_lost_inputs(Start)] == [
        ("Check", "Start -> Draft -> Check"),
    ]


def test_code_may_pass_on_fields_of_its_node():
    copied = leading_to(Reply, name="Copied", text=str)

    class Start(Node):
        message: str

        async def __call__(self) -> copied:  # type: ignore[valid-type]
            return copied(text=self.message)

    assert list_lost_inputs(Start) == []


def test_code_cannot_pass_on_fields_that_its_node_lacks():
    class Topic(Node):
        name: str

        async def __call__(self, lm: LM) -> Reply:
            return await lm.make(self, Reply)

    assert [input_[:2] for input_ in list_lost_inputs(leading_to(Topic, message=str))] == [
        ("Reply", "Start -> Topic -> Reply")
    ]


def test_a_recall_of_a_node_that_code_built_from_the_input_shows_it():
    class Start(Node):
        message: str

        async def __call__(self) -> Consider:
            return Consider(question=self.message)

    class Consider(Node):
        question: str

        async def __call__(self) -> LookUp | Reply: ...

    class LookUp(Node):
        so_far: Annotated[Consider, Recall()] = Field(init=False)
        item: str

        async def __call__(self) -> Consider:
            return self.so_far

    assert list_lost_inputs(Start) == []


class Client:
    """Nothing that JSON can say."""


def test_a_context_setting_can_show_a_node_that_code_built_from_the_input():
    class Mail(Node):
        raw: str

        async def __call__(self) -> Ticket | Triage:
            return Ticket(message=self.raw) if self.raw else Triage(urgent=False)

    class Parsed(Node):
        raw: str

        async def __call__(self) -> Ticket:
            return Ticket(message=self.raw)

    def warned(start: type[Node]) -> list[str]:
        return [p.place for p in Graph(start=start, context=Ticket).validate()]

    assert warned(Parsed) == []
    assert warned(Mail) == ["Reply"]  # not every path has a ticket


def test_a_value_that_json_cannot_hold_is_not_reported_as_lost():
    assert list_lost_inputs(leading_to(Triage, client=Client)) == []
    asking = leading_to(Triage, client=Client, message=str)
    assert [fix for _, _, fix in list_lost_inputs(asking)] == [
        "add `message: Annotated[str, Recall(Start)]` to Reply"
    ]


def test_a_recall_that_no_prompt_shows_does_not_show_the_input():
    class Start(Node):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        message: str
        client: Client

        async def __call__(self) -> Excluded | Held: ...

    class Excluded(Node):
        message: Annotated[str, Recall(Start)] = Field(exclude=True)

        async def __call__(self) -> Reply: ...

    class Held(Node):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        client: Annotated[Client, Recall(Start)]

        async def __call__(self) -> Triage: ...

    assert [path for _, path, _ in list_lost_inputs(Start)] == [
        "Start -> Excluded -> Reply",
        "Start -> Held -> Triage",
    ]


def test_a_refilled_start_node_needs_the_input_on_the_previous_node():
    class Start(Node):
        message: str

        async def __call__(self) -> Rewrite | None: ...

    class Rewrite(Node):
        advice: str

        async def __call__(self) -> Start: ...

    fix = "add `message: Annotated[str, Recall(Start)]` to Rewrite"
    assert list_lost_inputs(Start) == [("Start", "Start -> Rewrite -> Start", fix)]


def test_a_subgraph_is_checked_against_the_inputs_of_its_own_start():
    ticket = Graph(start=Ticket)

    class Start(EndNode):
        items: list[str]
        replies: Annotated[list[Reply], Map(ticket, over="items")]

    assert [place for place, _, _ in list_lost_inputs(Start)] == ["Reply"]
    assert Graph(start=Start, context="start").validate() == []  # it holds for graphs inside


def test_a_class_can_declare_that_it_ignores_an_input():
    class Title(EndNode):
        node_config = NodeConfig(context="previous")
        text: str

    middle = leading_to(Title, name="Middle", urgent=bool)
    assert list_lost_inputs(leading_to(middle, message=str)) == []
