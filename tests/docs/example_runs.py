"""One run of each example: where it starts, what the LM says, and who answers. The tests take them
from here; `python tests/docs/example_runs.py` records them again, into examples/recorded."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from bae import GraphResult, Image, OpenGate, Usage
from bae.journal import SQLiteJournal
from bae.lm import Answer, Backend, CallPart, Prompt
from bae.testing import ScriptedLM

FOLDER = Path(__file__).resolve().parents[2] / "examples"


RECEIPT = Image.from_path(FOLDER / "receipt.png")


@dataclass(frozen=True)
class ExampleRun:
    name: str
    start: Mapping[str, Any]
    """The fields of the start node."""
    trace: str
    """The nodes that it goes through."""
    gates: Mapping[str, Any] = field(default_factory=dict)
    """What a person says, by field."""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def script(self) -> Path:
        return FOLDER / "scripted" / f"{self.name}.json"

    @property
    def recording(self) -> Path:
        return FOLDER / "recorded" / f"{self.name}.jsonl"

    def module(self) -> ModuleType:
        """The example, imported once: the classes of a graph and of its nodes are the same then."""
        name = f"example_{self.name}"
        if name not in sys.modules:
            spec = spec_from_file_location(name, self.path)
            assert spec is not None
            assert spec.loader is not None
            module = module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        return sys.modules[name]

    async def run(self, lm: Any, **options: Any) -> GraphResult[Any]:
        graph = self.module().graph
        return await graph.arun(graph.start(**self.start), lm, answer=self.say, **options)

    async def say(self, gate: OpenGate) -> Any:
        return self.gates[gate.field_name]


RUNS = {
    run.name: run
    for run in (
        ExampleRun(
            "ootd",
            {"message": "ugh, just got up"},
            "GettingDressed AnticipateDay RecommendOutfit",
        ),
        ExampleRun(
            "shorten_a_slogan",
            {"product": "an umbrella"},
            "Brief Draft TooLong Draft Slogan",
        ),
        ExampleRun(
            "approve_a_refund",
            {"text": "The umbrella arrived wet."},
            "Complaint Proposal Approval Refunded",
            {"approved": True},
        ),
        ExampleRun("summarize_documents", {}, "Morning Report"),
        ExampleRun("look_up_an_order", {"text": "Where is A-17?"}, "Letter Reply"),
        ExampleRun(
            "use_an_mcp_server",
            {"text": "Do you have lamps?"},
            "Question Answer",
        ),
        ExampleRun(
            "answer_with_tools",
            {"text": "What is a lamp in pounds?"},
            "Question Answer",
        ),
        ExampleRun("read_a_receipt", {"photo": RECEIPT}, "Photo Receipt"),
        ExampleRun(
            "chat",
            {"text": "Please cancel my order B-4."},
            "Message Reply",
            {"calls": True},
        ),
        ExampleRun("keep_to_a_budget", {"letters": ["It broke.", "Hi!"]}, "Inbox Day"),
        ExampleRun("survive_a_crash", {"cities": ["Bern", "Rome", "Oslo"]}, "Trip Choice Booking"),
        ExampleRun("stream_to_a_page", {"subject": "rain"}, "Topic Story"),
        ExampleRun("stream_over_http", {"likes": "the sea"}, "Reader Pick"),
        ExampleRun(
            "triage", {"text": "Where do I change the signature under my mails?"}, "Ticket HowTo"
        ),
    )
}


def scripted_lm(run: ExampleRun) -> ScriptedLM:
    return ScriptedLM.from_file(run.script)


class StandIn(Backend):
    """A backend that answers from a script. It gets prompts like a model, so a recording has the
    prompts."""

    model = "stand-in"
    free = True
    calls_tools = True
    takes_files = frozenset({"image"})

    def __init__(self, script: Path) -> None:
        super().__init__(one_call=False)
        answers = json.loads(script.read_text("utf-8"))
        self._choices: list[str] = answers.get("choices", [])
        self._fills: dict[str, list[Any]] = answers.get("fills", {})

    async def answer(self, prompt: Prompt) -> Answer:
        target = prompt.question.target
        if target is None:
            value: Any = {"choice": self._choices.pop(0)}
        else:
            value = self._fills[target.__name__].pop(0)
        calls = ()
        if isinstance(value, list):
            calls = tuple(CallPart("", each["call"], each["arguments"]) for each in value)
        text = "" if calls else json.dumps(value)
        asked, said = len(prompt.system + prompt.text) // 4, len(text) // 4
        used = Usage(calls=1, input_tokens=asked, output_tokens=said, cost=0.0)
        return Answer(text, used, calls=calls)


async def record(run: ExampleRun, folder: Path) -> None:
    file = folder / f"{run.name}.db"
    async with SQLiteJournal(file, durability="normal") as journal:
        await run.run(StandIn(run.script), journal=journal, run_id=run.name)
        run.recording.parent.mkdir(exist_ok=True)
        run.recording.unlink(missing_ok=True)
        await journal.export(run.recording, [run.name])


async def main(names: list[str]) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        for run in RUNS.values():
            if not names or run.name in names:
                await record(run, Path(folder))
                print(run.recording.relative_to(FOLDER.parent))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
