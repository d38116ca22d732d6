"""The warning where a model would fill or choose without seeing what the caller gave."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from bae import LM, Graph, Map, Node, NodeConfig, Recall
from end_node import EndNode

# --- a graph that loses the message, and ways to pass it on -------------------------------------


class Ticket(Node):
    message: str

    async def __call__(self) -> Triage: ...


class Triage(Node):
    urgent: bool

    async def __call__(self) -> Reply: ...


class Reply(EndNode):
    text: str


def lost(start: type[Node]) -> list[tuple[str, str, str]]:
    found = [p for p in Graph(start=start).validate() if p.code == "bae-context-lost"]
    assert {p.severity for p in found} <= {"warning"}
    return [(p.place, p.message.rpartition("the path ")[2], p.fix) for p in found]


def test_a_fill_without_what_the_caller_gave_is_warned_of_with_its_path_and_the_recall_to_add():
    fix = "add `message: Annotated[str, Recall(Ticket)]` to Reply"
    assert lost(Ticket) == [("Reply", "Ticket -> Triage -> Reply", fix)]


def test_a_choice_without_it_is_warned_of_once_and_not_again_for_what_is_chosen():
    class Start(Node):
        message: str

        async def __call__(self) -> Sorted: ...

    class Sorted(Node):
        urgent: bool

        async def __call__(self) -> Reply | Triage | None: ...

    fix = "add `message: Annotated[str, Recall(Start)]` to Sorted"
    first, *_ = lost(Start)
    assert first == ("Sorted", "Start -> Sorted", fix)
    assert [place for place, _, _ in lost(Start)].count("Sorted") == 1


def test_a_recall_on_the_node_before_or_on_the_one_to_fill_shows_it():
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

    assert lost(Start) == []


def test_a_recall_that_finds_what_an_lm_wrote_since_does_not_show_it():
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

    assert [(place, path) for place, path, _ in lost(Start)] == [
        ("Check", "Start -> Draft -> Check"),
    ]


def test_code_may_pass_on_what_its_node_holds():
    class Start(Node):
        message: str

        async def __call__(self) -> Copied:
            return Copied(text=self.message)

    class Copied(Node):
        text: str

        async def __call__(self) -> Reply: ...

    assert lost(Start) == []


def test_code_cannot_pass_on_what_its_node_does_not_hold():
    class Start(Node):
        message: str

        async def __call__(self) -> Topic: ...

    class Topic(Node):
        name: str

        async def __call__(self, lm: LM) -> Reply:
            return await lm.make(self, Reply)

    assert [(place, path) for place, path, _ in lost(Start)] == [
        ("Reply", "Start -> Topic -> Reply")
    ]


def test_a_node_that_recalls_one_that_code_made_from_it_shows_it():
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

    assert lost(Start) == []


class Client:
    """Nothing that JSON can say."""


def test_a_setting_that_shows_a_node_which_code_made_from_it_shows_it():
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


def test_what_json_cannot_say_is_not_what_is_lost():
    class Start(Node):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        client: Client

        async def __call__(self) -> Triage: ...

    class Asking(Start):
        message: str

    assert lost(Start) == []
    assert [fix for _, _, fix in lost(Asking)] == [
        "add `message: Annotated[str, Recall(Asking)]` to Reply"
    ]


def test_a_recall_that_no_prompt_shows_does_not_count():
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

    assert [path for _, path, _ in lost(Start)] == [
        "Start -> Excluded -> Reply",
        "Start -> Held -> Triage",
    ]


def test_a_start_that_is_filled_again_is_shown_it_by_the_node_before():
    class Start(Node):
        message: str

        async def __call__(self) -> Rewrite | None: ...

    class Rewrite(Node):
        advice: str

        async def __call__(self) -> Start: ...

    fix = "add `message: Annotated[str, Recall(Start)]` to Rewrite"
    assert lost(Start) == [("Start", "Start -> Rewrite -> Start", fix)]


def test_a_graph_inside_is_held_to_what_its_own_start_is_given():
    class Item(Node):
        name: str

        async def __call__(self) -> Sorted: ...

    class Sorted(Node):
        shelf: int

        async def __call__(self) -> Label: ...

    class Label(EndNode):
        text: str

    class Start(EndNode):
        items: list[str]
        labels: Annotated[list[Label], Map(Item, over="items")]

    assert [place for place, _, _ in lost(Start)] == ["Label"]
    assert Graph(start=Start, context="start").validate() == []  # it holds for graphs inside


def test_a_class_that_is_not_meant_to_see_it_says_so():
    class Start(Node):
        message: str

        async def __call__(self) -> Middle: ...

    class Middle(Node):
        urgent: bool

        async def __call__(self) -> Title: ...

    class Title(EndNode):
        node_config = NodeConfig(context="previous")
        text: str

    assert lost(Start) == []
