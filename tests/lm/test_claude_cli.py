"""What bae promises of the real Claude program, pointed at a provider on loopback. What only a
stand-in can be made to do is in test_claude_faults.py."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from bae import BaeLMError, Document, FillError, Graph, Image, Messages, Node, Thread
from bae.lm import ClaudeCLIBackend
from bae.testing import Call, Cut, Provider, Refusal, Status, ThreadedProvider
from bae.usage import Attempt, metered
from bounded import BOUND
from claude_programs import ROOT, children, dead, living, open_files, real_claude
from end_node import EndNode
from file_parts import DOT, PAPER
from http_backends import SHIRT, Outfit, Weather, letter_after_a_wrong_one, prompt
from tool_nodes import QUESTION, Question, rounds

pytest.importorskip("h11")
pytestmark = [
    pytest.mark.once,  # it starts the real program, which tells little about Python
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
]

OUTFIT_SCHEMA = {
    "type": "object",
    "title": "Outfit",
    "properties": {
        "top": {"type": "string", "description": "a specific garment"},
        "layers": {"type": "integer", "minimum": 0, "maximum": 5},
    },
    "required": ["top", "layers"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; nothing is left there, nor of any process."""
    folder = tmp_path / "project" / "temporary"
    folder.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = children()
    yield folder
    assert children() == before
    assert list(folder.iterdir()) == []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a login; the key is in the environment."""
    folder = tmp_path / "home"
    folder.mkdir()
    for name in ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a key")
    return folder


@pytest.fixture
def claude(home: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> ClaudeCLIBackend:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
    return ClaudeCLIBackend(executable=real_claude(), timeout=BOUND, retries=0)


# --- answers ----------------------------------------------------------------------------------


async def test_a_fill_is_one_request_with_the_prompt_and_one_tool(
    claude: ClaudeCLIBackend, provider: Provider
) -> None:
    wrong = "I would wear a shirt."
    provider.script(wrong, SHIRT)
    events: list[Any] = []
    with metered(events.append):
        outfit = await claude.fill(Outfit, {}, "Outfit", Weather(sky="grey", degrees=12))
    assert outfit == Outfit(**SHIRT)
    for request in provider.requests:
        assert request.headers["x-api-key"] == "a key"
        assert [tool["name"] for tool in request.body["tools"]] == ["StructuredOutput"]
        assert request.schema == OUTFIT_SCHEMA
        assert '"sky":"grey"' in request.text
        assert "You carry out one step of a program." in request.text
        assert "software engineering" not in request.text
    assert [wrong in request.text for request in provider.requests] == [False, True]
    judged = [event for event in events if isinstance(event, Attempt)]
    assert [attempt.verdict for attempt in judged] == ["unparsable", "valid"]
    first, again = (attempt.usage for attempt in judged)
    tokens = [request.tokens for request in provider.requests]
    assert [first.input_tokens, again.input_tokens] == tokens
    assert first.cached_tokens == 0 < again.cached_tokens
    assert min(first.output_tokens, again.output_tokens) > 0
    assert first.models == (provider.requests[0].model,)
    assert (first.calls, again.calls) == (1, 1)
    assert first.cost is not None
    assert again.cost is not None
    assert min(first.cost, again.cost) > 0


async def test_earlier_turns_come_before_the_question_in_the_sent_text(
    claude: ClaudeCLIBackend, provider: Provider
) -> None:
    class Ask(Node):
        text: str
        history: Annotated[Messages, Thread()] = Messages()

        async def __call__(self) -> Outfit: ...

    provider.script(SHIRT)
    history = Messages([("My name is Ana.", "Hello Ana!")])
    await Graph(start=Ask).arun(Ask(text="Who am I?", history=history), claude)
    (request,) = provider.requests
    said = "Earlier, the user said:\nMy name is Ana.\n\nand you replied:\nHello Ana!\n\n"
    assert f"{said}Now you are asked:\nOutfit" in request.text


async def test_a_free_text_is_requested_without_a_schema(
    claude: ClaudeCLIBackend, provider: Provider
) -> None:
    await letter_after_a_wrong_one(provider, claude)


async def test_tools_are_run_by_bae_with_one_request_for_each_round(
    claude: ClaudeCLIBackend, provider: Provider
) -> None:
    provider.script(*rounds(claude, Call("search", query="kettle"), {"answer": "b", "pages": []}))
    result = await QUESTION.arun(Question(text="which kettle?"), claude)
    assert [str(call) for call in result.result.calls] == ["search(query='kettle')"]
    assert result.result.answer == "b"
    assert result.usage.calls == 2
    assert len(provider.requests) == 2
    for request in provider.requests:  # neither the tools of the program, nor those of the graph
        assert request.tools == ("StructuredOutput",)
    assert '["kettle 0","kettle 1"]' in provider.requests[1].text


async def test_a_refusal_is_reported_in_the_words_of_the_model(
    claude: ClaudeCLIBackend, provider: Provider
) -> None:
    provider.always(Refusal("Not in this weather."))
    with pytest.raises(FillError, match="Not in this weather"):
        await claude.fill(Outfit, {}, "Outfit")
    assert len(provider.requests) == 1


class Tree(BaseModel):
    name: str
    planted: date = Field(description="when it was")
    branches: list[Tree] = []


class Everything(EndNode):
    """What schemas say that the program does not take as it is."""

    model_config = ConfigDict(json_schema_extra={"x-note": "for a web page", "$comment": "none"})

    moment: datetime | None
    code: Annotated[str, StringConstraints(pattern=r"^(?P<letters>[a-z]+)\z")]
    by_code: dict[Annotated[str, StringConstraints(pattern=r"(?i)^[A-Z]\w+$")], int]
    tree: Tree
    pair: tuple[int, date]
    unique: set[int] = Field(max_length=4)
    anything: Any
    odd: str = Field(json_schema_extra={"examples": {"a": "b"}, "example": "c", "hint": True})
    far: float = Field(default=float("inf"), lt=float("inf"))


EVERYTHING = {
    "moment": "2024-05-01T08:30:00Z",
    "code": "abc",
    "by_code": {"Abc": 1},
    "tree": {"name": "a", "planted": "2020-01-01", "branches": []},
    "pair": [1, "2024-05-01"],
    "unique": [1, 2],
    "anything": {"a": [1]},
    "odd": "text",
}


async def test_the_model_is_constrained_by_a_schema_with_every_feature(
    claude: ClaudeCLIBackend, provider: Provider
) -> None:
    provider.script(EVERYTHING)
    events: list[Any] = []
    with metered(events.append):
        filled = await claude.fill(Everything, {}, "Everything")
    assert filled.pair == (1, date(2024, 5, 1))
    assert [event.verdict for event in events if isinstance(event, Attempt)] == ["valid"]
    (request,) = provider.requests
    assert request.schema is not None
    assert set(request.schema["properties"]) == set(Everything.model_fields)
    dated = request.schema["$defs"]["Tree"]["properties"]["planted"]
    assert dated == {"type": "string", "description": "when it was (format: date)"}
    assert r"(?P<letters>[a-z]+)\z" in request.schema["properties"]["code"]["description"]


def test_a_graph_runs_with_the_name_of_the_program(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "claude").symlink_to(real_claude())
    monkeypatch.setenv("PATH", str(folder))
    with ThreadedProvider() as provider:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
        provider.script({"answer": {"choice": "Outfit", "fields": SHIRT}})
        done = Graph(start=Weather).run(Weather(sky="grey", degrees=12), lm="claude-cli:opus")
        assert done.result == Outfit(top="a blue shirt", layers=2)
        assert done.usage.calls == 1
        assert "opus" in provider.requests[0].model


# --- what is not sent -------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


@pytest.fixture
def secrets(home: Path, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project around the caller, and around the temporary files too, that says a lot of itself.
    Every secret in it has the word HUSH; the file that is given is one."""
    project = temporary.parent
    for folder, name in ((project, "above"), (project / "inner", "here"), (tmp_path, "top")):
        write(folder / "CLAUDE.md", f"HUSH in CLAUDE.md {name}")
        write(folder / "CLAUDE.local.md", f"HUSH in CLAUDE.local.md {name}")
        write(folder / ".claude" / "rules" / "rule.md", f"HUSH in a rule {name}")
    write(project / "inner" / "HUSH-listing.txt", "HUSH in a file")
    write(home / ".claude" / "CLAUDE.md", "HUSH in CLAUDE.md at home")
    write(home / ".claude" / "output-styles" / "loud.md", "---\nname: loud\n---\nHUSH style")
    skill = "---\nname: hush\ndescription: HUSH in a skill\n---\nHUSH"
    write(home / ".claude" / "skills" / "hush" / "SKILL.md", skill)
    settings = {
        "outputStyle": "loud",
        "language": "HUSH",
        "hooks": {
            event: [{"hooks": [{"type": "command", "command": "echo HUSH from a hook"}]}]
            for event in ("SessionStart", "UserPromptSubmit")
        },
    }
    for folder in (home, project, project / "inner"):
        write(folder / ".claude" / "settings.json", json.dumps(settings))
    subprocess.run(["git", "init", "-q", "-b", "HUSH-branch", str(project)], check=True)
    monkeypatch.chdir(project / "inner")
    return project / "inner" / "HUSH-listing.txt"


def read_folder(folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "\n".join(f"{path}: {path.read_text('utf-8', 'replace')}" for path in files)


async def test_no_content_of_the_project_or_home_directory_is_sent(
    claude: ClaudeCLIBackend, provider: Provider, secrets: Path, home: Path
) -> None:
    text = f"/clear the table: see @{secrets} and @HUSHED/file"  # like a command, too
    await claude.answer(prompt(text=text))
    (request,) = provider.requests
    assert text in request.text
    sent = json.dumps(request.body).replace(json.dumps(text)[1:-1], "")
    assert "HUSH" not in sent
    assert str(secrets.parent) not in sent
    files_before = read_folder(home)
    assert "the table" not in files_before
    assert "bae_claude_" not in files_before


@pytest.mark.slow
async def test_the_claude_program_alone_sends_content_of_referenced_files(
    claude: ClaudeCLIBackend, provider: Provider, secrets: Path
) -> None:
    # So that the test above is known to be able to fail.
    by_hand = await asyncio.create_subprocess_exec(
        claude.executable,
        *("--print", f"see @{secrets}", "--no-session-persistence"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(BOUND):
        await by_hand.wait()
    sent = json.dumps([dict(request.body) for request in provider.requests])
    for secret in ("CLAUDE.md here", "CLAUDE.md above", "CLAUDE.md at home", "in a file", "branch"):
        assert secret in sent


# --- failures ---------------------------------------------------------------------------------


async def test_a_failure_of_the_provider_is_reported_after_one_request(
    claude: ClaudeCLIBackend, provider: Provider
) -> None:
    faults = {"rate-limited": Status(429, retry_after=60), "unreachable": Cut(after=3)}
    for number, (code, fault) in enumerate(faults.items(), 1):
        provider.always(fault)
        with pytest.raises(BaeLMError) as caught:
            await claude.answer(prompt())
        assert (caught.value.code, caught.value.retryable) == (f"bae-lm-{code}", True)
        assert caught.value.status == getattr(fault, "code", None)
        assert len(provider.requests) == number


async def test_a_missing_login_is_reported_with_the_command_to_log_in(
    claude: ClaudeCLIBackend, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(BaeLMError) as caught:
        await claude.answer(prompt())
    assert caught.value.code == "bae-lm-unauthorized"
    assert "log in" in (caught.value.fix or "")
    assert provider.requests == []


# --- ends -------------------------------------------------------------------------------------


async def test_a_cancelled_call_leaves_no_process_connection_or_file(
    claude: ClaudeCLIBackend, provider: Provider
) -> None:
    before = open_files()
    with provider.held():
        asking = asyncio.create_task(claude.answer(prompt()))
        await provider.arrived(timeout=BOUND)
        (pid,) = children()
        assert pid in living(group=pid)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert dead(group=pid)
        assert children() == []
    await provider.disconnected()
    assert open_files() == before


# --- the installation -------------------------------------------------------------------------


def test_the_claude_install_script_prints_the_installed_path(
    tmp_path: Path,
) -> None:
    # One that runs is left as it is, so nothing is fetched here.
    beside = tmp_path / "node_modules" / ".bin"
    beside.mkdir(parents=True)
    (beside / "claude").symlink_to(real_claude())
    program = ROOT / "tools" / "claude_cli.sh"
    done = subprocess.run([program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str(beside / "claude")
    assert not re.search(r"https?:|registry|\.(com|org|net)\b", program.read_text("utf-8"))


# --- images and documents -----------------------------------------------------------------------


class Photo(Node):
    photo: Image
    papers: list[Document] = []

    async def __call__(self) -> Outfit: ...


async def test_images_and_documents_are_sent_before_the_text(claude, provider):
    provider.script(SHIRT)
    photo = Photo(photo=DOT, papers=[PAPER])
    done = await Graph(start=Photo, end=Outfit).arun(photo, lm=claude)
    assert done.result.top == SHIRT["top"]
    assert done.usage.calls == 1
    sent = provider.requests[-1].body["messages"][-1]["content"]
    kinds = [part["type"] for part in sent if "system-reminder" not in part.get("text", "")]
    assert kinds == ["text", "image", "text", "document", "text"]
    image, paper = (part["source"] for part in sent if part["type"] in ("image", "document"))
    assert (image["media_type"], image["data"]) == ("image/png", DOT.base64)
    assert (paper["media_type"], paper["data"]) == ("application/pdf", PAPER.base64)
    assert "[image 1: dot.png" in sent[-1]["text"]


async def test_an_invalid_answer_about_an_image_is_requested_again_with_the_image(claude, provider):
    provider.script({"top": 3, "layers": 2}, SHIRT)
    done = await Graph(start=Photo, end=Outfit).arun(Photo(photo=DOT), lm=claude)
    assert done.result.top == SHIRT["top"]
    assert [DOT.base64 in str(request.body) for request in provider.requests[-2:]] == [True, True]
