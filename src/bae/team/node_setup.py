"""The setup command and the test command of a JavaScript or TypeScript project, read from
package.json and lock files."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bae.given_files import read_text
from bae.team.manifests import as_table, read_json
from bae.team.sandbox import find_program
from bae.team.test_runs import find_test_program


@dataclass(frozen=True, slots=True)
class Package:
    """The settings in package.json that setup and tests need."""

    needed: frozenset[str]
    """The names of the required packages, including packages for development."""
    scripts: dict[str, str]
    manager: str
    """The package manager with its version, such as `pnpm@9.1.0`."""


def read_package(root: Path) -> Package:
    """Read the package.json of a folder. If the file cannot be read, return an empty package."""
    table = read_json(root / "package.json")
    needed = {*as_table(table.get("dependencies")), *as_table(table.get("devDependencies"))}
    scripts = {
        name: text.strip()
        for name, text in as_table(table.get("scripts")).items()
        if isinstance(text, str) and "no test specified" not in text  # npm's placeholder
    }
    manager = table.get("packageManager")
    return Package(frozenset(needed), scripts, manager if isinstance(manager, str) else "")


def find_setup(place: Path, top: Path, is_committed: Callable[[Path], bool]) -> tuple[str, ...]:
    """Return the command that installs the packages of the folder `place`. Return an empty command
    if there is nothing to install.

    The lock file decides which package manager is used. Lock files are read in `place` and in the
    folders above it up to `top`, because `place` may belong to a workspace. A lock file that is not
    committed is ignored, because worktrees do not have it.
    """
    package = read_package(place)
    for folder in (place, *place.parents):
        for name, install in LOCKS.items():
            if is_committed(folder / name):
                return install(folder / name, read_package(folder).manager)
        if folder == top:
            break
    if package.manager.startswith("pnpm"):
        return (*_find_manager("pnpm", package.manager), "install")
    return ("npm", "install") if package.needed else ()


def _use_pnpm(lock: Path, manager: str) -> tuple[str, ...]:
    version = re.search(r"^lockfileVersion: '?(\d+)", _read_start(lock), re.MULTILINE)
    package = manager or {"9": "pnpm@9", "6": "pnpm@8", "5": "pnpm@7"}.get(
        version[1] if version else "", "pnpm"
    )
    return (*_find_manager("pnpm", package), "install", "--frozen-lockfile")


def _use_yarn(lock: Path, manager: str) -> tuple[str, ...]:
    if "yarn lockfile v1" in _read_start(lock):
        return (*_find_manager("yarn", "yarn@1"), "install", "--frozen-lockfile")
    releases = sorted(lock.parent.glob(".yarn/releases/yarn-*.cjs"))
    release = ("node", str(releases[-1].relative_to(lock.parent))) if releases else ()
    command = release or _find_manager("yarn", manager.replace("yarn@", "@yarnpkg/cli-dist@"))
    return (*command, "install", "--immutable")


def _use_npm(lock: Path, manager: str) -> tuple[str, ...]:
    return ("npm", "ci")


def _use_bun(lock: Path, manager: str) -> tuple[str, ...]:
    return (*_find_manager("bun", manager), "install", "--frozen-lockfile")


LOCKS: Final[dict[str, Callable[[Path, str], tuple[str, ...]]]] = {
    "package-lock.json": _use_npm,
    "npm-shrinkwrap.json": _use_npm,
    "pnpm-lock.yaml": _use_pnpm,
    "yarn.lock": _use_yarn,
    "bun.lock": _use_bun,
    "bun.lockb": _use_bun,
}


def _find_manager(name: str, package: str) -> tuple[str, ...]:
    """Return the command of a package manager. If it is not installed, npx downloads it."""
    if find_program(name, Path("/")):
        return (name,)
    return ("npx", "--yes", package.partition("+")[0] or name)


def find_test_command(place: Path, *, is_inside: bool = False) -> tuple[str, ...]:
    """Return the test command, without coverage and watch options. Return an empty command if bae
    does not support the test program.

    With `is_inside`, the packages are installed in a folder above `place`.
    """
    package = read_package(place)
    for words in _list_commands(package.scripts, "test"):
        if command := _extract_test_command(words):
            return _complete_command(command, is_inside)
    if not package.scripts.get("test"):
        for name in ("vitest", "jest"):
            if name in package.needed:
                return _complete_command([name], is_inside)
    return ()


def find_other(place: Path) -> str:
    """Return the name of a test program that bae does not support. If the program in the test
    script is unknown, return the script. Otherwise, return an empty text."""
    package = read_package(place)
    commands = [*_list_commands(package.scripts, "test")]
    if any(map(_extract_test_command, commands)):
        return ""
    for word in (_find_name(word) for words in commands for word in words):
        if word in OTHER_PROGRAMS:
            return word
    if script := package.scripts.get("test"):
        return f"`{script}`"
    other_programs = sorted(package.needed & {*OTHER_PROGRAMS})
    return other_programs[0] if other_programs and not package.needed & {"vitest", "jest"} else ""


def describe_reporter(program: str) -> str:
    """Return an example of how a test program writes a JUnit file, as the end of a sentence. Return
    an empty text if there is no example for the program."""
    if program != "mocha":
        return ""
    return (
        ", as --test 'npx mocha --reporter xunit --reporter-option output=report.xml' "
        "--report junit:report.xml"
    )


def _list_commands(
    scripts: dict[str, str], name: str, visited: frozenset[str] = frozenset()
) -> list[list[str]]:
    """List the commands that a script runs, in order, including the commands of nested scripts."""
    commands: list[list[str]] = []
    if name in visited or len(visited) > _DEEPEST:
        return commands
    for part in re.split(r"&&|;", scripts.get(name, "")):
        words = _split_words(part)
        inner = _find_scripts(words, scripts)
        commands += [words] if words and not inner else []
        for script in inner:
            commands += _list_commands(scripts, script, visited | {name})
    return commands


def _find_scripts(words: Sequence[str], scripts: dict[str, str]) -> list[str]:
    """Return the scripts that a command such as `npm run a`, `yarn a` or `run-s a b` runs."""
    names = [word for word in words[1:] if not word.startswith("-")]
    if words[:1] in (["run-s"], ["run-p"], ["npm-run-all"]):
        return [name for name in names if name in scripts]
    if words[:1] not in (["npm"], ["yarn"], ["pnpm"], ["bun"]):
        return []
    names = names[1:] if names[:1] in (["run"], ["run-script"]) else names
    names = ["test" if name in ("t", "tst") else name for name in names[:1]]
    return [name for name in names if name in scripts]


def _extract_test_command(words: Sequence[str]) -> list[str]:
    """Return the command of a supported test program, without a wrapper program such as `c8`."""
    at, variables = 0, list[str]()
    while at < len(words) and (words[at] in ("cross-env", "env") or _VARIABLE.match(words[at])):
        variables += [words[at]] if "=" in words[at] else []
        at += 1
    for start in range(at, len(words)):
        name, rest = _find_name(words[start]), list(words[start:])
        if name == "tsx" and "--test" in rest:
            rest = ["node", "--import", "tsx", *rest[1:]]
        program = find_test_program(rest)
        if program is None or name not in ("node", "tsx", "npx", "vitest", "jest"):
            continue
        return [*(["env", *variables] if variables else []), *rest]
    return []


def _complete_command(command: list[str], is_inside: bool) -> tuple[str, ...]:
    """Return the command without watch and coverage options. For Vitest and Jest, the command names
    the program that setup installs."""
    at = next(index for index, word in enumerate(command) if word != "env" and "=" not in word)
    before, words = command[:at], command[at:]
    if words[0] == "npx":
        words = words[1:]
    name = _find_name(words[0])
    if name in ("vitest", "jest"):
        dropped = ("run", "watch", "dev", "--watch", "--watchAll", "--run", "--ui")
        rest = [
            word for word in words[1:] if word not in dropped and not word.startswith("--coverage")
        ]
        program = ["npx", name] if is_inside else [f"node_modules/.bin/{name}"]
        words = [*program, *(["run"] if name == "vitest" else []), *rest]
    return (*before, *words)


def _split_words(text: str) -> list[str]:
    """Split a command into words. Return no words for a command that needs a shell."""
    if any(character in text for character in "&|<>$`"):
        return []
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _find_name(word: str) -> str:
    return os.path.basename(word).split(".")[0]


def _read_start(path: Path) -> str:
    try:
        return read_text(path)[:2000]
    except (OSError, ValueError):
        return ""


OTHER_PROGRAMS: Final = (
    *("mocha", "ava", "tape", "tap", "jasmine", "uvu", "karma", "cypress", "playwright"),
    *("qunit", "lab", "zora", "taiko"),
)
_VARIABLE: Final = re.compile(r"\w+=")
_DEEPEST: Final = 5
