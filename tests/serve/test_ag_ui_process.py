"""A chat front end and `bae serve` as a process: the server is stopped in the middle of a turn, and
the page continues with the next server."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx

from ag_ui_pages import ROOT, Browser
from test_server_process import TOKEN, free_port, run_server

APP = """
from __future__ import annotations
import asyncio
from pathlib import Path
from bae import Graph, Node

class Say(Node):
    text: str
    async def __call__(self) -> Work:
        return Work(text=self.text)

class Work(Node):
    text: str
    async def __call__(self) -> Done:
        while not Path("go").exists():
            await asyncio.sleep(0.02)
        return Done(text=f"{self.text} is done")

class Done(Node):
    text: str
    async def __call__(self) -> None: ...

graph = Graph(start=Say, end=Done, name="works")
"""


def test_the_chat_example_asks_a_user_to_approve_tool_calls(tmp_path: Path):
    port, browser = free_port(), Browser()
    app = (ROOT / "examples" / "chat.py").read_text("utf-8")
    script = ROOT / "examples" / "scripted" / "chat.json"
    page = {"agent": "page", "token": TOKEN, "thread": "t"}
    page["url"] = f"http://127.0.0.1:{port}/ag-ui/Message"
    try:
        with run_server(tmp_path, port, app, "--lm", f"scripted:{script}"):
            ask = {"content": "Please cancel my order B-4."}
            [asked] = browser.run({**page, "forget": True, "ask": ask})["pending"]
            assert asked["message"] == "Allow cancel_order(number='B-4')?"
            entry = {"interruptId": asked["id"], "status": "resolved"}
            run = browser.run({**page, "resume": [{**entry, "payload": {"approved": True}}]})
        assert run["error"] is None
        assert run["messages"][-1]["content"] == "Done: order B-4, the umbrella, is cancelled."
    finally:
        browser.close()


def test_a_page_follows_a_turn_continued_by_the_next_server(tmp_path: Path):
    port, browser = free_port(), Browser()
    url = f"http://127.0.0.1:{port}/ag-ui/works"
    message = {"id": "m1", "role": "user", "content": "Work"}
    body = {"threadId": "t", "runId": "run-1", "messages": [message]}
    headers = {"authorization": f"Bearer {TOKEN}"}
    try:
        with run_server(tmp_path, port, APP) as process:
            events: list[dict[str, Any]] = []
            with httpx.stream("POST", url, json=body, headers=headers, timeout=30) as response:
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        events.append(json.loads(line.removeprefix("data: ")))
                        if events[-1] == {"type": "STEP_STARTED", "stepName": "1:Work"}:
                            process.send_signal(signal.SIGTERM)
            assert events[-1]["type"] == "RUN_ERROR"
            assert events[-1]["code"] == "bae-serve-closing"
        (tmp_path / "go").touch()
        with run_server(tmp_path, port, APP):
            sent = {"agent": "page", "url": url, "token": TOKEN, "thread": "t", "forget": True}
            run = browser.run({**sent, "ask": message, "runId": "run-1"})
        assert run["error"] is None
        assert run["events"][-1]["outcome"] == {"type": "success"}
        assert [sent_message["content"] for sent_message in run["messages"]] == [
            "Work",
            "Work is done",
        ]
    finally:
        browser.close()
