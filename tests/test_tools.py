"""`Tools`: what can be a tool, what bae fills of it, what its errors do, and where a node with
tools is filled. The rounds themselves are tested in `lm/test_tool_loop.py`."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr
from pydantic_core import PydanticSerializationError

from bae import (
    LM,
    Ask,
    BudgetError,
    Dep,
    DepError,
    Graph,
    Map,
    Node,
    NodeError,
    Recall,
    Tool,
    ToolCall,
    ToolCallError,
    ToolError,
    Tools,
    report,
)
from bae.journal import MemoryJournal, ToolReported
from bae.lm import Answer, Budget, Budgeted, CallPart, Prompt
from bae.observers import observing
from bae.records import Record
from bae.testing import Call, ScriptedLM
from bounded import BOUND, error_from, run, some_turns
from end_node import EndNode, leading_to
from tool_backends import ToolBackend, call


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def node_with(*tools: Any, **options: Any) -> type[Any]:
    """A node class that is filled with these tools."""

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(*tools, **options)]
        text: str

    return Reply


async def calls_of(*tools: Any, script: list[Any], **options: Any) -> list[ToolCall]:
    """The calls of a node that is filled with these tools, after the scripted ones."""
    lm = ScriptedLM([*script, {"text": "done"}])
    calls = (await run(leading_to(node_with(*tools, **options))(), lm)).result.calls
    lm.assert_complete()
    return calls


async def result_of(tool: Any, **arguments: Any) -> Any:
    """What one call of a tool returns."""
    name = tool.name if isinstance(tool, Tool) else ""
    (made,) = await calls_of(tool, script=[Call(name or tool_name(tool), **arguments)])
    assert made.error is None, made.error
    return made.result


def tool_name(tool: Any) -> str:
    fn = tool.fn if isinstance(tool, Tool) else tool
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__name__", "") or fn.name


# --- what can be a tool -------------------------------------------------------------------------


class Shelf:
    def __init__(self, size: int) -> None:
        self.size = size

    async def count(self, more: int) -> int:
        """Count what is there."""
        return self.size + more

    @staticmethod
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    @classmethod
    def label(cls, text: str) -> str:
        """Label something."""
        return f"{cls.__name__}: {text}"


class Adder:
    """Add to a number."""

    __name__ = "adder"

    def __call__(self, number: int) -> int:
        """Add one to a number."""
        return number + 1


async def test_an_async_function_is_a_tool():
    assert await result_of(add, a=1, b=2) == 3


async def test_a_sync_tool_runs_in_a_thread():
    def where(name: str) -> bool:
        """Say where."""
        return threading.current_thread() is threading.main_thread()

    assert await result_of(where, name="x") is False
    assert await result_of(Tool(where, inline=True, name="where"), name="x") is True


async def test_several_sync_tools_run_concurrently():
    both = threading.Barrier(2, timeout=10)

    def meet(who: str) -> str:
        """Meet somebody."""
        both.wait()
        return who

    calls = await calls_of(meet, script=[[Call("meet", who="a"), Call("meet", who="b")]])
    assert [tool_call.result for tool_call in calls] == ["a", "b"]


async def test_methods_partials_and_callable_objects_are_tools():
    assert await result_of(Shelf(2).count, more=3) == 5
    assert await result_of(Shelf.double, number=2) == 4
    assert await result_of(Shelf.label, text="a") == "Shelf: a"
    assert await result_of(Tool(partial(add, b=5), name="add_five"), a=1) == 6
    assert await result_of(Tool(Adder(), name="adder"), number=1) == 2


async def test_a_partial_has_the_name_and_the_docstring_of_its_function():
    lm = ToolBackend([call("add", a=1)], {"text": ""})
    await run(leading_to(node_with(partial(add, b=5)))(), lm)
    (spec,) = lm.prompts[0].tools
    assert (spec.name, spec.description) == ("add", "Add two numbers.")
    assert [*spec.schema["properties"]] == ["a"]


async def test_positional_only_parameters_and_defaults_of_a_tool_work():
    def power(base: int, /, exponent: int = 2) -> int:
        """Raise a number to a power."""
        return base**exponent

    assert await result_of(power, base=3) == 9
    assert await result_of(power, base=2, exponent=3) == 8


@pytest.mark.parametrize(
    ("docstring", "description", "parameters"),
    [
        ("Find it.", "Find it.", {}),
        ("", "", {}),
        (
            """Find it.

            More about it.

            Args:
                query: what to look for,
                    in a few words
                top (int, optional): how many: at most ten

            Returns:
                What was found.
            """,
            "Find it.\n\nMore about it.\n\nReturns:\n    What was found.",
            {"query": "what to look for, in a few words", "top": "how many: at most ten"},
        ),
        ("Args:\n    query: only this", "", {"query": "only this"}),
        ("Find it.\n\nArguments:\n    nothing: of that name", "Find it.", {}),
        ("Find it. Args: none.", "Find it. Args: none.", {}),
    ],
    ids=["line", "none", "google", "only arguments", "another name", "in a line"],
)
async def test_a_google_style_docstring_describes_the_tool_and_its_parameters(
    docstring: str, description: str, parameters: dict[str, str]
):
    async def find(query: str, top: int = 3) -> str:
        return query

    find.__doc__ = docstring
    lm = ToolBackend({"text": ""})
    await run(leading_to(node_with(find))(), lm)
    (spec,) = lm.prompts[0].tools
    properties = spec.schema["properties"]
    assert spec.description == description
    assert {n: p["description"] for n, p in properties.items() if "description" in p} == parameters


async def test_a_description_in_the_annotation_takes_precedence_over_the_docstring():
    async def find(query: Annotated[str, Field(description="some words")]) -> str:
        """Find it.

        Args:
            query: what to look for
        """
        return query

    lm = ToolBackend({"text": ""})
    await run(leading_to(node_with(find))(), lm)
    assert lm.prompts[0].tools[0].schema["properties"]["query"]["description"] == "some words"


class Topic(Node):
    topic: str = Field(description="what to write about")
    length: int = 3

    async def __call__(self) -> "Brief": ...


class Brief(EndNode):
    topic: Annotated[str, Recall(Topic)]
    brief: str


@pytest.mark.parametrize(
    "tool", [Tool(Graph(start=Topic), name="research"), Tool(Topic, name="research")], ids=str
)
async def test_a_graph_or_node_class_is_a_tool(
    tool: Tool,
):
    lm = ScriptedLM(
        {"Reply": [Call("research", topic="tea"), {"text": ""}], "Brief": [{"brief": "Hot."}]}
    )
    start = leading_to(node_with(tool))
    result = await run(start(), lm)
    (made,) = result.result.calls
    assert made.result == {"topic": "tea", "brief": "Hot."}
    (spec,) = lm.prompts[0].tools
    assert spec.schema["required"] == ["topic"]
    assert spec.schema["properties"]["topic"]["description"] == "what to write about"
    assert [*spec.schema["properties"]] == ["topic", "length"]


async def test_graph_tools_of_a_round_run_concurrently_with_their_own_places():
    lm = ScriptedLM(
        {
            "Reply": [[Call("Topic", topic="tea"), Call("Topic", topic="mugs")], {"text": ""}],
            "Brief": [{"brief": "one"}, {"brief": "two"}],
        }
    )
    result = await run(leading_to(node_with(Topic))(), lm)
    assert [tool_call.result["topic"] for tool_call in result.result.calls] == ["tea", "mugs"]
    paths = {record.path for record in result.journal if record.path}
    assert len(paths) == 2


async def test_wrong_arguments_of_a_graph_tool_are_reported_to_the_model():
    (made, _) = await calls_of(Topic, add, script=[Call("Topic", topic=3), Call("add", a=1, b=1)])
    assert made.error == "wrong arguments: topic: Input should be a valid string, not 3" or (
        "topic" in (made.error or "")
    )


class Hit(BaseModel):
    title: str


async def test_results_of_any_type_become_json():
    async def look() -> dict[str, Any]:
        """Look."""
        return {"hits": [Hit(title="tea")], "sizes": {1}, "at": (1, None)}

    assert await result_of(look) == {"hits": [{"title": "tea"}], "sizes": [1], "at": [1, None]}


async def test_a_result_without_a_json_form_fails_the_run_and_names_the_tool():
    async def look() -> object:
        """Look."""
        return object()

    error = await error_from(ToolCallError, calls_of(look, script=[Call("look")]))
    assert "look returned object, which JSON cannot express" in error.message
    assert error.code == "bae-tool-result"
    assert isinstance(error.cause, PydanticSerializationError)


async def test_a_return_type_without_a_json_form_is_a_warning():
    class Row:
        pass

    async def find() -> Row:
        """Find a row."""
        return Row()

    (problem,) = Graph(start=leading_to(node_with(find))).validate()
    assert (problem.severity, problem.code) == ("warning", "bae-tool-result")
    assert "find returns Row" in problem.message


# --- what bae fills -----------------------------------------------------------------------------


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name


async def test_dependencies_of_tools_are_hidden_and_resolved_once_per_conversation():
    made: list[Shop] = []

    async def get_shop() -> Shop:
        made.append(Shop("tea"))
        return made[-1]

    async def search(query: str, shop: Annotated[Shop, Dep(get_shop)]) -> str:
        """Search the shop."""
        return f"{query} in {shop.name}"

    lm = ToolBackend(
        [call("search", query="a"), call("search", query="b")],
        [call("search", query="c", shop="mine")],
        {"text": ""},
    )
    calls = (await run(leading_to(node_with(search))(), lm)).result.calls
    assert [tool_call.result for tool_call in calls] == ["a in tea", "b in tea", None]
    assert "shop" in (calls[2].error or "")  # the model cannot give it either
    assert len(made) == 1
    assert [*lm.prompts[0].tools[0].schema["properties"]] == ["query"]
    assert calls[0].arguments == {"query": "a"}


async def test_a_dependency_that_no_tool_call_needs_is_not_resolved():
    def get_shop() -> str:
        raise AssertionError("not needed")

    async def search(query: str, shop: Annotated[str, Dep(get_shop)]) -> str:
        """Search the shop."""
        return shop

    assert len(await calls_of(search, add, script=[Call("add", a=1, b=1)])) == 1


async def test_a_resource_opened_for_a_tool_is_closed_when_the_run_ends():
    events: list[str] = []

    async def get_shop() -> AsyncIterator[str]:
        events.append("open")
        yield "tea"
        events.append("closed")

    async def search(query: str, shop: Annotated[str, Dep(get_shop)]) -> str:
        """Search the shop."""
        events.append(f"{query} in {shop}")
        return shop

    await calls_of(search, script=[Call("search", query="a"), Call("search", query="b")])
    assert events == ["open", "a in tea", "b in tea", "closed"]


async def test_a_failed_dependency_of_a_tool_fails_the_run():
    def get_shop() -> str:
        raise ConnectionError("closed")

    async def search(query: str, shop: Annotated[str, Dep(get_shop)]) -> str:
        """Search the shop."""
        return shop

    error = await error_from(DepError, calls_of(search, script=[Call("search", query="a")]))
    assert (error.field_name, type(error.cause)) == ("calls", ConnectionError)


async def test_recalled_parameters_of_a_tool_come_from_the_trace():
    class Customer(BaseModel):
        name: str

    async def greet(word: str, who: Annotated[Customer, Recall()]) -> str:
        """Greet the customer."""
        return f"{word}, {who.name}"

    start = leading_to(node_with(greet), customer=Customer)
    lm = ScriptedLM([Call("greet", word="Hello"), {"text": ""}])
    result = await run(start(customer=Customer(name="Ana")), lm)
    assert result.result.calls[0].result == "Hello, Ana"


async def test_a_tool_whose_recall_finds_no_value_is_refused_before_the_run():
    class Customer(BaseModel):
        name: str

    async def greet(word: str, who: Annotated[Customer, Recall()]) -> str:
        """Greet the customer."""
        return who.name

    problems = Graph(start=leading_to(node_with(greet))).validate()
    assert [(problem.code, problem.place) for problem in problems] == [
        ("bae-recall-path", "Reply.calls(greet)(who)")
    ]


class Note(EndNode):
    note: str


async def test_a_tool_may_ask_the_lm_itself():
    async def summarize(text: str, lm: LM) -> str:
        """Summarize a text."""
        return (await lm.make(Topic(topic=text), Note)).note

    lm = ScriptedLM(
        {"Reply": [Call("summarize", text="long"), {"text": ""}], "Note": [{"note": "short"}]}
    )
    result = await run(leading_to(node_with(summarize))(), lm)
    assert result.result.calls[0].result == "short"
    assert result.usage.calls == 3


# --- Tool(…) ------------------------------------------------------------------------------------


async def test_name_and_description_of_a_tool_may_differ_from_its_function():
    lm = ToolBackend([call("plus", a=1, b=2)], {"text": ""})
    tool = Tool(add, name="plus", description="Adds.")
    await run(leading_to(node_with(tool))(), lm)
    assert [(tool.name, tool.description) for tool in lm.prompts[0].tools] == [("plus", "Adds.")]


async def test_a_tool_call_over_its_timeout_is_cancelled_and_reported_as_unknown():
    ended: list[str] = []

    async def wait() -> None:
        """Wait."""
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    (made,) = await calls_of(Tool(wait, timeout=0.01), script=[Call("wait")])
    assert "wait took longer than its bound of 0.01 s" in (made.error or "")
    assert "unknown whether this call ran" in (made.error or "")
    assert ended == ["cancelled"]


async def test_a_timeout_error_raised_by_a_tool_is_an_ordinary_error():
    async def wait() -> None:
        """Wait."""
        raise TimeoutError("the server is slow")

    error = await error_from(ToolCallError, calls_of(wait, script=[Call("wait")]))
    assert isinstance(error.cause, TimeoutError)


async def test_a_failed_tool_call_is_retried_before_the_failure_is_reported(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("bae.invoke.FIRST_PAUSE", 0.0)
    tries: list[int] = []

    async def flaky(number: int) -> int:
        """Fail twice."""
        tries.append(number)
        if len(tries) < 3:
            raise ConnectionError("cut")
        return number

    assert await result_of(Tool(flaky, retries=2), number=7) == 7
    assert tries == [7, 7, 7]


async def test_a_tool_error_is_not_retried():
    tries: list[int] = []

    async def refuse() -> None:
        """Refuse."""
        tries.append(1)
        raise ToolError("no")

    (made,) = await calls_of(Tool(refuse, retries=3), script=[Call("refuse")])
    assert (made.error, len(tries)) == ("no", 1)


async def test_a_tool_with_its_own_schema_gets_the_raw_arguments():
    def search(**given: Any) -> list[Any]:
        return [threading.current_thread() is threading.main_thread(), given]

    schema = {"type": "object", "properties": {"q": {"type": "integer"}}}
    tool = Tool(search, schema=schema, description="Search.")
    assert await result_of(tool, q="tea") == [False, {"q": "tea"}]
    lm = ToolBackend({"text": ""})
    await run(leading_to(node_with(tool))(), lm)
    assert lm.prompts[0].tools[0].schema == schema


async def test_an_equal_call_with_reuse_gets_the_earlier_result():
    calls: list[str] = []

    async def search(query: str, top: int = 3) -> str:
        """Search."""
        calls.append(query)
        if query == "bad":
            raise ToolError("try again")
        return f"{query} {len(calls)}"

    script = [
        Call("search", query="a"),
        [Call("search", query="a"), Call("search", query="b")],
        Call("search", query="bad"),
        Call("search", query="bad"),
    ]
    made = await calls_of(Tool(search, repeat="reuse"), script=script)
    assert [tool_call.result for tool_call in made] == ["a 1", "a 1", "b 2", None, None]
    assert calls == ["a", "b", "bad", "bad"]  # an error is no result

    calls.clear()
    made = await calls_of(search, script=script[:2])
    assert [tool_call.result for tool_call in made] == ["a 1", "a 2", "b 3"]


async def test_equal_calls_of_a_round_with_reuse_run_once():
    calls: list[str] = []

    async def search(query: str) -> int:
        """Search."""
        calls.append(query)
        return len(calls)

    tool = Tool(search, repeat="reuse")
    made = await calls_of(tool, script=[[Call("search", query="a"), Call("search", query="a")]])
    assert [tool_call.result for tool_call in made] == [1, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "not a name"}, "letters, digits"),
        ({"timeout": 0}, "seconds above 0"),
        ({"retries": -1}, "0 or more"),
        ({"result_limit": 0}, "1 or more"),
        ({"repeat": "never"}, '"call" or "reuse"'),
        ({"unfinished": "forget"}, '"tell", "ask" or "repeat"'),
    ],
    ids=str,
)
def test_options_of_tool_are_checked_at_construction(options: Any, said: str):
    with pytest.raises(ValueError, match=said):
        Tool(add, **options)


@pytest.mark.parametrize(
    "options",
    [
        *({"limit": 0}, {"max_calls": 0}, {"at_once": 0}, {"context": 0}),
        *({"on_limit": "stop"}, {"show": "all"}),
    ],
    ids=str,
)
def test_options_of_the_tools_marker_are_checked_at_construction(options: Any):
    with pytest.raises(ValueError, match="give"):
        Tools(add, **options)


def test_a_value_that_cannot_be_called_is_not_a_tool():
    with pytest.raises(TypeError, match="give it a function, a Graph or a Node class, not a str"):
        Tool("add")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="give the function itself"):
        Tools(add(1, 2))
    with pytest.raises(TypeError, match=r"Tools\(\*tools\)"):
        Tools([add])
    with pytest.raises(TypeError, match="give it functions, not a str"):
        Tools("add")


def test_an_unbound_method_as_a_tool_has_its_own_error():
    class Counter:
        def count(self, word: str) -> int:
            """Count a word."""
            return len(word)

    (problem,) = Graph(start=leading_to(node_with(Counter.count))).validate()
    assert problem.code == "bae-tool-unannotated"
    assert problem.fix == "give the method of an object: Tools(client.count)"


def test_a_generator_dependency_of_a_tool_must_be_annotated():
    async def connect():  # type: ignore[no-untyped-def]
        yield Shop("tea")

    def find(word: str, shop: Annotated[Shop, Dep(connect)]) -> str:
        """Find a word."""
        return word

    (problem,) = Graph(start=leading_to(node_with(find))).validate()
    assert problem.code == "bae-dep-unannotated"
    assert "-> AsyncIterator[Shop]" in problem.fix


# --- a list that depends on the run -------------------------------------------------------------


class Role(BaseModel):
    name: Literal["guest", "owner"]


def wipe(shelf: str) -> str:
    """Wipe a shelf."""
    return f"wiped {shelf}"


async def pick(role: Annotated[Role, Recall()]) -> list[Tool]:
    return [Tool(add), Tool(wipe)] if role.name == "owner" else [Tool(add)]


@pytest.mark.parametrize(("name", "offered"), [("owner", ["add", "wipe"]), ("guest", ["add"])])
async def test_a_list_of_tools_may_depend_on_the_run(name: Any, offered: list[str]):
    lm = ToolBackend([call("wipe", shelf="top")], {"text": ""})
    start = leading_to(node_with(pick), role=Role)
    made = (await run(start(role=Role(name=name)), lm)).result.calls[0]
    assert [tool.name for tool in lm.prompts[0].tools] == offered
    assert (made.result == "wiped top") is (name == "owner")


async def test_a_picking_function_may_return_functions_and_questions_to_people():
    async def choose() -> list[Tool | Ask]:
        return [Tool(add), Ask(str)]

    async def choose_functions() -> Sequence[Callable[..., Any]]:
        return [wipe]

    lm = ToolBackend({"text": ""})
    await run(leading_to(node_with(choose, choose_functions))(), lm)
    assert [tool.name for tool in lm.prompts[0].tools] == ["add", "ask_person", "wipe"]


async def test_a_picked_tool_may_have_dependencies():
    async def get_shop() -> str:
        return "tea"

    async def search(query: str, shop: Annotated[str, Dep(get_shop)]) -> str:
        """Search the shop."""
        return f"{query} in {shop}"

    async def choose() -> list[Tool]:
        return [Tool(search)]

    (made,) = await calls_of(choose, script=[Call("search", query="a")])
    assert made.result == "a in tea"


async def test_two_picked_tools_of_one_name_are_refused():
    async def choose() -> list[Tool]:
        return [Tool(add)]

    error = await error_from(ToolCallError, calls_of(add, choose, script=[]))
    assert error.code == "bae-tool-same-name"


async def test_an_invalid_picked_tool_is_an_error_before_the_llm_call():
    def find(query) -> str:  # type: ignore[no-untyped-def]
        """Find."""
        return query

    async def choose() -> list[Tool]:
        return [Tool(find)]

    lm = ToolBackend()
    error = await error_from(ToolCallError, run(leading_to(node_with(choose))(), lm))
    assert (error.code, lm.prompts) == ("bae-tool-invalid", [])
    assert "query" in error.message


# --- reports ------------------------------------------------------------------------------------


async def test_observers_receive_progress_reports_of_a_tool():
    def copy(files: int) -> str:
        """Copy files."""
        for n in range(files):
            report(f"file {n}", n, files)
        return "copied"

    lm = ScriptedLM([Call("copy", files=2), {"text": ""}])
    result = await run(leading_to(node_with(copy))(), lm)
    reports = [record for record in result.journal if isinstance(record, ToolReported)]
    assert [(record.id, record.text, record.done, record.total) for record in reports] == [
        ("c1", "file 0", 0, 2),
        ("c1", "file 1", 1, 2),
    ]


async def test_observers_see_a_report_from_a_thread_while_the_tool_runs():
    heard, threads = threading.Event(), set[int]()

    def copy() -> bool:
        """Copy files."""
        report("half of it", 1, 2)
        return heard.wait(30)

    def watch(run_id: str, record: Record) -> None:
        if isinstance(record, ToolReported):
            threads.add(threading.get_ident())
            heard.set()

    with observing(watch):
        lm = ScriptedLM([Call("copy"), {"text": ""}])
        result = await run(leading_to(node_with(copy))(), lm)
    assert result.trace[-1].calls[0].result is True
    assert threads == {threading.get_ident()}


async def test_a_tool_with_endless_reports_uses_bounded_memory():
    def copy() -> str:
        """Copy files."""
        for n in range(5_000):
            report("a file", n)
        return "copied"

    lm = ScriptedLM([Call("copy"), {"text": ""}])
    result = await run(leading_to(node_with(copy))(), lm)
    assert 1_000 <= sum(isinstance(record, ToolReported) for record in result.journal) < 1_100


async def test_a_progress_report_is_not_stored():
    async def copy() -> str:
        """Copy files."""
        report("half of it", 1, 2)
        return "copied"

    journal = MemoryJournal()
    lm = ScriptedLM([Call("copy"), {"text": ""}])
    await run(leading_to(node_with(copy))(), lm, journal=journal, run_id="one")
    lines = (await journal.read("one")).lines
    assert [line.kind for line in lines if line.kind.startswith("Tool")] == [
        *("ToolsOffered", "ToolStarted", "ToolEnded")
    ]
    assert "half of it" not in str(lines)


def test_a_report_outside_a_tool_does_nothing():
    report("nobody hears it", 1, 2)


# --- errors -------------------------------------------------------------------------------------


async def test_the_model_reads_a_tool_error_and_continues():
    async def find(word: str) -> str:
        """Find a word."""
        raise ToolError(f"there is no {word}")

    (made,) = await calls_of(find, script=[Call("find", word="tea")])
    assert (made.result, made.error) == (None, "there is no tea")


async def test_the_model_reads_a_tool_error_from_a_graph_tool_too():
    class Look(Node):
        word: str

        async def __call__(self) -> Note:
            raise ToolError(f"there is no {self.word}")

    (made,) = await calls_of(Look, script=[Call("Look", word="tea")])
    assert made.error == "there is no tea"


async def test_an_unexpected_exception_of_a_tool_fails_the_run_with_the_calls_so_far():
    async def find(word: str) -> str:
        """Find a word."""
        raise KeyError(word)

    script = [Call("add", a=1, b=2), Call("find", word="tea")]
    error = await error_from(ToolCallError, calls_of(add, find, script=script))
    assert error.code == "bae-tool-failed"
    assert isinstance(error.cause, KeyError)
    assert error.__cause__ is error.cause
    assert [str(tool_call) for tool_call in error.calls] == ["add(a=1, b=2)"]
    assert (error.node_type and error.node_type.__name__, error.field_name) == ("Reply", "calls")
    assert "find raised KeyError" in error.message
    assert '{"word": "tea"}' in error.message


async def test_the_first_failed_call_cancels_the_others_of_its_round():
    events: list[str] = []
    begun = asyncio.Event()

    async def wait() -> None:
        """Wait."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await some_turns()
            events.append("cleaned up")

    async def fail() -> None:
        """Fail."""
        await begun.wait()
        raise KeyError("x")

    await error_from(ToolCallError, calls_of(wait, fail, script=[[Call("wait"), Call("fail")]]))
    assert events == ["cleaned up"]


async def test_a_budget_spent_inside_a_tool_is_a_budget_error():
    async def summarize(text: str, lm: LM) -> str:
        """Summarize a text."""
        return (await lm.make(Topic(topic=text), Note)).note

    lm = ToolBackend([call("summarize", text="long")], {"text": ""})
    start = leading_to(node_with(summarize))
    await error_from(BudgetError, run(start(), Budgeted(lm, Budget(calls=1))))


async def test_at_once_bounds_concurrent_tool_calls():
    running, most = 0, 0

    async def work(number: int) -> int:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await some_turns()
        running -= 1
        return number

    many = [Call("work", number=n) for n in range(9)]
    made = await calls_of(work, script=[many], at_once=3)
    assert [tool_call.result for tool_call in made] == [*range(9)]
    assert most == 3


# --- cancelling ---------------------------------------------------------------------------------


async def test_a_run_cancelled_in_a_tool_call_leaves_no_task():
    before = asyncio.all_tasks()
    begun, events = asyncio.Event(), list[str]()
    release = threading.Event()
    in_thread, in_graph = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def get_shop() -> AsyncIterator[str]:
        try:
            yield "tea"
        finally:
            events.append("closed")

    async def wait(shop: Annotated[str, Dep(get_shop)]) -> None:
        """Wait."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            events.append("cancelled")

    def hold() -> None:
        """Hold a thread."""
        loop.call_soon_threadsafe(in_thread.set)
        release.wait(30)

    class Look(Node):
        word: str

        async def __call__(self) -> Note:
            in_graph.set()
            try:
                await asyncio.Event().wait()
            finally:
                events.append("cancelled")

    lm = ScriptedLM([[Call("wait"), Call("hold"), Call("Look", word="x")], {"text": ""}])
    start = leading_to(node_with(wait, hold, Look))
    task = asyncio.ensure_future(run(start(), lm))
    async with asyncio.timeout(BOUND):
        await asyncio.gather(begun.wait(), in_thread.wait(), in_graph.wait())
    task.cancel()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert events == ["cancelled", "cancelled", "closed"]
    assert asyncio.all_tasks() == before


# --- where a node is filled ---------------------------------------------------------------------


class Tally(EndNode):
    calls: Annotated[list[ToolCall], Tools(add)]
    total: int


TALLY: list[Any] = [Call("add", a=1, b=2), {"total": 3}]


async def test_a_body_may_make_a_node_with_tools():
    class Body(Node):
        async def __call__(self, lm: LM) -> Tally:
            return await lm.make(self, Tally)

    tally = (await run(Body(), ScriptedLM([*TALLY]))).result
    assert (tally.total, len(tally.calls)) == (3, 1)


async def test_every_node_with_tools_that_a_body_makes_has_its_own_conversation():
    class Body(Node):
        async def __call__(self, lm: LM) -> Tally:
            await lm.make(self, Tally)
            await lm.make(self, Tally)
            return await lm.make(self, Tally)

    lm = ScriptedLM([*TALLY, *TALLY, *TALLY])
    tally = (await run(Body(), lm)).result
    assert [tool_call.id for tool_call in tally.calls] == ["c1"]


async def test_a_body_may_decide_for_a_node_with_tools():
    class Body(Node):
        async def __call__(self, lm: LM) -> Tally | Note:
            decided = await lm.decide(self)
            assert isinstance(decided, Tally)
            return decided

    lm = ToolBackend({"answer": {"choice": "Tally"}}, [call("add", a=1, b=2)], {"total": 3})
    assert (await run(Body(), lm)).result.total == 3


async def test_a_dependency_may_make_a_node_with_tools():
    async def count(lm: LM) -> int:
        return (await lm.make(Topic(topic="x"), Tally)).total

    class Held(EndNode):
        total: Annotated[int, Dep(count)]

    assert (await run(Held(), ScriptedLM([*TALLY]))).result.total == 3


async def test_a_filled_node_in_a_field_may_have_tools():
    class Held(EndNode):
        tally: Annotated[Tally, Dep()]
        other: Annotated[Note, Dep()]

    lm = ScriptedLM({"Tally": [*TALLY], "Note": [{"note": "x"}]})
    node = (await run(Held(), lm)).result
    assert (node.tally.total, node.tally.calls[0].result) == (3, 3)


async def test_every_item_of_a_map_over_a_graph_has_its_own_conversation():
    class Count(Node):
        number: int

        async def __call__(self) -> Tally: ...

    class Held(EndNode):
        numbers: list[int]
        tallies: Annotated[list[Tally], Map(Graph(start=Count), over="numbers")]

    def play(prompt: Prompt) -> Any:
        number = int(prompt.text.split('"number":')[1].split("}")[0])
        if len(prompt.conversation) == 1:
            return [call("add", a=number, b=number)]
        (part,) = prompt.conversation[-1].parts
        return {"total": int(getattr(part, "result", 0))}

    node = (await run(Held(numbers=[1, 2, 3]), ToolBackend(play))).result
    assert [tally.total for tally in node.tallies] == [2, 4, 6]


async def test_the_model_calls_tools_even_if_the_calls_have_a_default():
    class Counted(EndNode):
        calls: Annotated[list[ToolCall], Tools(add)] = []
        total: int = 0

    counted = (await run(leading_to(Counted)(), ScriptedLM([*TALLY]))).result
    assert (counted.total, len(counted.calls)) == (3, 1)


async def test_calls_passed_by_a_body_are_not_executed():
    given = ToolCall(id="c1", name="add", arguments={"a": 1, "b": 2}, result=3)

    class Body(Node):
        async def __call__(self) -> Tally:
            return Tally(calls=[given], total=3)

    assert (await run(Body())).result.calls == [given]


async def test_a_body_that_omits_the_calls_gets_an_error():
    class Body(Node):
        async def __call__(self) -> Tally:
            return Tally(total=3)  # type: ignore[call-arg]

    error = await error_from(NodeError, run(Body()))
    assert "lm.make(self, Tally)" in error.fix
    assert "calls=[]" in error.fix


async def test_an_lm_called_outside_a_run_has_no_tools():
    error = await error_from(ToolCallError, ToolBackend().fill(Tally, {}, "Tally"))
    assert error.code == "bae-tools-outside"


async def test_a_node_with_tools_may_be_a_tool():
    class Count(Node):
        task: str

        async def __call__(self) -> Tally: ...

    lm = ScriptedLM({"Reply": [Call("Count", task="x"), {"text": "done"}], "Tally": [*TALLY]})
    (made,) = (await run(leading_to(node_with(Count))(), lm)).result.calls
    assert made.result["total"] == 3
    # Of the calls inside, names and arguments are shown, as everywhere.
    assert made.result["calls"] == [{"name": "add", "arguments": {"a": 1, "b": 2}}]


# --- what others see of it ----------------------------------------------------------------------


@pytest.mark.parametrize(("show", "sees"), [("calls", False), ("results", True)])
async def test_later_nodes_see_results_of_calls_only_if_configured(show: Any, sees: bool):
    async def search(query: str) -> str:
        """Search."""
        return "a secret hit"

    class Found(Node):
        calls: Annotated[list[ToolCall], Tools(search, show=show)]
        summary: str

        async def __call__(self) -> "Last": ...

    class Last(EndNode):
        text: str

    Found.__call__.__annotations__["return"] = Last
    lm = ToolBackend([call("search", query="tea")], {"summary": "s"}, {"text": "t"})
    await run(leading_to(Found)(), lm)
    shown = lm.prompts[-1].text
    assert '"arguments":{"query":"tea"}' in shown
    assert ("a secret hit" in shown) is sees
    assert "seconds" not in shown


@pytest.mark.parametrize(("show", "sees"), [("calls", False), ("results", True)])
async def test_recalled_calls_are_shown_in_the_same_way(show: Any, sees: bool):
    async def search(query: str) -> str:
        """Search."""
        return "a secret hit"

    class Last(EndNode):
        done: Annotated[list[ToolCall], Recall()]
        text: str

    class Between(Node):
        async def __call__(self) -> Last: ...

    class Found(Node):
        calls: Annotated[list[ToolCall], Tools(search, show=show)]

        async def __call__(self) -> Between:
            return Between()

    lm = ToolBackend([call("search", query="tea")], "done", {"text": "t"})
    result = await run(leading_to(Found)(), lm)
    assert result.result.done[0].result == "a secret hit"  # code sees it all
    shown = lm.prompts[-1].text
    assert '"arguments":{"query":"tea"}' in shown
    assert ("a secret hit" in shown) is sees


async def test_secrets_in_results_are_masked():
    class Login(BaseModel):
        user: str
        password: SecretStr

    async def look() -> Login:
        """Look."""
        return Login(user="ana", password=SecretStr("hunter2"))

    lm = ToolBackend([call("look")], {"text": ""})
    result = await run(leading_to(node_with(look))(), lm)
    (made,) = result.result.calls
    assert made.result["user"] == "ana"
    assert "hunter2" not in str(lm.prompts[-1])
    assert "hunter2" not in str(made)
    assert "hunter2" not in repr([*result.journal])


async def test_the_default_of_a_secret_parameter_is_not_shown():
    async def look(user: str = "ana", key: Annotated[str, Field(repr=False)] = "hunter2") -> str:
        """Look."""
        return user

    lm = ToolBackend([call("look")], {"text": ""})
    await run(leading_to(node_with(look))(), lm)
    [tool] = lm.prompts[0].tools
    assert tool.schema["properties"]["user"]["default"] == "ana"
    assert "hunter2" not in str(lm.prompts)


async def test_a_secret_of_the_backend_is_masked_in_arguments_and_results():
    class Keyed(ToolBackend):
        secrets = ("sk-secret-of-the-backend",)  # type: ignore[assignment]

    async def echo(text: str) -> str:
        """Echo."""
        return text

    said = Answer(
        "",
        calls=(CallPart("x", "echo", {"text": "sk-secret-of-the-backend"}),),
        echo={"t": "sk-secret-of-the-backend"},
    )
    lm = Keyed(said, {"text": ""})
    (made,) = (await run(leading_to(node_with(echo))(), lm)).result.calls
    assert "sk-secret-of-the-backend" not in str(made)
    assert lm.prompts[1].conversation[1].echo is None


# --- scripts ------------------------------------------------------------------------------------


async def test_the_prompts_of_a_scripted_lm_include_the_rounds():
    lm = ScriptedLM([Call("add", a=1, b=2), {"text": "3"}])
    await run(leading_to(node_with(add))(), lm)
    first, second = lm.prompts
    assert [tool.name for tool in first.tools] == ["add"]
    assert len(first.conversation) == 1
    assert [part.text for part in second.conversation[-1].parts] == ["Result of add:\n3"]


async def test_a_scripted_lm_is_bound_by_the_limits_of_the_tools():
    script = [Call("add", a=1, b=2)] * 3
    error = await error_from(ToolCallError, calls_of(add, script=script, limit=3))
    assert error.code == "bae-tools-limit"

    made = await calls_of(add, script=script[:2], limit=1, on_limit="answer")
    assert [tool_call.error is None for tool_call in made] == [True, False]


async def test_an_exception_in_the_body_of_a_node_with_tools_is_a_node_error():
    class Body(Node):
        calls: Annotated[list[ToolCall], Tools(add)]

        async def __call__(self) -> None:
            raise KeyError("x")

    await error_from(NodeError, run(leading_to(Body)(), ScriptedLM([Call("add", a=1, b=1), {}])))
