"""The coding programs that bae supports: Claude Code and Codex."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from bae.lm import Budget, Usage
from bae.lm.claude_cli import usage_in
from bae.team.models import headline
from bae.team.programs import CodingProgram, ProgramEvent


class ClaudeCode(CodingProgram):
    """Claude Code as a worker. It needs the program `claude`, version 2.1 or later, and your login
    or `ANTHROPIC_API_KEY`. It loads your own settings, and ignores settings in the worktree."""

    name = "claude-code"
    settings = (".claude/settings.json", ".claude/CLAUDE.md")
    logins = (".claude/.credentials.json",)
    variables = ("ANTHROPIC_*", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_*")
    covered = (".claude", ".mcp.json")
    switches: ClassVar[Mapping[str, str]] = {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
        # Without this variable, "@/etc/passwd" in a prompt makes Claude Code send that file.
        "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    install = "npm install -g @anthropic-ai/claude-code, then run claude once and log in"

    def __init__(self, executable: str = "claude", **options: Any) -> None:
        super().__init__(executable, **options)

    def arguments(self, session: str, cost: float | None) -> Sequence[str]:
        """Return the arguments of a turn. Claude Code may edit files and run commands without
        asking, because the sandbox confines it."""
        return [
            *("--print", "--output-format", "stream-json", "--verbose"),
            # Not `bypassPermissions`: Claude Code refuses this mode when it runs as root.
            *("--permission-mode", "acceptEdits", "--tools", _TOOLS, "--allowedTools", _TOOLS),
            *("--setting-sources", "user", "--strict-mcp-config", "--disable-slash-commands"),
            *(("--model", self.model) if self.model else ()),
            *(("--resume", session) if session else ()),
            *(("--max-budget-usd", f"{cost:.6f}") if cost is not None else ()),
        ]

    def prepare_home(self, home: Path) -> None:
        """Copy the login from `~/.claude.json`, without the names of the user's projects."""
        target, source = home / ".claude.json", Path.home() / ".claude.json"
        if target.exists() or not source.is_file():
            return
        settings: Any = json.loads(source.read_text("utf-8"))
        login = {key: settings[key] for key in _LOGIN_KEYS if key in settings}
        target.write_text(json.dumps(login), "utf-8")

    def read_event(self, event: Mapping[str, Any]) -> Iterator[ProgramEvent]:
        """Read a message of `--output-format stream-json`."""
        kind = event.get("type")
        message = _read_dict(event.get("message"))
        if kind == "system" and event.get("subtype") == "init":
            yield ProgramEvent(session=str(event.get("session_id", "")))
        elif kind == "assistant" and message.get("model") != "<synthetic>":
            model = str(message.get("model", ""))
            usage = replace(usage_in({"usage": message.get("usage")}, model), models=(model,))
            yield ProgramEvent(request=str(message.get("id", "")), used=usage)
            for block in _read_dicts(message.get("content")):
                if block.get("type") == "text":
                    yield ProgramEvent(message=str(block.get("text", "")))
                elif block.get("type") == "tool_use":
                    arguments = _read_dict(block.get("input"))
                    yield ProgramEvent(activity=_describe_tool(str(block.get("name")), arguments))
        elif kind == "result":
            yield self._read_result(event)

    def _read_result(self, event: Mapping[str, Any]) -> ProgramEvent:
        total = usage_in(dict(event), self.model)
        text = str(event.get("result") or "")
        # The subtype alone is not enough: a failure can have the subtype "success".
        if event.get("is_error") is False:
            return ProgramEvent(message=text, total=total)
        if event.get("subtype") == "error_max_budget_usd":
            return ProgramEvent(total=total, at_limit=True)
        errors = event.get("errors")
        reasons = "; ".join(map(str, cast(list[Any], errors))) if isinstance(errors, list) else ""
        return ProgramEvent(total=total, failure=text or reasons or "no reason is given")


class Codex(CodingProgram):
    """Codex as a worker. It needs the program `codex`, and your login or `OPENAI_API_KEY`. It
    reports tokens but no cost."""

    name = "codex"
    settings = (".codex/config.toml", ".codex/AGENTS.md")
    logins = (".codex/auth.json",)
    variables = ("OPENAI_*", "CODEX_API_KEY")
    covered = (".codex", ".agents", ".mcp.json")
    reports_cost = False
    task_budget = Budget(tokens=5_000_000)
    totals_add_up = True
    install = "npm install -g @openai/codex, then run codex once and log in"

    def arguments(self, session: str, cost: float | None) -> Sequence[str]:
        """Return the arguments of a turn. Codex may edit files and run commands without asking. Its
        own sandbox is off, because it runs in bae's sandbox."""
        return [
            *("exec", *(("resume",) if session else ())),
            *("--json", "--skip-git-repo-check", "--ignore-rules"),
            *("--dangerously-bypass-approvals-and-sandbox", "-c", "project_doc_max_bytes=0"),
            *(("-m", self.model) if self.model else ()),
            *((session,) if session else ()),
            "-",
        ]

    def read_event(self, event: Mapping[str, Any]) -> Iterator[ProgramEvent]:
        """Read a line of `codex exec --json`."""
        item = _read_dict(event.get("item"))
        match event.get("type"), item.get("type"):
            case "thread.started", _:
                yield ProgramEvent(session=str(event.get("thread_id", "")))
            case "item.started", "command_execution":
                command = _unwrap_command(str(item.get("command", "")))
                yield ProgramEvent(activity=f"runs {headline(command, _SHOWN_COMMAND)}")
            case "item.completed", "file_change":
                paths = [str(change.get("path", "")) for change in _read_dicts(item.get("changes"))]
                yield ProgramEvent(activity=f"edits {', '.join(paths)}")
            case "item.completed", "agent_message":
                yield ProgramEvent(message=str(item.get("text", "")))
            case "turn.completed", _:
                counts = _read_dict(event.get("usage"))
                yield ProgramEvent(
                    total=Usage(
                        calls=1,
                        input_tokens=_read_count(counts.get("input_tokens")),
                        output_tokens=_read_count(counts.get("output_tokens")),
                        cached_tokens=_read_count(counts.get("cached_input_tokens")),
                        cost=None,
                    )
                )
            case "turn.failed", _:
                message = _read_dict(event.get("error")).get("message")
                yield ProgramEvent(failure=str(message or "no reason is given"))
            case _:
                pass


PROGRAMS: Final[Mapping[str, type[CodingProgram]]] = {
    program.name: program for program in (ClaudeCode, Codex)
}
"""The supported programs by name."""


def _describe_tool(name: str, arguments: Mapping[str, Any]) -> str:
    path = arguments.get("file_path") or arguments.get("notebook_path") or arguments.get("path")
    match name:
        case "Bash":
            return f"runs {headline(str(arguments.get('command', '')), _SHOWN_COMMAND)}"
        case "Read":
            return f"reads {path}"
        case "Edit" | "Write" | "NotebookEdit":
            return f"edits {path}"
        case "Grep" | "Glob":
            return f"searches for {headline(str(arguments.get('pattern', '')), _SHOWN_COMMAND)}"
        case _:
            return f"uses {name}"


def _unwrap_command(command: str) -> str:
    """Return the command that `sh -c` runs. Other commands are returned unchanged."""
    with suppress(ValueError):
        match shlex.split(command):
            case [_, "-c" | "-lc", inner]:
                return inner
            case _:
                pass
    return command


def _read_dict(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _read_dicts(value: Any) -> list[dict[str, Any]]:
    return [_read_dict(item) for item in cast(list[Any], value)] if isinstance(value, list) else []


_TOOLS: Final = "Bash,Edit,Glob,Grep,NotebookEdit,Read,TodoWrite,Write"
_SHOWN_COMMAND: Final = 120
_LOGIN_KEYS: Final = ("primaryApiKey", "oauthAccount", "customApiKeyResponses", "userID")


def _read_count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
