"""The editor for messages in `bae chat`. A message may have several lines. Tab completes commands.
A file stores earlier messages for the arrow keys."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bae.cli.questions import typed_line
from bae.private_files import private, write_private

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_LONGEST: Final = 1_000_000
"""Maximum bytes of the history file. A larger file loses its older half."""
_SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
"""Matches the names of environment variables with secrets. A message that contains a secret is not
stored in the history."""
_SHORTEST_SECRET: Final = 8
"""Minimum characters of a secret. Shorter values may be stored."""


class MessageLine:
    """Reads messages at a terminal.

    `history` is the file for earlier messages. With None, earlier messages are lost when the
    program ends. Tab completes `commands`. With `hidden`, typed text is neither shown nor stored.
    """

    def __init__(
        self, history: Path | None, commands: Sequence[str], *, hidden: bool = False
    ) -> None:
        self._file = None if hidden else history
        self._commands = commands
        self._hidden = hidden
        self._options: dict[str, Any] = {}

    async def read(self, prompt: str, default: str = "") -> str:
        """Read the next message. Raises EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C."""
        from prompt_toolkit.layout.processors import TabsProcessor

        if not self._options:
            self._options = {
                "history": _open_history(self._file),
                "key_bindings": _make_key_bindings(),
                "completer": _make_completer(self._commands),
                "complete_while_typing": False,
                "input_processors": [TabsProcessor(char1=" ", char2=" ")],
                "multiline": not self._hidden,
                "enable_suspend": True,
                "prompt_continuation": "  ",
            }
        return await typed_line(prompt, hidden=self._hidden, default=default, **self._options)


def history_file() -> Path:
    """Return the path of the history file, in the user's state directory."""
    folder = os.environ.get("XDG_STATE_HOME") or os.environ.get("LOCALAPPDATA")
    return Path(folder or Path.home() / ".local/state", "bae", "chat_history")


def prepare_history(file: Path) -> None:
    """Create the history file, which only the user can read. If the file exists and is too long,
    drop its older half. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    os.close(private(file, os.O_CREAT | os.O_WRONLY))
    if file.stat().st_size > _LONGEST:
        data = file.read_bytes()
        # An entry begins with a line such as `# 2026-11-18 09:30:00`.
        begin = data.find(b"\n# ", len(data) // 2)
        write_private(file, data[begin:] if begin > 0 else b"")


def may_keep(text: str) -> bool:
    """Return whether the history may store a message. A message that begins with a space, or
    contains a secret from an environment variable, is not stored."""
    if text.startswith(" "):
        return False
    secrets = (value for name, value in os.environ.items() if _SECRET_NAME.search(name))
    return not any(len(secret) >= _SHORTEST_SECRET and secret in text for secret in secrets)


def _open_history(file: Path | None) -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if file is None:
        return InMemoryHistory()

    class PrivateHistory(FileHistory):
        """A history file without the messages that `may_keep` refuses."""

        def store_string(self, string: str) -> None:
            if may_keep(string):
                super().store_string(string)

    return PrivateHistory(file)


def _make_key_bindings() -> KeyBindings:
    """Bind keys: Enter sends the message. Alt-Enter, or a backslash before Enter, begins a new
    line."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\" and buffer.multiline():
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    add: Callable[..., Any] = keys.add
    add("enter")(send)
    add("escape", "enter")(new_line)
    return keys


def _make_completer(commands: Sequence[str]) -> Completer:
    from prompt_toolkit.completion import Completer, Completion

    class CommandNames(Completer):
        """Completes a line that begins with a slash to a command."""

        def get_completions(self, document: Any, complete_event: Any) -> Any:
            text: str = document.text
            if text.startswith("/") and text.isprintable() and " " not in text:
                matches = (command for command in commands if command.startswith(text))
                yield from (Completion(match_, start_position=-len(text)) for match_ in matches)

    return CommandNames()


def read_stdin_line() -> Any:
    """Wait for the next line of stdin. Return the line without its newline, or None at the end."""
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None
