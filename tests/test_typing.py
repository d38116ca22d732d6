"""What type checkers know of bae: the files in `typing_cases` as pyright, mypy and ty see them."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bae

pytestmark = pytest.mark.tools

CASES = Path(__file__).parent / "typing_cases"
ROOT = Path(__file__).parents[1]
SOURCE = Path(bae.__file__).parents[1]
CHECKERS = ("pyright", "mypy", "ty")

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\b[^\n]*\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


BLOCKS = {
    "readme.py": blocks("README.md", "python")[0],
    **{
        f"typing_{number}.py": text
        for number, text in enumerate(blocks("docs/typing.md", "python"))
    },
}

# bae as it is without its extras, whose thousands of modules mypy would read for nothing.
WITHOUT_EXTRAS = """
[[tool.mypy.overrides]]
module = [
    "anthropic.*", "dspy.*", "genai_prices.*", "litellm.*", "openai.*", "opentelemetry.*",
    "pydantic_ai.*",
]
follow_imports = "skip"
"""

Reported = dict[str, dict[int, str]]
"""What a checker says, by file and line."""


def check(checker: str, folder: Path) -> Reported:
    """Run a checker of this environment over a folder, with bae where it is now."""
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    match checker:
        case "pyright":
            settings = {"typeCheckingMode": "strict", "extraPaths": [str(SOURCE)]}
            (folder / "pyrightconfig.json").write_text(json.dumps(settings))
            arguments = ["--pythonpath", sys.executable]
        case "mypy":
            environment["MYPYPATH"] = str(SOURCE)
            with (folder / "pyproject.toml").open("a", encoding="utf-8") as settings_file:
                settings_file.write(WITHOUT_EXTRAS)
            arguments = ["--python-executable", sys.executable, "--follow-imports", "silent"]
            arguments += ["--cache-dir", str(folder / ".mypy_cache"), "."]
        case _:
            arguments = ["check", "--output-format", "concise", "--python", sys.prefix]
            arguments += ["--extra-search-path", str(SOURCE)]
    done = subprocess.run(
        [tools / checker, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    # 1 says that there are errors; more, that it could not check.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    reported = dict(_read(done.stdout, folder))
    assert bool(reported) == bool(done.returncode), done.stdout + done.stderr
    return reported


def _read(output: str, folder: Path) -> Iterator[tuple[str, dict[int, str]]]:
    reported: Reported = {}
    pattern = re.compile(r"^\s*(\S+?\.py):(\d+)(?::\d+)?(?: -|:) (?:error|warning)(.*)$", re.M)
    for path, line, message in pattern.findall(output):
        name = Path(folder, path).name
        reported.setdefault(name, {}).setdefault(int(line), message.strip(" :"))
    yield from reported.items()


@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_infer_the_promised_types_and_report_only_wrong_uses(checker, tmp_path):
    """Of the cases, of the examples and of the code on pages: besides that, only the empty bodies
    that the settings in the docs are for, which are left out here."""
    cases = [*CASES.glob("*.py")]
    assert {path.name for path in cases} == {"inferred.py", "drafts.py", "refused.py"}
    assert EXAMPLES
    for path in [*cases, *EXAMPLES]:
        shutil.copy(path, tmp_path)
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    told = "\n".join(blocks("docs/typing.md", "toml"))
    settings = (CASES / "pyproject.toml").read_text()
    for line in ('disable_error_code = ["empty-body"]', 'empty-body = "ignore"'):
        assert line in told
        settings = settings.replace(line, "")
    (tmp_path / "pyproject.toml").write_text(settings)
    lines = (CASES / "refused.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}

    reported = check(checker, tmp_path)

    others = {
        (name, line): message
        for name, messages in reported.items()
        for line, message in messages.items()
        if name != "refused.py" or line not in marked
    }
    assert {where: text for where, text in others.items() if "empty-body" not in text} == {}
    assert bool(others) == (checker != "pyright")
    assert reported["refused.py"].keys() >= marked


def test_code_that_type_checkers_accept_runs():
    async def answer(gate: Any) -> bool:
        return True

    case = runpy.run_path(str(CASES / "drafts.py"))
    quote = case["graph"].run(case["Ask"](item="lamp"), answer=answer).result
    assert quote.model_dump() == {
        "item": "lamp",
        "words": ["a"],
        "price": 12,
        "lengths": [1],
        "asked": {"item": "lamp"},
        "fine": True,
    }
    assert case["Quote"](item="a", words=[], price=3).price == 3
