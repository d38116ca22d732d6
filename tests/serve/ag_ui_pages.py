"""Pages with AG-UI's own client, in a process of Node, and graphs to talk to."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from bae import Gate, Graph, Image, Messages, Node, NodeConfig, Thread, Tool, ToolCall, Tools
from bae.testing import ScriptedLM
from serving import TOKEN, Served, serving

ROOT = Path(__file__).resolve().parents[2]
DOT = base64.b64encode((ROOT / "examples" / "receipt.png").read_bytes()).decode()


def look_up(number: str) -> str:
    """What an order is."""
    return f"{number} is a lamp"


def cancel(number: str) -> str:
    """Cancel an order."""
    return f"{number} is cancelled"


class Say(Node):
    node_config = NodeConfig(text="text")
    text: str = Field(max_length=200)
    language: str = "English"
    photo: Image | None = None

    async def __call__(self) -> Reply: ...


class Reply(Node):
    node_config = NodeConfig(text="text")
    history: Annotated[Messages, Thread()]
    calls: Annotated[list[ToolCall], Tools(look_up, Tool(cancel, approve=True))]
    text: str = Field(max_length=60)
    mood: str = "calm"

    async def __call__(self) -> None: ...


talk = Graph(start=Say, end=Reply, name="talk")


class Plan(Node):
    text: str

    async def __call__(self) -> Size:
        return Size()


class Size(Node):
    count: Annotated[int, Gate("How many?"), Field(ge=1, le=9)] = Field(init=False)
    why: Annotated[str, Gate("Why?")] = Field(init=False)

    async def __call__(self) -> Done:
        return Done(text=f"{self.count} because of {self.why}")


class Done(Node):
    text: str

    async def __call__(self) -> None: ...


plan = Graph(start=Plan, end=Done, name="plan")


class Fails(Node):
    text: str

    async def __call__(self) -> Done:
        raise ValueError(f"no {self.text}")


fails = Graph(start=Fails, end=Done, name="fails")


class Count(Node):
    text: str
    number: int = 0

    async def __call__(self) -> Count | Done:
        if self.number == 40:
            return Done(text=self.text)
        await asyncio.sleep(0)
        return Count(text=self.text, number=self.number + 1)


count = Graph(start=Count, end=Done, name="count")


def client_folder() -> Path:
    """Where the client of AG-UI is. Without it, or Node, the test is skipped, or fails where all
    must be there."""
    folder = Path(os.environ.get("BAE_TEST_AG_UI") or ROOT / ".ag-ui-client")
    if (folder / "node_modules" / "@ag-ui" / "client").exists() and node() is not None:
        return folder
    complaint = "there is no AG-UI client, or no Node: run tools/ag_ui_client.sh"
    if os.environ.get("BAE_REQUIRE_EXTRAS") == "1":
        pytest.fail(complaint)
    pytest.skip(complaint)


def node() -> str | None:
    """Node: of the machine, or of the virtual environment."""
    return shutil.which("node") or shutil.which("node", path=Path(sys.executable).parent)


class Browser:
    """A process of Node with the client."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("ag_ui_client.mjs")
        command = [node() or "node", str(script), str(client_folder())]
        self._process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True, encoding="utf-8")

    def run(self, sent: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(sent) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(20)


@dataclass
class Run:
    """The state of a client after a run."""

    events: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    pending: list[dict[str, Any]]
    state: Any
    result: Any
    error: str | None

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    def every(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def texts(self) -> list[tuple[str, str]]:
        """The messages with a text: role and content."""
        said = [message for message in self.messages if message["role"] in ("user", "assistant")]
        return [(each["role"], each["content"]) for each in said if each.get("content")]

    @property
    def end(self) -> dict[str, Any]:
        return self.events[-1]

    @property
    def outcome(self) -> str:
        return self.end["outcome"]["type"]


@dataclass
class Pages:
    """A server, and pages that talk to it. Each page is a client with messages of its own."""

    served: Served
    browser: Browser
    last: int = 0

    async def run(self, text: str | None = None, /, **more: Any) -> Run:
        graph, token = more.pop("graph", "talk"), more.pop("token", TOKEN)
        if text is not None:
            more["ask"] = {"content": text, **more.get("ask", {})}
        url = f"{self.served.url}/ag-ui/{graph}"
        sent = {"agent": "page", "thread": "t", "url": url, "token": token, **more}
        async with asyncio.timeout(30):
            return Run(**await asyncio.to_thread(self.browser.run, sent))

    async def post(self, body: dict[str, Any], graph: str = "talk", **more: Any) -> Any:
        """A request of a client of one's own."""
        sent = {"threadId": "t", "runId": "r", "messages": [], **body}
        return await self.served.client.post(f"/ag-ui/{graph}", json=sent, **more)


@asynccontextmanager
async def pages(browser: Browser, lm: Any = None, **more: Any) -> AsyncGenerator[Pages]:
    graphs = {"talk": talk, "plan": plan, "fails": fails, "count": count}
    lm = ScriptedLM([]) if lm is None else lm
    async with serving(graphs=graphs, lm=lm, **more) as served:
        yield Pages(served, browser)
