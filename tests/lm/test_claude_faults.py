"""What bae makes of a Claude program that fails, seen with stand-ins for it that fail as the real
one cannot be made to. The real one is in test_claude_cli.py."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bae import BaeLMError, BaeParseError
from bae.lm import ClaudeCLIBackend, Correction, FewShot, Usage
from bounded import BOUND
from claude_programs import CALL, calls, children, living, open_files, printing, result, script
from http_backends import SHIRT, Outfit, prompt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = children(), open_files()
    yield
    assert (children(), open_files()) == before
    assert list(folder.iterdir()) == []


def claude(executable: str, **options: Any) -> ClaudeCLIBackend:
    return ClaudeCLIBackend(executable=executable, **{"timeout": BOUND, "retries": 0, **options})


async def failure(program: str, **options: Any) -> BaeLMError:
    with pytest.raises(BaeLMError) as caught:
        await claude(program, **options).answer(prompt())
    return caught.value


ECHO = """
said = {"arguments": sys.argv[1:], "given": sys.stdin.read(), "env": dict(os.environ),
        "cwd": os.getcwd(), "files": os.listdir(), "session": os.getsid(0) == os.getpid()}
print(json.dumps({"type": "result", "subtype": "success", "is_error": False,
                  "structured_output": said}))
"""


# --- how it is asked --------------------------------------------------------------------------


async def test_the_claude_program_runs_in_an_empty_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a key")
    monkeypatch.setenv("CLAUDECODE", "1")  # a session that bae runs in
    monkeypatch.setenv("CLAUDE_CODE_MAX_RETRIES", "10")
    corrections = [Correction("{}", "top: missing")]
    asked = prompt(system="be\0 brief \ud800", corrections=corrections)
    asked = asked.with_question("a \ud800", [FewShot("Hat", "{}")])
    lm = claude(script(tmp_path, ECHO), env={"EXTRA": "given"})
    seen = (await lm.answer(asked)).value
    arguments, env = seen["arguments"], seen["env"]
    assert seen["given"] == asked.flat().replace("\ud800", "?")
    assert json.loads(arguments[arguments.index("--json-schema") + 1]) == asked.schema
    assert arguments[arguments.index("--system-prompt") + 1] == "be brief ?"
    assert arguments[arguments.index("--model") + 1] == "sonnet"
    assert not any("a ?" in argument for argument in arguments)
    assert seen["files"] == []
    assert seen["session"] is True
    assert seen["cwd"] == env["PWD"] != os.getcwd()
    assert os.path.dirname(seen["cwd"]) == tempfile.gettempdir()
    assert (env["ANTHROPIC_API_KEY"], env["EXTRA"]) == ("a key", "given")
    assert env["HOME"] == os.environ["HOME"]
    assert env["CLAUDE_CODE_MAX_RETRIES"] == "0"
    assert "CLAUDECODE" not in env


async def test_a_schema_or_system_text_too_long_for_an_argument_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BaeLMError, match="Argument list too long") as caught:
        await claude(script(tmp_path, ECHO)).answer(prompt(system="x" * 200_000))
    assert "split the node" in (caught.value.fix or "")
    assert not caught.value.retryable
    assert not caught.value.sent


# --- what it answers --------------------------------------------------------------------------


def message(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    model = {"model": more.pop("model", "claude-sonnet-9"), "content": list(content)}
    return {"type": "assistant", "message": model, **more}


INIT = {"type": "system", "subtype": "init", "tools": ["StructuredOutput"]}
OWN_LIMIT = result(subtype="error_max_turns", is_error=True, structured_output=None)
del OWN_LIMIT["structured_output"]


def call_message(value: Any) -> dict[str, Any]:
    return message({"type": "tool_use", "name": "StructuredOutput", "input": value})


async def test_a_claude_cli_answer_has_its_usage(tmp_path: Path) -> None:
    answer = await claude(printing(tmp_path, result())).answer(prompt())
    assert answer.value == {"top": "a shirt"}
    assert json.loads(answer.text) == answer.value
    assert answer.stop == "end"
    assert answer.usage == Usage(
        calls=1,
        input_tokens=321,
        output_tokens=4000,
        cached_tokens=300,
        cost=0.25,
        models=("claude-sonnet-9",),
    )


async def test_unreported_usage_is_unknown(tmp_path: Path) -> None:
    bare = {"type": "result", "is_error": False, "structured_output": {}}
    answer = await claude(printing(tmp_path, bare), model="opus").answer(prompt())
    assert answer.usage == Usage(calls=1, cost=None, models=("opus",))


@pytest.mark.parametrize("cost", ["1_0", "0.25", True, -1, [], float("nan"), 10**400])
async def test_an_invalid_cost_is_unknown(tmp_path: Path, cost: Any) -> None:
    printed = {"type": "result", "is_error": False, "structured_output": {}, "total_cost_usd": cost}
    answer = await claude(printing(tmp_path, printed), model="opus").answer(prompt())
    assert answer.usage == Usage(calls=1, cost=None, models=("opus",))


@pytest.mark.parametrize(
    ("printed", "text", "stop"),
    [
        ([INIT, call_message({"top": 3}), OWN_LIMIT], '{"top": 3}', "end"),
        ([INIT, call_message({"__unparsedToolInput": {"raw": '{"to'}}), OWN_LIMIT], '{"to', "end"),
        (
            [INIT, call_message({"top": "a"}), {**OWN_LIMIT, "stop_reason": "max_tokens"}],
            '{"top": "a"}',
            "cut-off",
        ),
        (result(stop_reason="max_tokens"), '{"top": "a shirt"}', "cut-off"),
        ([INIT, message({"type": "text", "text": "Hm."}), OWN_LIMIT], "Hm.", "end"),
        ([INIT, message({"type": "thinking"}), OWN_LIMIT], "", "end"),
        (
            [
                INIT,
                message({"type": "text", "text": "a sh"}),
                message({"type": "text", "text": "too long"}, model="<synthetic>"),
                {"type": "assistant", "error": "max_output_tokens"},
                result(is_error=True, result="API Error: too long"),
            ],
            "a sh",
            "cut-off",
        ),
        (
            [
                INIT,
                message({"type": "text", "text": "I will not."}),
                result(is_error=True, stop_reason="refusal", result="API Error"),
            ],
            "I will not.",
            "refused",
        ),
        (result(is_error=True, stop_reason="refusal", result="no"), "no", "refused"),
    ],
    ids=[
        *("wrong", "torn", "cut-tool", "cut-whole", "prose", "nothing", "cut-prose", "refused"),
        "refused-bare",
    ],
)
async def test_an_unusable_answer_of_the_program_is_returned_and_not_raised(
    tmp_path: Path, printed: Any, text: str, stop: str
) -> None:
    failed = json.dumps(printed).count('"is_error": true')
    program = script(tmp_path, f"print(text); sys.exit({failed})", text=json.dumps(printed))
    answer = await claude(program).answer(prompt())
    assert (answer.text, answer.stop) == (text, stop)


# --- what it fails with -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said", "retryable"),
    [
        (
            "sys.stderr.write('the start ' + 'x' * 5000 + ' the end'); sys.exit(7)",
            "status 7",
            False,
        ),
        ("print(text); sys.exit(2)", "status 2", False),  # its result is not believed
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9", True),
    ],
    ids=["words", "result", "killed"],
)
async def test_the_error_of_a_failed_program_quotes_the_end_of_its_output(
    tmp_path: Path, body: str, said: str, retryable: bool
) -> None:
    error = await failure(script(tmp_path, body, text=json.dumps(result())))
    assert (error.code, error.retryable) == ("bae-lm-program-failed", retryable)
    assert said in error.message
    assert "the start" not in error.message
    assert error.message.endswith("x the end") == ("the end" in body)


@pytest.mark.parametrize(
    ("changed", "code", "retryable"),
    [
        ({"api_error_status": 429}, "bae-lm-rate-limited", True),
        ({"error": "rate_limit"}, "bae-lm-rate-limited", True),
        ({"error": "authentication_failed"}, "bae-lm-unauthorized", False),
        ({"error": "server_error"}, "bae-lm-unreachable", True),
        ({"error": "invalid_request"}, "bae-lm-request-refused", False),
        ({"error": "something new"}, "bae-lm-program-failed", False),
        ({"subtype": "error_during_execution"}, "bae-lm-program-failed", False),
        ({}, "bae-lm-program-failed", False),
    ],
)
async def test_an_error_result_with_subtype_success_is_an_error(
    tmp_path: Path, changed: dict[str, Any], code: str, retryable: bool
) -> None:
    printed = result(is_error=True, result="it went wrong", **changed)
    program = script(
        tmp_path, "print(text); print('a warning', file=sys.stderr)", text=json.dumps(printed)
    )
    error = await failure(program)
    assert (error.code, error.retryable) == (code, retryable)
    assert error.status == changed.get("api_error_status", error.status)
    assert "it went wrong" in error.message
    assert "a warning" in error.message


async def test_the_end_of_stderr_is_reported_however_long_it_is(tmp_path: Path) -> None:
    printed = result(is_error=True, result="it went wrong " + "x" * 5000, api_error_status=500)
    body = "print(text); print('the start', 'y' * 1500, 'the cause', file=sys.stderr)"
    error = await failure(script(tmp_path, body, text=json.dumps(printed)))
    assert "it went wrong x" in error.message
    assert error.message.endswith("y the cause")
    assert "the start" not in error.message
    assert len(error.message) < 1300


@pytest.mark.parametrize(
    ("printed", "retryable"),
    [
        (json.dumps(result())[:-9], True),
        (json.dumps([INIT, result()])[:60], True),
        ("Welcome to Claude!", False),
        ("", False),
        ("[" * 100_000, True),
    ],
    ids=["cut", "cut-list", "words", "nothing", "deep"],
)
async def test_output_that_is_not_json_is_a_parse_error(
    tmp_path: Path, printed: str, retryable: bool
) -> None:
    error = await failure(printing(tmp_path, printed))
    assert isinstance(error, BaeParseError)
    assert error.code == "bae-lm-unparsable"
    assert error.retryable is retryable
    assert (printed[:20] or "nothing") in error.message
    assert len(error.message) < 1000


@pytest.mark.parametrize("before", [[], [{**INIT, "tools": []}]], ids=["unknown", "without"])
async def test_a_schema_that_the_program_ignored_is_reported(
    tmp_path: Path, before: list[Any]
) -> None:
    printed = result(result="I would wear a shirt.")
    del printed["structured_output"]
    said = message({"type": "text", "text": "I would wear a shirt."})
    error = await failure(printing(tmp_path, [*before, said, printed]))
    assert error.code == "bae-lm-schema-ignored"
    assert error.usage is not None
    assert error.usage.cost == printed["total_cost_usd"]  # it was asked, and paid for
    assert "I would wear a shirt." in error.message
    assert not error.retryable


@pytest.mark.parametrize("pipe", ["stdout", "stderr"])
async def test_endless_output_is_stopped(tmp_path: Path, pipe: str) -> None:
    program = script(tmp_path, f"while True: sys.{pipe}.write('x' * 1000)")
    error = await failure(program, max_output=50_000)
    assert (error.code, error.retryable) == ("bae-lm-output-too-long", False)
    assert "50000 bytes" in error.message
    assert pipe in error.message


async def test_a_hanging_program_is_a_timeout(tmp_path: Path) -> None:
    error = await failure(script(tmp_path, "time.sleep(1000)"), timeout=0.1)
    assert (error.code, error.retryable) == ("bae-lm-timeout", True)
    assert "within 0.1 s" in error.message


async def test_a_hanging_program_is_not_retried(tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = script(tmp_path, f"open({str(started)!r}, 'a').write('x'); time.sleep(1000)")
    lm = ClaudeCLIBackend("sonnet", 1.0, executable=program)
    with pytest.raises(BaeLMError) as caught:
        await lm.make(Outfit(**SHIRT), Outfit)
    assert caught.value.code == "bae-lm-timeout"
    assert started.read_text() == "x"


async def test_a_missing_or_failing_program_is_reported(tmp_path: Path) -> None:
    for name in ("no-such-claude", str(tmp_path / "claude")):
        error = await failure(name)
        assert (error.code, error.retryable) == ("bae-lm-program-missing", False)
        assert name in error.message
        assert "npm install" in (error.fix or "")
        assert not error.sent
    error = await failure(printing(tmp_path, result()), env={"LONG": "x" * 200_000})
    assert (error.code, error.retryable) == ("bae-lm-program-failed", False)
    assert isinstance(error.cause, OSError)


# --- many at once -----------------------------------------------------------------------------


async def test_many_cancelled_concurrent_calls_leave_no_process_and_no_file(tmp_path: Path) -> None:
    body = CALL + "call()\nwait()\nprint(text)"
    async with calls() as line:
        program = script(tmp_path, body, port=line.port, text=json.dumps(result()))
        backend = claude(program)
        running = [asyncio.create_task(backend.answer(prompt())) for _ in range(12)]
        callers = [await line.next() for _ in running]
        for task in running[::2]:
            task.cancel()
        cancelled = await asyncio.gather(*running[::2], return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in cancelled)
        left = [caller for caller in callers if living(group=caller.pid)]
        assert len(left) == len(children()) == 6
        for caller in left:
            caller.go()
        answers = await asyncio.gather(*running[1::2])
        assert [answer.value for answer in answers] == [{"top": "a shirt"}] * 6
        for caller in callers:
            await caller.gone()


# --- the backend itself -----------------------------------------------------------------------


def test_settings_are_the_given_variables_without_secrets() -> None:
    env = {
        "ANTHROPIC_BASE_URL": "https://me:hidden@gateway.test/v1?api_key=hidden&region=eu",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "500",
        **dict.fromkeys(("ANTHROPIC_API_KEY", "MY_TOKEN", "HTTPS_PROXY"), "hidden"),
    }
    assert ClaudeCLIBackend(env=env).settings == {
        "ANTHROPIC_BASE_URL": "https://gateway.test/v1?api_key=&region=eu",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "500",
    }
    assert ClaudeCLIBackend().settings == {}


KEY = "sk-ant-very-secret-0123456789"


@pytest.mark.parametrize("given", [True, False])
async def test_a_key_that_the_program_prints_is_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    env = {"ANTHROPIC_API_KEY": KEY} if given else {}
    if not given:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    lm = claude(printing(tmp_path, result(structured_output={"top": KEY, "layers": 1})), env=env)
    assert (await lm.fill(Outfit, {}, "Outfit")).top == "***"
    failing = script(tmp_path, "sys.exit(f'no: {os.environ[\"ANTHROPIC_API_KEY\"]}')")
    with pytest.raises(BaeLMError) as caught:
        await claude(failing, env=env).fill(Outfit, {}, "Outfit")
    assert "no: ***" in str(caught.value)
    assert KEY not in str(caught.value)
