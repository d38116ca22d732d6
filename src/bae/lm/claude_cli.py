"""Claude through its command line program, with the login the user has there: one run of `claude`
for one question. `subprocesses.py` runs it, `plain_schemas.py` puts the schema into words that it
takes, and `claude_output.py` reads what it printed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from errno import EACCES, EAGAIN, EMFILE, ENFILE, ENOENT, ENOEXEC, ENOMEM, ENOSPC, ENOTDIR
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bae.exceptions import BaeLMError
from bae.lm.backend import Answer, Backend, Prompt
from bae.lm.claude_output import answer_in, stderr_of
from bae.lm.http import timeout_error, without_secrets
from bae.lm.prices import cost_of
from bae.lm.provider_schemas import for_claude_program
from bae.lm.subprocesses import Ended, TookTooLong, TooMuchOutput, run
from bae.usage import Usage

LONGEST_ARGUMENT = 120_000 if os.name == "posix" else 12_000
"""Bytes of the schema, and of the system part: Linux takes 128 KiB in one argument, Windows 32 KiB
in all of them. The prompt itself goes by stdin, however long."""


class ClaudeCLIBackend(Backend):
    """Claude, asked through the program `claude`, version 2.1 or later. Run it once and log in, or
    have `ANTHROPIC_API_KEY` set.

    The program runs without tools, MCP servers, settings, memory and session files, in an empty
    directory, and sends one request; more only where the model says nothing, or is cut off before
    it comes to its answer. It adds to the prompt today's date and, where you are logged in with
    one, the e-mail address of the account. Since settings files are not read, what is set up in
    them alone, as `apiKeyHelper`, has to be given by `env`.

    - `model`: a name, or the alias of the newest: "sonnet", "opus", "haiku".
    - `timeout`: seconds for a whole call, the start of the program included.
    - `executable`: the program, looked up on the `PATH`, or the path to it.
    - `env`: more environment variables for the program, as `{"CLAUDE_CODE_EFFORT_LEVEL": "low"}`.
    - `max_output`: bytes that the program may print.
    """

    def __init__(
        self,
        model: str = "sonnet",
        *,
        timeout: float = 300.0,
        executable: str | os.PathLike[str] = "claude",
        env: Mapping[str, str] | None = None,
        max_output: int = 16_000_000,
        attempts: int = 2,
        retries: int = 2,
        one_call: bool = True,
    ) -> None:
        super().__init__(attempts=attempts, retries=retries, one_call=one_call)
        if max_output < 1:
            raise ValueError(f"ClaudeCLIBackend(max_output={max_output!r}): give 1 or more")
        if not timeout > 0:
            raise ValueError(f"ClaudeCLIBackend(timeout={timeout!r}): give a number of seconds")
        if not _can_be_given(model):
            raise ValueError(f"ClaudeCLIBackend({model!r}): no program can be given this name")
        for name, value in (env or {}).items():
            if not name or "=" in name or not _can_be_given(name) or not _can_be_given(value):
                # The value may be a secret.
                raise ValueError(f"ClaudeCLIBackend(env=…): {name!r} is no variable with a text")
        self.model = model
        self.timeout = timeout
        self.executable = os.fspath(executable)
        self.max_output = max_output
        self._env = dict(env or {})

    @property
    def settings(self) -> Mapping[str, Any]:
        """Those of the given environment variables that say where, and how, the model is asked;
        keys, tokens and passwords are not among them."""
        return without_secrets(dict(sorted(self._env.items())))

    def least_cost(self, usage: Usage) -> float | None:
        """What a request with this usage costs by Anthropic's prices. Where the name is an alias
        nobody knows before, but the program tells it afterwards."""
        return cost_of(self.model, usage, "anthropic") or 0.0

    async def answer(self, prompt: Prompt) -> Answer:
        """Run the program once."""
        arguments = self._arguments(prompt)
        given = prompt.flat().encode(errors="replace")
        if given.startswith(b"/"):
            given = b"\n" + given  # or it would be taken for a command to the program
        with self._empty_directory() as empty:
            ended = await self._run(arguments, given, empty)
        return answer_in(ended, self._who, self.model)

    @property
    def _who(self) -> str:
        return f"ClaudeCLIBackend({self.model!r})"

    def _empty_directory(self) -> TemporaryDirectory[str]:
        # On the loop: to make and remove one is quicker than to have a thread do it.
        try:
            return TemporaryDirectory(prefix="bae_claude_", ignore_cleanup_errors=True)
        except OSError as error:
            raise BaeLMError(
                f"{self._who}: there is no empty directory for the program to run in, because none "
                "could be made",
                code="bae-lm-program-failed",
                sent=False,
                retryable=error.errno in _FOR_NOW,
                cause=error,
                fix="check that the directory for temporary files (TMPDIR) is there, may be "
                "written to, and has room",
            ) from error

    async def _run(self, arguments: list[str], given: bytes, empty: str) -> Ended:
        env = self._environment(empty)
        try:
            return await run(
                [self._program(env), *arguments],
                given=given,
                cwd=empty,
                env=env,
                timeout=self.timeout,
                limit=self.max_output,
            )
        except TookTooLong as error:
            besides = stderr_of(error.err)
            raise timeout_error(self._who, self.timeout, error, besides=besides) from error
        except TooMuchOutput as error:
            raise BaeLMError(
                f"{self._who}: the program printed more than {self.max_output} bytes on "
                f"{error.pipe}, and was ended{stderr_of(error.err)}",
                code="bae-lm-output-too-long",
                cause=error,
                fix="see what it prints, or allow for more with max_output=…",
            ) from error
        except OSError as error:
            raise self._not_started(error) from error

    def _arguments(self, prompt: Prompt) -> list[str]:
        schema = _fitted(json.dumps(prompt.schema))
        # No argument can hold a zero byte, nor what is no text.
        system = prompt.system.replace("\0", "").encode(errors="replace").decode()
        for name, text in (("schema", schema), ("system part", system)):
            size = len(text.encode())
            if size > LONGEST_ARGUMENT:
                raise BaeLMError(
                    f"{self._who}: the {name} of {prompt.name} has {size} bytes, and the program "
                    f"takes {LONGEST_ARGUMENT}",
                    code="bae-lm-request-refused",
                    sent=False,
                    fix="ask for less at once: split the node in two",
                )
        return [
            *("--print", "--model", self.model, "--system-prompt", system, "--json-schema", schema),
            # With --verbose the whole exchange is printed, a wrong answer included.
            *("--output-format", "json", "--verbose"),
            # One request: asking again is for the layer above, which counts it.
            *("--max-turns", "1"),
            *("--tools", "", "--strict-mcp-config", "--setting-sources", ""),
            *("--disable-slash-commands", "--no-session-persistence"),
        ]

    def _environment(self, empty: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _OF_A_SESSION}
        here = {"PWD": empty, "CLAUDE_CODE_TMPDIR": empty}
        return {**kept, **_SWITCHES, **here, **self._env}

    def _program(self, env: Mapping[str, str]) -> str:
        found = shutil.which(self.executable, path=env.get("PATH"))
        if found is not None:
            return str(Path(found).absolute())  # it is started in another directory
        if Path(self.executable).is_file():
            raise PermissionError(EACCES, os.strerror(EACCES), self.executable)
        raise BaeLMError(
            f"{self._who}: there is no program {self.executable!r}",
            code="bae-lm-program-missing",
            sent=False,
            fix="npm install -g @anthropic-ai/claude-code, then run claude once and log in; or "
            "say where it is with ClaudeCLIBackend(executable=…)",
        )

    def _not_started(self, error: OSError) -> BaeLMError:
        said = f"{self._who}: the program {self.executable!r} could not be started"
        if error.errno in (EACCES, ENOENT, ENOEXEC, ENOTDIR):
            return BaeLMError(
                said,
                code="bae-lm-program-missing",
                sent=False,
                cause=error,
                fix="check that the file is the program claude, and executable",
            )
        return BaeLMError(
            said,
            code="bae-lm-program-failed",
            sent=False,
            retryable=error.errno in _FOR_NOW,
            cause=error,
            fix="see the cause; where there are too many at once, wrap the LM in "
            "bae.lm.Concurrency(…)",
        )


@lru_cache(maxsize=256)
def _fitted(schema: str) -> str:
    return json.dumps(for_claude_program(json.loads(schema)))


def _can_be_given(text: str) -> bool:
    """Whether a text can be an argument, or stand in the environment, of a program."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


_FOR_NOW = (EAGAIN, EMFILE, ENFILE, ENOMEM, ENOSPC)
"""What a system is short of for a while, and not for ever."""

_SWITCHES = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    # Requests that it would send by itself, besides the one.
    "CLAUDE_CODE_MAX_RETRIES": "0",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "CLAUDE_CODE_DISABLE_REFUSAL_FALLBACK": "1",
    "DISABLE_COMPACT": "1",
    # Without this, "@/etc/passwd" anywhere in a prompt has it read the file and send it.
    "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",
    # What the user and the project tell it, in whatever directory it runs.
    "CLAUDE_CODE_SAFE_MODE": "1",
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS": "1",
}
_OF_A_SESSION = frozenset(
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
"""Set where bae itself runs inside a session of the program, which is no concern of this one."""
