"""Tool calls as commands show them: while a run is in progress, as its result, and when a stored
run is looked at."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Annotated, Any

import pytest

pytest.importorskip("rich")
pytest.importorskip("pyte")

from pydantic import SecretStr
from rich.console import Console

import tool_runs
from bae import LM, BaeError, Dep, Graph, Node, Tool, ToolCall, ToolError, Tools
from bae.cli.live import LiveTree, PlainLines
from bae.cli.values import print_node
from bae.observers import observing
from bae.testing import Call, ScriptedLM
from bae.tools import report
from end_node import EndNode
from terminal_session import Session

APP = """
from __future__ import annotations
from typing import Annotated
from bae import Graph, Node, Recall, Tool, ToolCall, ToolError, Tools


def search(query: str) -> list[str]:
    if query == "broken":
        raise RuntimeError("the index is gone")
    if query == "nothing":
        raise ToolError("no hits\\x1b[31m")
    return [f"{query} {n}" for n in range(40)]


class Question(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    question: Annotated[str, Recall(Question)]
    calls: Annotated[list[ToolCall], Tools(search)]
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Question, end=Reply)
"""


def script(*queries: str, name: str = "script.json") -> list[str]:
    """The options of a run whose LM calls `search` for each query, in a round of its own."""
    rounds = [[{"call": "search", "arguments": {"query": query}}] for query in queries]
    with open(name, "w", encoding="utf-8") as file:
        json.dump({"fills": {"Reply": [*rounds, {"text": "so it is"}]}}, file)
    return ["--lm", f"scripted:{name}"]


def without_times(text: str) -> str:
    return re.sub(r"\s+\d+(\.\d+)? m?s\b", "", text)


def tree() -> LiveTree:
    return LiveTree(Console(file=io.StringIO(), width=100, height=40, force_terminal=True))


def plain_lines(lines: list[Any]) -> list[str]:
    return [without_times(line.plain).rstrip() for line in lines]


async def test_the_tree_shows_each_call_with_its_arguments_and_result():
    display = tree()
    with observing(display.observe):
        await tool_runs.run_to_end()
    rows = plain_lines(display.all_lines())
    assert any(row.startswith("✓ Reply") and row.endswith("3 rounds") for row in rows)
    shown = [re.sub(r"\s{2,}", "  ", row.strip()) for row in rows]
    assert "calls  5 calls in 2 rounds: search, read_page, research  LM" in shown
    assert "✓ search(query='kettle')  ['Kettle One', 'Kettle Two']" in shown
    assert "! read_page(page='missing')  there is no such page" in shown
    [wrong] = [row for row in shown if row.startswith("! search(word='kettle')")]
    assert "wrong arguments: query: Field required" in wrong
    [page] = [row for row in shown if row.startswith("✓ read_page(page='kettle-one')")]
    assert "'A kettle holds 1.7 liters" in page
    assert "text  'It holds 1.7 liters.'  LM" in shown


async def test_a_running_call_is_shown_with_its_newest_progress_and_its_graph():
    display, frames = tree(), list[list[str]]()

    async def look(topic: str) -> str:
        frames.append(plain_lines(display.frame()))
        return topic

    class Inner(Node):
        topic: str

        async def __call__(self) -> Found: ...

    class Found(EndNode):
        seen: Annotated[str, Dep(look, topic="topic")]
        topic: str = "x"

    async def count() -> int:
        report("page 1", 1, 4)
        report("page 3", 3, 4)
        frames.append(plain_lines(display.frame()))
        return 4

    class Start(Node):
        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(count, Graph(start=Inner, name="inner"))]
        text: str

    lm = ScriptedLM(
        {
            "Reply": [Call("count"), Call("inner", topic="tea"), {"text": "done"}],
            "Found": [{"topic": "tea"}],
        }
    )
    with observing(display.observe):
        await Graph(start=Start, end=Reply).arun(Start(), lm)
    counting, inside = ["\n".join(frame) for frame in frames]
    assert re.search(r"count\(\)\s+━━━━━━━━━─── 3/4 page 3", counting)
    assert "filling text" not in counting  # the tool is at work, not the LM
    assert "inner(topic='tea')" in inside
    assert re.search(r"inner\(topic='tea'\)[\s\S]*Found", inside)


async def test_a_call_is_announced_until_it_begins_and_a_failed_call_shows_its_error_once():
    display, frames = tree(), list[list[str]]()

    async def get_index() -> str:
        frames.append(plain_lines(display.frame()))
        return "index"

    async def search(query: str, index: Annotated[str, Dep(get_index)]) -> str:
        raise RuntimeError("the index is gone")

    class Start(Node):
        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(search)]
        text: str

    lm = ScriptedLM({"Reply": [Call("search", query="tea")]})
    with observing(display.observe), pytest.raises(BaeError):
        await Graph(start=Start, end=Reply).arun(Start(), lm)
    [before] = frames
    assert any(re.search(r"· search\(query='tea'\)$", row) for row in before)
    after = plain_lines(display.all_lines())
    assert any(
        re.search(r"✗ search\(query='tea'\) +RuntimeError: the index is gone", row) for row in after
    )
    assert "\n".join(after).count("the index is gone") == 1


async def test_plain_lines_report_the_start_and_the_end_of_calls():
    written = io.StringIO()
    with observing(PlainLines(Console(file=written, width=200)).observe):
        await tool_runs.run_to_end()
    lines = [re.sub(r"^\s*[\d.]+ s\s+", "", line) for line in written.getvalue().splitlines()]
    assert "LM              is calling tools, or filling text" in lines
    assert "LM calls        search(query='kettle')" in lines
    assert any(re.fullmatch(r"search +\['Kettle One', 'Kettle Two'\].*", line) for line in lines)
    assert any(re.match(r"read_page +error: there is no such page", line) for line in lines)
    assert any(re.match(r"search +search\(word='kettle'\): error: wrong", line) for line in lines)
    assert any(re.match(r"research  Brief +brief='Use vinegar.'", line) for line in lines)


@pytest.mark.parametrize("made_by", ["fill", "body"])
async def test_an_answer_that_accept_refuses_has_a_row_and_a_line_with_the_reason(made_by: str):
    def search(query: str) -> str:
        """Search."""
        return query.upper()

    def check(reply: Any) -> None:
        if len(reply.calls) < 2:
            raise ToolError("look twice,\nplease")

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(search, accept=check)]
        text: str

    class Filled(Node):
        async def __call__(self) -> Reply: ...

    class Made(Node):
        async def __call__(self, lm: LM) -> Reply:
            return await lm.make(self, Reply)

    start = Filled if made_by == "fill" else Made
    text = {"text": "so it is"}
    lm = ScriptedLM([Call("search", query="a"), text, Call("search", query="b"), text])
    file, display = io.StringIO(), tree()
    with observing(display.observe), observing(PlainLines(Console(file=file, width=200)).observe):
        await Graph(start=start).arun(start(), lm)
    rows = [re.sub(r"[│\s]{2,}", "  ", row).strip() for row in plain_lines(display.all_lines())]
    about = [row for row in rows if row[0] in "✓!" and ("search(" in row or "refused" in row)]
    assert about == [
        "✓ search(query='a')  'A'",
        "! refused: look twice, please",
        "✓ search(query='b')  'B'",
    ]
    [line] = [line for line in file.getvalue().splitlines() if "refused" in line]
    assert line.endswith("answer 2 was refused: look twice, please")


@pytest.mark.parametrize("make", [tree, lambda: PlainLines(Console(file=io.StringIO(), width=200))])
async def test_call_arguments_and_results_are_hidden_if_a_node_can_hold_a_secret(
    make: Callable[[], Any],
):
    class Start(Node):
        key: SecretStr

        async def __call__(self) -> Reply: ...

    async def search(query: str) -> str:
        return "found hunter2"

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(search)]
        text: str = "fine"

    display = make()
    lm = ScriptedLM({"Reply": [Call("search", query="hunter2"), {"text": "ok"}]})
    with observing(display.observe):
        await Graph(start=Start, end=Reply).arun(Start(key=SecretStr("hunter2")), lm)
    shown = display.console.file.getvalue()
    if isinstance(display, LiveTree):
        shown += "\n".join(plain_lines(display.all_lines()))
    assert "search(…)" in shown
    assert "hunter2" not in shown


async def test_the_tree_shows_the_newest_of_many_calls():
    async def step(n: int) -> int:
        return n

    class Start(Node):
        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(step, limit=40)]
        text: str

    display = tree()
    rounds = [Call("step", n=n) for n in range(30)]
    lm = ScriptedLM({"Reply": [*rounds, {"text": "ok"}]})
    with observing(display.observe):
        await Graph(start=Start, end=Reply).arun(Start(), lm)
    rows = plain_lines(display.all_lines())
    assert any("… 22 earlier calls" in row for row in rows)
    assert [n for n in range(30) if any(f"step(n={n})" in row for row in rows)] == [*range(22, 30)]


def test_the_result_has_a_line_for_each_call(bae):
    done = bae("run", "app.py", "--set", "text=how?", *script("tea", "nothing"))
    assert done.code == 0
    assert "  - search(query='tea') -> ['tea 0', 'tea 1'," in done.out
    assert "40 items" in done.out
    assert "  - search(query='nothing') -> error: no hits\\x1b[31m" in done.out
    assert "\x1b[31m" not in done.out + done.err

    as_json = bae("run", "app.py", "--set", "text=how?", "--json", *script("tea"))
    [call] = as_json.data["result"]["fields"]["calls"]
    assert call["arguments"] == {"query": "tea"}
    assert len(call["result"]) == 40


def test_calls_of_a_nested_node_have_a_line_each_in_the_result():
    class Part(EndNode):
        calls: Annotated[list[ToolCall], Tools(tool_runs.search)]

    class Whole(EndNode):
        part: Annotated[Part, Dep()]

    call = ToolCall(id="c1", name="search", arguments={"query": "a"}, result=["b"])
    printed = Console(file=io.StringIO(), width=80)
    print_node(Whole(part=Part(calls=[call])), printed)
    assert "search(query='a') -> ['b']" in printed.file.getvalue()
    assert "seconds" not in printed.file.getvalue()


def test_a_stored_run_is_shown_with_its_rounds_and_calls(bae):
    bae("run", "app.py", "--set", "text=how?", *script("tea", "nothing"))
    shown = bae("runs", "show").out
    assert "Reply   <- filled in" in shown
    assert "3 rounds" in shown
    assert re.search(r"calls +search +<- 2 tool calls", shown)
    assert re.search(r'^ +search\(query="tea"\) -> \["tea 0"', shown, re.M)
    assert 'search(query="nothing") -> error: no hits\\x1b[31m' in shown
    assert re.search(r'^    search\(query="tea"\) +━', shown, re.M)  # in the timeline

    full = bae("runs", "show", "--full").out
    assert "filling Reply, round 1" in full
    assert '"tea 39"' in full

    why = bae("runs", "why", "last", "Reply.calls").out
    assert "the LLM made 2 tool calls" in why
    assert 'round 1: c1 search(query="tea") = ["tea 0"' in why
    assert "after 2 tool calls" in bae("runs", "why", "last", "Reply.text").out


def test_a_node_made_by_an_lm_in_a_body_is_shown_with_its_calls(bae):
    app = APP.replace("import Graph", "import LM, Graph")
    app = app.replace("__call__(self) -> Reply: ...", "__call__(self, lm: LM) -> Reply:\n")
    app = app.replace("-> Reply:\n", "-> Reply:\n        return await lm.make(self, Reply)")
    with open("app.py", "w", encoding="utf-8") as file:
        file.write(app)
    bae("run", "app.py", "--set", "text=how?", *script("tea"))
    shown = bae("runs", "show").out
    assert re.search(r"calls +search +<- returned by Question", shown)
    assert len(re.findall(r'^ +search\(query="tea"\) -> \["tea 0"', shown, re.M)) == 1
    bae("run", "app.py", "--set", "text=how?", *script("broken"))
    assert re.search(r'search\(query="broken"\) -> error: .*ToolCallError', bae("runs", "show").out)


def test_llm_questions_of_a_failed_body_are_shown_with_their_calls(bae):
    app = APP.replace("import Graph", "import LM, Graph")
    app = app.replace("__call__(self) -> Reply: ...", "__call__(self, lm: LM) -> Reply:\n")
    made = "        await lm.make(self, Reply)\n        raise RuntimeError('no')"
    with open("app.py", "w", encoding="utf-8") as file:
        file.write(app.replace("-> Reply:\n", f"-> Reply:\n{made}"))
    bae("run", "app.py", "--set", "text=how?", *script("tea"))
    shown = bae("runs", "show").out
    assert re.search(r'^ +search\(query="tea"\) -> \["tea 0"', shown, re.M)
    assert "Question.__call__ asked an LM: 2 LM calls" in shown
    full = bae("runs", "show", "--full").out
    assert "Question.__call__, round 1" in full
    assert '"tea 39"' in full
    assert re.search(r'answer 2: valid\n.*\n.*\n +answer:\n +\{"text":"so it is"\}', full)


def test_the_json_of_a_stored_run_has_rounds_and_calls(bae):
    bae("run", "app.py", "--set", "text=how?", *script("tea", "nothing"))
    found = bae("runs", "show", "--json").data
    reply = found["graphs"][0]["nodes"][1]
    assert [made["number"] for made in reply["rounds"]] == [1, 2, 3]
    [call] = reply["rounds"][0]["calls"]
    assert call["place"] == "1:Reply.calls(search)[1]"
    assert call["arguments"] == {"query": "tea"}
    assert (call["state"], len(call["result"]), call["error"]) == ("done", 40, None)
    assert reply["rounds"][1]["calls"][0]["error"] == "no hits\x1b[31m"
    fill = next(w for w in found["work"][1]["inside"] if w["kind"] == "fill")
    assert [work["kind"] for work in fill["inside"]] == ["tool", "tool"]
    assert json.loads(bae("runs", "why", "last", "Reply.calls", "--json").out)["source"] == "tools"


def test_a_run_that_failed_in_a_call_shows_its_earlier_calls(bae):
    failed = bae("run", "app.py", "--set", "text=how?", *script("tea", "broken"))
    assert failed.code != 0
    shown = bae("runs", "show").out
    assert re.search(r'search\(query="tea"\) -> \["tea 0"', shown)
    assert re.search(
        r'search\(query="broken"\) -> error: (\[bae-tool-failed\] )?ToolCallError', shown
    )
    assert "a conversation with tools has begun" in shown

    app = APP.replace('raise RuntimeError("the index is gone")', "return []")
    with open("app.py", "w", encoding="utf-8") as file:
        file.write(app)
    resumed = bae("runs", "resume", "last", "-m", "app.py", *script(name="rest.json"))
    assert resumed.code == 0, resumed.err
    shown = bae("runs", "show").out
    assert len(re.findall(r'search\(query="tea"\) -> ', shown)) == 1
    assert "3 rounds" in shown


def test_a_call_that_waits_for_a_person_is_shown_as_waiting(bae):
    app = APP.replace("Tools(search)", "Tools(Tool(search, approve=True))")
    with open("app.py", "w", encoding="utf-8") as file:
        file.write(app)
    parked = bae("run", "app.py", "--set", "text=how?", "--no-ask", *script("tea"))
    assert parked.code == 3
    shown = bae("runs", "show").out
    assert 'search(query="tea") -> waits for a person' in shown
    assert re.search(r"LM fills Reply .* waiting$", shown, re.M)
    assert re.search(r"calls\(search\)\[1\] <- .*waiting$", shown, re.M)
    [made] = bae("runs", "show", "--json").data["graphs"][0]["nodes"][1]["rounds"]
    assert made["calls"][0]["state"] == "waiting"


def test_a_subgraph_call_with_an_open_question_is_shown_as_waiting(bae):
    app = APP.replace("Tools(search)", "Tools(Tool(search, approve=True))")
    app += """

class Order(Node):
    text: str

    async def __call__(self) -> Done: ...


class Done(Node):
    calls: Annotated[list[ToolCall], Tools(Tool(graph, name="clerk", description="a clerk"))]

    async def __call__(self) -> None: ...


outer = Graph(start=Order)
"""
    with open("app.py", "w", encoding="utf-8") as file:
        file.write(app)
    asked = {"call": "search", "arguments": {"query": "tea"}}
    rounds = {"Done": [{"call": "clerk", "arguments": {"text": "how?"}}, {}]}
    with open("script.json", "w", encoding="utf-8") as file:
        json.dump({"fills": {**rounds, "Reply": [asked, {"text": "so"}]}}, file)
    with open("rest.json", "w", encoding="utf-8") as file:
        json.dump({"fills": {"Done": [{}], "Reply": [{"text": "so"}]}}, file)
    options = ["--set", "text=how?", "--no-ask", "--lm", "scripted:script.json"]
    assert bae("run", "app.py:outer", *options).code == 3

    shown = bae("runs", "show").out
    assert 'clerk(text="how?") -> waits for a person' in shown
    assert re.search(r"LM fills Done .* waiting$", shown, re.M)
    assert re.search(r"clerk\(text=\"how\?\"\) .* waiting$", shown, re.M)
    assert "cancelled" not in shown

    answer = ["yes", "-m", "app.py:outer", "--lm", "scripted:rest.json"]
    assert bae("runs", "answer", "last", *answer).code == 0
    assert "waiting" not in bae("runs", "show").out


async def test_a_node_with_a_call_under_approval_is_shown_as_waiting():
    display, frames = tree(), list[list[str]]()

    async def pay(euros: int) -> str:
        return "paid"

    class Start(Node):
        async def __call__(self) -> Reply: ...

    class Reply(EndNode):
        calls: Annotated[list[ToolCall], Tools(Tool(pay, approve=True))]
        text: str

    async def answer(gate: object) -> bool:
        frames.append(plain_lines(display.frame()))
        return True

    lm = ScriptedLM({"Reply": [Call("pay", euros=4), {"text": "done"}]})
    with observing(display.observe):
        await Graph(start=Start, end=Reply).arun(Start(), lm, answer=answer)
    [rows] = frames
    assert any(row.startswith("? Reply") for row in rows)
    assert any(re.search(r"\? pay\(euros=4\) +waits for a person", row) for row in rows)
    assert not any("filling text" in row for row in rows)


def test_model_text_cannot_control_or_flood_the_terminal(bae):
    hostile = "\x1b[31m\r\u202e" + "x" * 100_000
    rounds = [[{"call": "s\x1b[2J", "arguments": {hostile: [hostile]}}], {"text": "fine"}]
    with open("script.json", "w", encoding="utf-8") as file:
        json.dump({"fills": {"Reply": rounds}}, file)
    done = bae("run", "app.py", "--set", "text=how?", "--lm", "scripted:script.json")
    assert done.code == 0, done.err
    shown = bae("runs", "show")
    why = bae("runs", "why", "last", "Reply.calls")
    for text in (done.out, done.err, shown.out, why.out):
        assert "s\\x1b[2J" in text
        assert not any(character in text for character in ("\x1b", "\r", "\u202e"))
        assert len(text) < 5000


def test_a_finished_run_with_tools_stays_on_a_narrow_screen(folder):
    options = script("tea", "nothing")
    with Session(folder, "run", "app.py", "--set", "text=how?", *options, columns=40) as terminal:
        assert terminal.ends() == 0
        text = terminal.screen
    assert "search(query" in text
    assert "✓ Reply" in text
    assert "no hits" in text
