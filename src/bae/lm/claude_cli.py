"""The backend for Claude through the command-line program `claude` and the user's login. Each
question is one run of the program."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

from pydantic_core import from_json

from bae.exceptions import BaeLMError, BaeParseError
from bae.files import in_use
from bae.lm.anthropic_messages import file_blocks
from bae.lm.backend import Answer, Backend, FilePart, Prompt, check_positive
from bae.lm.claude_events import JSON_OUTPUT, STREAM_OUTPUT, TOOL, WITH_FILES, PrintedEvents
from bae.lm.file_limits import CLAUDE_LIMITS
from bae.lm.http import mask, secrets_in, status_error, timeout_error, without_secrets
from bae.lm.options import Effort
from bae.lm.prices import cost_of
from bae.lm.provider_schemas import for_claude_program
from bae.subprocesses import EndedProgram, run_program
from bae.usage import Thought, Usage, read_amount, read_count, tell, text_is_followed


class ClaudeCLIBackend(Backend):
    """Claude, asked through the program `claude`, version 2.1 or later. Run `claude` once and log
    in, or set `ANTHROPIC_API_KEY`.

    bae runs the program in an empty directory, without tools, MCP servers, settings, memory and
    session files. The program reads no settings files, so pass settings such as `apiKeyHelper` by
    `env`.

    The program sends one request, or more if the model says nothing or is cut off before its
    answer. It adds today's date to the prompt. If you are logged in with an account, it also adds
    the account's e-mail address. If the run is observed, the program prints the answer while the
    model writes it.

    - `model`: a name, or an alias for the newest model: "sonnet", "opus", "haiku".
    - `timeout`: seconds for the whole call, including the start of the program.
    - `executable`: the name of the program on the `PATH`, or its path.
    - `effort`: how much the model thinks and writes, such as "low". By default the program decides.
    - `env`: further environment variables for the program.
    - `max_output`: how many bytes the program may print.
    """

    takes_files = frozenset({"image", "document"})
    file_limits = CLAUDE_LIMITS

    def __init__(
        self,
        model: str = "sonnet",
        timeout: float = 300.0,
        *,
        executable: str | os.PathLike[str] = "claude",
        effort: Effort | None = None,
        env: Mapping[str, str] | None = None,
        max_output: int = 16_000_000,
        attempts: int = 2,
        retries: int = 2,
        one_call: bool = True,
    ) -> None:
        super().__init__(attempts=attempts, retries=retries, one_call=one_call)
        check_positive(self, timeout=timeout, max_output=max_output)
        self.model = model
        self.timeout = timeout
        self.executable = os.fspath(executable)
        self.max_output = max_output
        self._env = dict(env or {})
        if effort is not None:
            self._env["CLAUDE_CODE_EFFORT_LEVEL"] = effort

    @property
    def settings(self) -> Mapping[str, Any]:
        """The environment variables in `env`, without keys, tokens and passwords."""
        return without_secrets(dict(sorted(self._env.items())))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The keys, tokens and passwords in the environment of the program."""
        claude_variables = {
            n: v for n, v in os.environ.items() if n.startswith(("ANTHROPIC", "CLAUDE"))
        }
        return tuple(secrets_in({**claude_variables, **self._env}))

    def least_cost(self, usage: Usage) -> float | None:
        """Return the cost of a request with this usage by Anthropic's prices, or 0.0 if unknown.
        The price of an alias is unknown before the request. The program reports the cost
        afterwards."""
        return cost_of(self.model, usage, "anthropic") or 0.0

    async def answer(self, prompt: Prompt) -> Answer:
        """Send the prompt with one run of the program."""
        arguments = self._arguments(prompt)
        flat = prompt.flat()
        if flat.startswith("/"):
            flat = f"\n{flat}"  # otherwise the program reads it as a command
        text = flat.encode(errors="replace")
        if files := prompt.files if in_use() else ():
            text, arguments = _message_line(flat, files), [*arguments, *WITH_FILES]
        streams = bool(files) or text_is_followed.get()
        try:
            # Do not make the directory in a thread, because starting a thread takes longer.
            with TemporaryDirectory(prefix="bae_claude_", ignore_cleanup_errors=True) as empty:
                ended = await self._run(arguments, text, empty, streams=streams)
        except OSError as error:
            not_executable = error.errno in (errno.EACCES, errno.ENOEXEC)
            raise BaeLMError(
                f"{self._who}: the program {self.executable!r} could not be started",
                code="bae-lm-program-missing" if not_executable else "bae-lm-program-failed",
                sent=False,
                retryable=error.errno in _BUSY,
                cause=error,
                fix=_FIXES.get(error.errno or 0)
                or "check that the file is the program claude, and executable, and that the "
                "directory for temporary files (TMPDIR) is writable and has room",
            ) from error
        if ended.bound == "timeout":
            raise timeout_error(self._who, self.timeout, None, besides=_stderr(ended))
        if ended.bound is not None:
            raise BaeLMError(
                f"{self._who}: the program printed more than {self.max_output} bytes on "
                f"{ended.bound}, and was ended{_stderr(ended)}",
                code="bae-lm-output-too-long",
                fix="see what it prints, or allow for more with max_output=…",
            )
        messages = _messages(ended, self._who)
        if not streams:
            for thought in _read_thoughts(messages):
                tell(Thought(mask(thought, self.secrets)))
        in_text = prompt.schema is None
        return _read_answer(ended, messages, self._who, self.model, in_text=in_text)

    @property
    def _who(self) -> str:
        return f"ClaudeCLIBackend({self.model!r})"

    async def _run(
        self, arguments: list[str], text: bytes, empty: str, *, streams: bool
    ) -> EndedProgram:
        printed = PrintedEvents(self.secrets) if streams else None
        inherited = {name: v for name, v in os.environ.items() if name not in _SESSION_VARIABLES}
        env = {**inherited, **_SWITCHES, "PWD": empty, "CLAUDE_CODE_TMPDIR": empty, **self._env}
        ended = await run_program(
            [self._program(env), *arguments, *(JSON_OUTPUT if printed is None else STREAM_OUTPUT)],
            given=text,
            cwd=empty,
            env=env,
            timeout=self.timeout,
            limit=self.max_output,
            on_output=None if printed is None else printed.take,
        )
        return ended if printed is None else replace(ended, out=printed.messages())

    def _arguments(self, prompt: Prompt) -> list[str]:
        schema: list[str] = []
        if prompt.schema is not None:
            schema = ["--json-schema", _program_schema(json.dumps(prompt.schema))]
        # An argument cannot contain a zero byte or invalid text.
        system = prompt.system.replace("\0", "").encode(errors="replace").decode()
        return [
            *("--print", "--model", self.model, "--system-prompt", system, *schema),
            # Allow one request, because bae asks again itself and counts the tries.
            *("--max-turns", "1"),
            *("--tools", "", "--strict-mcp-config", "--setting-sources", ""),
            *("--disable-slash-commands", "--no-session-persistence"),
        ]

    def _program(self, env: Mapping[str, str]) -> str:
        path = shutil.which(self.executable, path=env.get("PATH"))
        if path is not None:
            return str(Path(path).absolute())  # the program starts in another directory
        raise BaeLMError(
            f"{self._who}: there is no program {self.executable!r} that can be run",
            code="bae-lm-program-missing",
            sent=False,
            fix="npm install -g @anthropic-ai/claude-code, then run claude once and log in; or "
            "say where it is with ClaudeCLIBackend(executable=…)",
        )


def _message_line(text: str, files: Sequence[FilePart]) -> bytes:
    """Return a question with files as one line for the program's stdin."""
    sendable = text.encode(errors="replace").decode()
    content = [*file_blocks(files), {"type": "text", "text": sendable}]
    line = {"type": "user", "message": {"role": "user", "content": content}}
    return json.dumps(line).encode() + b"\n"


@lru_cache(maxsize=256)
def _program_schema(schema: str) -> str:
    return json.dumps(for_claude_program(json.loads(schema)))


_BUSY = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_FIXES = {
    **dict.fromkeys(_BUSY, "if too many run at once, wrap the LM in bae.lm.Concurrency(…)"),
    # The prompt goes to stdin, but the schema and the system part are arguments.
    errno.E2BIG: "ask for less at once: split the node in two",
}
_SWITCHES = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    # Without these, the program would send more than one request.
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "CLAUDE_CODE_DISABLE_REFUSAL_FALLBACK": "1",
    "DISABLE_COMPACT": "1",
    # Without this, "@/etc/passwd" in a prompt would make the program read and send the file.
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",
    # Without these, the program would add the user's and the project's instructions.
    "CLAUDE_CODE_SAFE_MODE": "1",
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS": "1",
}
_SESSION_VARIABLES = frozenset(
    {
        "CLAUDECODE",
        "CLAUDE_CODE_CHILD_SESSION",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_CODE_SSE_PORT",
        "CLAUDE_PROJECT_DIR",
        "OLDPWD",
    }
)
"""Variables that a session of `claude` sets. If bae runs inside such a session, it does not pass
them on to the program."""


# --- reading the output -----------------------------------------------------------------------

CLIMessage = dict[str, Any]


def _read_answer(
    ended: EndedProgram, messages: list[CLIMessage], who: str, model: str, *, in_text: bool
) -> Answer:
    """Return the answer that the program printed. `in_text` means plain text instead of JSON.

    If an answer does not fit the schema, the program reports an error, because it may not ask
    again. This function returns the answer instead of raising the error, so that bae asks again.
    """
    result = messages[-1]
    # Do not trust the subtype: with `is_error`, it may be "success".
    failed = result.get("is_error") is not False
    usage = usage_in(result, model)
    texts, outputs = _model_output(messages)
    if not failed and "structured_output" in result:
        outputs.append(result["structured_output"])
    errors = (message.get("error") for message in reversed(messages))
    kind = next((error for error in errors if isinstance(error, str)), "")
    text = ("" if in_text else "\n").join(texts)
    if result.get("stop_reason") == "refusal":
        return Answer(text or _reason(result), usage, "refused")
    if result.get("stop_reason") == "max_tokens" or (failed and kind == "max_output_tokens"):
        if outputs:
            return _structured_answer(outputs[-1], usage, "cut-off")
        return Answer(text, usage, "cut-off")
    # The program also reports an error when it stops at the limit of one request, or when its
    # check of the schema fails. These are answers, not failures.
    if failed and result.get("subtype") not in _OWN_LIMITS:
        error = _failure(who, result, kind, ended)
        error.usage = usage if usage.cost else None
        raise error
    if outputs:
        return _structured_answer(outputs[-1], usage)
    if in_text or any(TOOL in _list(message.get("tools")) for message in messages):
        return Answer(text, usage)
    raise BaeLMError(
        f"{who}: the program did not enforce the schema, and printed no structured answer. Its "
        f"message: {_reason(result)!r}{_stderr(ended)}",
        code="bae-lm-schema-ignored",
        usage=usage,
        fix="the program must be of version 2.1 or later (claude --version); it ignores a schema "
        "that it does not understand: look for unusual parts in the schema of the node",
    )


def _messages(ended: EndedProgram, who: str) -> list[CLIMessage]:
    """Return the messages that the program printed, up to the result. Raises if there is no result,
    or if the program reports success and exits with an error. Without --verbose, the result is the
    only message."""
    json_error: ValueError | None = None
    messages: list[CLIMessage] = []
    try:
        output: Any = from_json(ended.out)
        messages = [_dict(message) for message in _list(output) or [output]]
    except ValueError as error:
        json_error = error
    while messages and messages[-1].get("type") != "result":
        messages.pop()
    if messages and not (ended.status and messages[-1].get("is_error") is False):
        return messages
    output_text = ended.out.decode(errors="replace").strip()
    quoted = repr(
        output_text if len(output_text) <= 600 else f"{output_text[:300]} … {output_text[-300:]}"
    )
    besides = f"it printed {quoted if output_text else 'nothing'}{_stderr(ended)}"
    if json_error is not None and not ended.status:
        raise BaeParseError(
            f"{who}: the output of the program is not JSON, or was cut off: {besides}",
            cause=json_error,
            retryable=output_text[:1] in ("{", "["),
            fix="try the program by hand: claude -p hello --output-format json",
        ) from json_error
    ending = f"exited with status {ended.status}"
    if ended.status < 0:
        ending = f"was ended by signal {-ended.status}"
    no_result = "" if messages else " and gave no result"
    raise BaeLMError(
        f"{who}: the program {ending}{no_result}: {besides}",
        code="bae-lm-program-failed",
        retryable=ended.status < 0,  # a signal comes from outside, for example if memory is short
        fix="see what it says; its version must be 2.1 or later (claude --version)",
    ) from json_error


def _model_output(messages: list[CLIMessage]) -> tuple[list[str], list[Any]]:
    """Return the model's texts and its structured answers."""
    texts: list[str] = []
    outputs: list[Any] = []
    for event in messages:
        message = _dict(event.get("message"))
        # If the request failed, the program prints its own message as a message of the model.
        if event.get("type") != "assistant" or message.get("model") == "<synthetic>":
            continue
        for block in map(_dict, _list(message.get("content"))):
            if block.get("type") == "text":
                texts.append(str(block.get("text", "")))
            elif block.get("type") == "tool_use" and block.get("name") == TOOL:
                outputs.append(block.get("input"))
    return texts, outputs


def _read_thoughts(messages: list[CLIMessage]) -> Iterator[str]:
    """Yield the thoughts of the model."""
    for event in messages:
        for block in map(_dict, _list(_dict(event.get("message")).get("content"))):
            if block.get("type") == "thinking" and isinstance(block.get("thinking"), str):
                yield block["thinking"]


def _structured_answer(value: Any, usage: Usage, stop: Literal["end", "cut-off"] = "end") -> Answer:
    """Return a structured answer. If the model's answer is not JSON, its text is the answer."""
    raw = _dict(_dict(value).get("__unparsedToolInput")).get("raw")
    if isinstance(raw, str):
        return Answer(raw, usage, stop)
    return Answer(json.dumps(value, ensure_ascii=False), usage, stop, value)


def usage_in(result: CLIMessage, model: str) -> Usage:
    """Return the usage in a message of the program. If the message names no model, use `model`."""
    models = _dict(result.get("modelUsage"))
    # Sum over the models, because the program's total omits requests that were not streamed.
    fresh, written, read, out = (
        sum(read_count(_dict(counts).get(model_key)) for counts in models.values())
        or read_count(_dict(result.get("usage")).get(total_key))
        for model_key, total_key in _COUNTED
    )
    return Usage(
        calls=1,
        input_tokens=fresh + written + read,
        output_tokens=out,
        cached_tokens=read,
        cost=read_amount(result.get("total_cost_usd")),
        models=tuple(models) or (model,),
    )


def _failure(who: str, result: CLIMessage, kind: str, ended: EndedProgram) -> BaeLMError:
    """Return the error for a failed request. `kind` is the program's name for the failure."""
    reason = _reason(result)
    reason = reason if len(reason) <= _SHOWN else f"{reason[:_SHOWN]}…"
    status = result.get("api_error_status") or _STATUS.get(kind)
    if isinstance(status, int):
        return status_error(who, status, reason, besides=_stderr(ended))
    code, problem, fix = _FAILURES.get(kind, _FAILURES[""])
    return BaeLMError(
        f"{who}: {problem}: {reason}{_stderr(ended)}",
        code=code,
        retryable=code == "bae-lm-unreachable",
        fix=fix,
    )


def _reason(result: CLIMessage) -> str:
    """Return the program's own message about the result."""
    message = result.get("result")
    if isinstance(message, str) and message:
        return message
    return "; ".join(map(str, _list(result.get("errors")))) or "no reason is given"


def _stderr(ended: EndedProgram) -> str:
    """Return the end of the program's stderr, to append to an error message."""
    text = ended.err.decode(errors="replace").strip()
    return f"; stderr ends: {text[-_SHOWN:]}" if text else ""


def _dict(value: Any) -> CLIMessage:
    return cast(CLIMessage, value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


_SHOWN = 500
"""The most characters that an error shows of the program's message, and of stderr."""

_COUNTED = (
    ("inputTokens", "input_tokens"),
    ("cacheCreationInputTokens", "cache_creation_input_tokens"),
    ("cacheReadInputTokens", "cache_read_input_tokens"),
    ("outputTokens", "output_tokens"),
)
_OWN_LIMITS = ("error_max_turns", "error_max_structured_output_retries")
_STATUS = {"rate_limit": 429, "model_not_found": 404, "invalid_request": 400}
"""HTTP statuses for failures that the program reports without a status."""

_UNAUTHORIZED = (
    "bae-lm-unauthorized",
    "the login or key does not allow requests",
    "run claude once and log in, or set ANTHROPIC_API_KEY",
)
_UNREACHABLE = (
    "bae-lm-unreachable",
    "it could not reach the model",
    "check the network; bae.lm.Retry(…) asks again by itself",
)
_FAILURES = {
    "": ("bae-lm-program-failed", "the program reports an error", "see what it says"),
    **dict.fromkeys(
        ("authentication_failed", "oauth_org_not_allowed", "billing_error"), _UNAUTHORIZED
    ),
    **dict.fromkeys(("server_error", "unknown"), _UNREACHABLE),
}
