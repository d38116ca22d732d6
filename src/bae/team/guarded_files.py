"""Guarded files run on the user's machine, pull packages, or instruct later workers. If an LLM
changes a guarded file, the change is merged only after a person has answered yes to exactly this
content."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any, Final, cast

from bae.team.git import BRANCHES, GitError, Repository, split_paths
from bae.team.models import bounded

INSTRUCTIONS: Final = (
    *("AGENTS.md", "AGENTS.*.md", "AGENT.md", "CLAUDE.md", "CLAUDE.local.md", "GEMINI.md"),
    *("CONTRIBUTING.md", "CRUSH.md", "QWEN.md", "WARP.md"),
    *(".claude/", ".cursor/", ".cursorrules", ".windsurf/", ".windsurfrules", ".clinerules*"),
    *(".aider*", ".mcp.json", "copilot-instructions.md", "opencode.json*"),
)
"""Instructions for later workers and other agents. A name that ends with `/` is a folder at any
depth."""
AUTOMATION: Final = (
    *(".github/", ".gitlab/", ".gitlab-ci.yml", ".circleci/", ".travis.yml", "Jenkinsfile"),
    *("azure-pipelines.yml", "bitbucket-pipelines.yml", ".drone.yml", ".woodpecker*"),
    *(".husky/", ".githooks/", "lefthook.*", ".lefthook.*", ".pre-commit-config.yaml"),
    *(".lintstagedrc*", "lint-staged.config.*", ".envrc", ".env", ".env.*", ".vscode/", ".idea/"),
    *(".devcontainer/", ".devcontainer.json", ".tool-versions", "mise.toml", ".mise.toml"),
    *("Dockerfile*", "*.Dockerfile", "docker-compose*", "compose.yml", "compose.yaml"),
    *("sitecustomize.py", "usercustomize.py", "*.pth", "Vagrantfile", "Procfile"),
)
"""Files that editors, shells, hooks and servers run without a command from the user."""
BUILD_SCRIPTS: Final = (
    *("setup.py", "setup.cfg", "hatch_build.py", "noxfile.py", "tox.ini", "Makefile", "makefile"),
    *("GNUmakefile", "*.mk", "justfile", ".justfile", "Taskfile.y*ml", "CMakeLists.txt"),
    *("meson.build", "binding.gyp", "build.rs", "gulpfile.*", "Gruntfile.*", "Rakefile"),
    *("build.gradle*", "settings.gradle*", "gradlew*", "pom.xml", "*.nix", "WORKSPACE*"),
    *("BUILD.bazel", "MODULE.bazel", "SConstruct", "wscript", "conanfile.*", "Package.swift"),
    *("mix.exs", "*.gemspec", "*.csproj", "Directory.Build.*", "Tiltfile"),
)
MANIFESTS: Final = (
    *("pyproject.toml", "requirements*.txt", "requirements*.in", "constraints*.txt", "Pipfile"),
    *("environment.y*ml", "package.json", ".npmrc", ".yarnrc*", ".pnpmfile.*", "go.mod", "go.work"),
    *("pnpm-workspace.yaml", "Cargo.toml", "Gemfile", "composer.json", "requirements/"),
    *("uv.lock", "poetry.lock", "pdm.lock", "pylock*.toml", "Pipfile.lock", "package-lock.json"),
    *("npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "bun.lockb", "go.sum"),
    *("go.work.sum", "Cargo.lock", "Gemfile.lock", "composer.lock", ".yarn/"),
    *("uv.toml", "hatch.toml", "pixi.toml", "bunfig.toml", "deno.json*", "deno.lock"),
)
"""Files that name the packages to install, including lock files."""
HARMLESS: Final = (
    *(".gitignore", ".gitkeep", ".keep", ".*ignore", ".prettierrc", ".prettierrc.json"),
    *(".coveragerc", ".nojekyll", ".changeset/", ".well-known/"),
)
"""Hidden files that no program runs and no agent follows."""
GUARDED: Final = (*INSTRUCTIONS, *AUTOMATION, *BUILD_SCRIPTS, *MANIFESTS)


@dataclass(frozen=True, slots=True)
class Guarded:
    """Work that is not merged before a person says yes."""

    files: tuple[str, ...]
    """The files that the question is about."""
    question: str
    """The question to the person, with the content that a yes accepts."""
    digest: str
    """Identifies the content that a yes accepts."""


async def find_guarded(
    repository: Repository,
    branch: str,
    team: str,
    allow: Sequence[str] = (),
    setup: Sequence[str] = (),
) -> Guarded | None:
    """Return the question that a person must answer before a task's branch is merged into the
    team's branch. Return None if the branch changes no guarded file. Files that match one of the
    patterns `allow` are not guarded. Files that the command `setup` names, and hooks and scripts
    that the user's git runs, are guarded too. A change of `package.json` or `pyproject.toml` is
    ignored if `read_essence` returns the same for the old and the new file."""
    tip = await repository.commit_id(BRANCHES + branch)
    base = await repository.merge_base(BRANCHES + team, tip)
    if base is None:
        raise GitError(f"{branch} and {team} have no commit in common")
    # For each changed file, git prints the old and the new mode and content id. The digest below
    # covers these, so a yes accepts exactly this content.
    raw = ("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--no-renames", base, tip)
    code, output, problem = await repository.run_git(*raw)
    if code:
        raise GitError(f"{branch} cannot be compared with {team}: {problem}")
    parts = split_paths(output)
    changes = dict(zip(parts[1::2], parts[::2], strict=True))
    files: list[str] = []
    for path in changes:
        if any(matches(path, glob) for glob in allow):
            continue
        if not is_guarded(path) and not _is_named(path, setup) and not repository.runs(path):
            continue
        if PurePosixPath(path).name.casefold() in _TABLES:
            contents = [(await repository.read_files(at, [path]))[0] for at in (base, tip)]
            essences = [read_essence(path, content) for content in contents if content is not None]
            if len(essences) == 2 and essences[0] == essences[1]:
                continue
        files.append(path)
    if not files:
        return None
    text = "\0".join(f"{path}\0{changes[path]}" for path in files)
    digest = sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    args = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", base, tip)
    diff = bounded(await repository.git(*args, "--", *files), _SHOWN)
    return Guarded(tuple(files), _QUESTION.format(", ".join(files[:20]), diff), digest)


def is_guarded(path: str) -> bool:
    """Whether a file runs on the user's machine, pulls packages, or instructs later workers. All
    hidden files are guarded, except for a few harmless names."""
    if any(matches(path, pattern) for pattern in GUARDED):
        return True
    is_hidden = any(part.startswith(".") for part in PurePosixPath(path).parts)
    return is_hidden and not any(matches(path, pattern) for pattern in HARMLESS)


def is_manifest(path: str) -> bool:
    """Whether a file names the packages to install, or how the project is installed."""
    return any(matches(path, pattern) for pattern in (*MANIFESTS, *BUILD_SCRIPTS))


def matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern. Case is ignored, as on some file systems. A pattern whose
    only `/` is at its end matches all files in a folder at any depth. A pattern without `/` matches
    a file name at any depth. Any other pattern must match the complete path, and its `*` also
    matches `/`."""
    path, pattern = path.casefold(), pattern.casefold()
    *folders, name = PurePosixPath(path).parts or ("",)
    if pattern.endswith("/") and "/" not in pattern[:-1]:
        return any(fnmatchcase(folder, pattern[:-1]) for folder in folders)
    if "/" not in pattern:
        return fnmatchcase(name, pattern)
    return fnmatchcase(path, pattern.removeprefix("/"))


def read_essence(path: str, content: bytes) -> bytes:
    """Return the part of a file that decides about packages and automatic scripts. For
    `package.json` and `pyproject.toml`, this part leaves out the version, the description and other
    harmless fields. For any other file, it is the complete file."""
    name = PurePosixPath(path).name.casefold()
    reader = _TABLES.get(name)
    if reader is None:
        return content
    parse, reduce = reader
    try:
        values = parse(content.decode())
        return json.dumps(reduce(values), sort_keys=True, default=str).encode()
    except (ValueError, RecursionError, AttributeError, TypeError):
        return content


async def read_manifests(repository: Repository, commit: str, setup: Sequence[str] = ()) -> str:
    """Return a digest of all files in a commit that setup depends on: manifests, build scripts, and
    files that the command `setup` names. The digest depends only on the paths of these files and on
    their `read_essence`."""
    files = await repository.list_files(commit)
    paths = sorted(path for path in files if is_manifest(path) or _is_named(path, setup))
    digest = sha256()
    for path, content in zip(paths, await repository.read_files(commit, paths), strict=True):
        digest.update(path.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(sha256(read_essence(path, content or b"")).digest())
    return digest.hexdigest()


def _is_named(path: str, command: Sequence[str]) -> bool:
    return any(path == word.removeprefix("./") for word in command)


def _remove_keys(table: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    left_out = set(names)
    return {key: value for key, value in table.items() if key not in left_out}


def _reduce_package(package: dict[str, Any]) -> dict[str, Any]:
    scripts = cast("dict[str, Any]", package.get("scripts") or {})
    automatic = {
        key: value
        for key, value in scripts.items()
        if key in _LIFECYCLE or key.startswith(("pre", "post"))
    }
    return _remove_keys(package, (*_ABOUT, "scripts")) | {"scripts": automatic}


def _reduce_pyproject(table: dict[str, Any]) -> dict[str, Any]:
    project = cast("dict[str, Any]", table.get("project") or {})
    tools = cast("dict[str, Any]", table.get("tool") or {})
    reduced = {"project": _remove_keys(project, _ABOUT), "tool": _remove_keys(tools, _CHECKERS)}
    return _remove_keys(table, ("project", "tool")) | reduced


_LIFECYCLE: Final = frozenset(
    ("install", "prepare", "dependencies", "publish", "pack", "uninstall", "restart", "version")
)
"""The scripts that npm runs by itself. npm also runs scripts whose names begin with `pre` or
`post`."""
_ABOUT: Final = (
    *("name", "version", "description", "keywords", "author", "authors", "contributors"),
    *("maintainers", "license", "license-files", "homepage", "bugs", "repository", "funding"),
    *("readme", "classifiers", "urls", "private", "main", "module", "types", "typings", "exports"),
    *("imports", "type", "sideEffects", "browser", "files", "bin", "engines", "scripts"),
    *("gui-scripts", "eslintConfig", "prettier", "browserslist"),
)
_CHECKERS: Final = (
    *("ruff", "black", "isort", "mypy", "pyright", "basedpyright", "pylint", "flake8", "coverage"),
    *("pytest", "bandit", "codespell", "towncrier", "ty"),
)
_Table = dict[str, Any]
_TABLES: Final[Mapping[str, tuple[Callable[[str], Any], Callable[[_Table], _Table]]]] = {
    "package.json": (json.loads, _reduce_package),
    "pyproject.toml": (tomllib.loads, _reduce_pyproject),
}
_SHOWN: Final = 8_000
_QUESTION: Final = (
    "May this be merged? It changes files that run on your machine, pull packages or instruct "
    "later workers: {}. The answer `yes` lets exactly this content in; any other answer is "
    "guidance for the next attempt.\n\n{}"
)
