"""Whether the report of a run of pytest can be believed. Code under test shares the process of
pytest: it could write a report of its own and exit. A plugin in that process signs the report with
a key that is gone before that code is loaded, and tells what was replaced. It is a guard against
shortcuts that an LLM takes, not against code that searches the process's memory for the key."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

GUARDS: Final = Path(__file__).with_name("guards")
"""What is loaded into the processes of test programs."""


class Witness:
    """The plugin of one run: `command` loads it, in `environment`."""

    def __init__(self, command: Sequence[str], report: Path) -> None:
        path = "PYTHONPATH="
        given = any(word.startswith(path) for word in command)
        self.command = [
            f"{path}{GUARDS}{os.pathsep}{word.removeprefix(path)}"
            if word.startswith(path)
            else word
            for word in (*command, "-p", "bae_witness")
        ]
        self.environment = {} if given else {"PYTHONPATH": str(GUARDS)}
        self._report = report
        self._key = secrets.token_bytes(32)
        report.with_name("key").write_bytes(self._key)

    @classmethod
    def of(cls, command: Sequence[str], report: Path) -> Self | None:
        """The witness of a pytest command; None where its Python takes no plugin from elsewhere."""
        before = command[: command.index("-m")] if "-m" in command else ()
        return None if any(map(_ISOLATED.fullmatch, before)) else cls(command, report)

    def objection(self, content: bytes, exit_code: int | None, read: _Read) -> str:
        """Why a report is not believed; empty where it is."""
        signed, missing = read(self._report.with_name(f"{self._report.name}.signed"))
        signature, _, text = signed.partition(b"\n")
        if missing or not hmac.compare_digest(
            signature, hmac.new(self._key, text, "sha256").hexdigest().encode()
        ):
            return "its report is not pytest's own: something else wrote it, or ended pytest before"
        told: dict[str, Any] = json.loads(text)
        if told["report"] != hashlib.sha256(content).hexdigest():
            return "its report was changed after pytest wrote it"
        if told["replaced"]:
            names = ", ".join(told["replaced"])
            return f"parts of the test program were replaced by code of the project: {names}"
        if exit_code == 0 and told["exit_code"]:
            return f"it exited with 0 although pytest ended with {told['exit_code']}"
        if exit_code == 0 and (told["failed"] or told["not_run"]):
            return f"{told['failed']} tests failed and {told['not_run']} were not run"
        return ""


_Read = Callable[[Path], tuple[bytes, str]]
_ISOLATED: Final = re.compile(r"-[A-Za-z]*[EI][A-Za-z]*")
