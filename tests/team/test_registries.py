"""What setup has to reach package registries with: it alone, and nothing of it is shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from bae.team import sandbox
from bae.team.base_check import read_check
from bae.team.registries import find_access
from bae.team.sandbox import Protection
from git_repositories import write
from team_parts import SHELL, a_bench

TOKEN = "tok-0123456789"
NPMRC = f"registry=https://npm.example.org/\n//npm.example.org/:_authToken={TOKEN}\n"


def own_paths(paths: Iterable[str], folder: Path) -> set[str]:
    """The paths that are in a folder: the machine may have settings of its own."""
    return {path for path in paths if path.startswith(f"{folder}/")}


def test_only_variables_and_files_of_registries_are_passed(tmp_path: Path) -> None:
    write(tmp_path, {"ca.pem": "", "wheels/a.whl": "", "home/.npmrc": "cafile=/nowhere/ca.pem"})
    certificate, wheels = str(tmp_path / "ca.pem"), str(tmp_path / "wheels")
    passed = {
        **dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"), certificate),
        "PIP_FIND_LINKS": f"{wheels} https://wheels.example.org",
        "https_proxy": "http://proxy.example.org:3128",
        "NO_PROXY": "localhost",
        "UV_INDEX_OWN_PASSWORD": "hidden-word",
        "npm_config_registry": "https://npm.example.org",
    }
    unrelated = {
        "ANTHROPIC_API_KEY": "sk-1",
        "PIP_TARGET": "/x",
        "UV_CACHE_DIR": "/x",
        "HOME": "/x",
    }
    access = find_access({**passed, **unrelated}, tmp_path / "home")
    assert passed.items() <= access.variables.items()
    assert not unrelated.keys() & access.variables.keys()
    assert own_paths(access.readable, tmp_path) == {certificate, wheels}
    assert access.home == {".npmrc": str(tmp_path / "home/.npmrc")}


def test_files_and_variables_named_in_the_settings_are_passed_too(tmp_path: Path) -> None:
    certificate = tmp_path / "own" / "ca.pem"
    write(
        tmp_path,
        {
            "own/ca.pem": "",
            "home/.npmrc": "//npm.example.org/:_authToken=${OWN_TOKEN}\n",
            "config/pip/pip.conf": f"cert = {certificate}\nfind-links = {tmp_path}/home\n",
        },
    )
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "OWN_TOKEN": TOKEN, "OTHER": "1"}
    access = find_access(environment, tmp_path / "home")
    assert access.variables["OWN_TOKEN"] == TOKEN
    assert "OTHER" not in access.variables
    assert set(access.home) == {".npmrc", ".config/pip/pip.conf"}
    # The home directory itself is never shown.
    assert own_paths(access.readable, tmp_path) == {str(certificate)}


def test_a_package_index_on_disk_is_readable_with_its_linked_files(tmp_path: Path) -> None:
    write(tmp_path, {"index/simple/a/index.html": "", "index/files/a.whl": "", "home/x": ""})
    environment = {"PIP_INDEX_URL": f"file://{tmp_path}/index/simple"}
    access = find_access(environment, tmp_path / "home")
    assert own_paths(access.readable, tmp_path) == {f"{tmp_path}/index"}


@pytest.mark.parametrize(
    ("environment", "settings", "printed"),
    [
        ({"PIP_INDEX_URL": "https://ana:hidden-word@example.org/x"}, "", "hidden-word"),
        ({"PIP_INDEX_URL": "https://ana:a%40bcdefg@example.org/x"}, "", "a@bcdefg"),
        ({"PIP_INDEX_URL": "https://ana:pw@example.org/x"}, "", "https://ana:pw@example.org"),
        ({"NPM_TOKEN": TOKEN}, "", TOKEN),
        ({}, NPMRC, TOKEN),
        ({}, "_password = hidden-word\n", "hidden-word"),
    ],
)
def test_output_of_setup_is_shown_without_passwords_and_tokens(
    environment: dict[str, str], settings: str, printed: str, tmp_path: Path
) -> None:
    write(tmp_path, {".npmrc": settings})
    access = find_access(environment, tmp_path)
    assert printed not in access.mask(f"could not fetch: {printed} was refused")
    assert printed not in repr(access)
    assert access.mask("could not fetch") == "could not fetch"


SHOW = """mkdir -p made
{ echo "$PIP_INDEX_URL"; echo "$SSL_CERT_FILE"; cat "$SSL_CERT_FILE" ~/.npmrc; } > made/seen
cat made/seen; exit $1"""
URL = "https://ana:hidden-word@example.org/simple"


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person with an own certificate, and logins for registries."""
    write(tmp_path, {"own/ca.pem": "own certificate\n", "home/.npmrc": NPMRC})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own/ca.pem"))
    monkeypatch.setenv("PIP_INDEX_URL", URL)
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
async def test_setup_with_the_network_has_registry_settings_and_tests_do_not(person: Path) -> None:
    setup = ("sh", "-c", SHOW, "sh", "0")
    test = '[ -z "$PIP_INDEX_URL$SSL_CERT_FILE" ] && [ ! -e ~/.npmrc ]\n'
    files = {**SHELL, "env.test.sh": test, ".gitignore": "made/\n"}
    async with a_bench(person, files=files, setup=setup) as (bench, _):
        assert (await bench.check_base("HEAD")).text == "2 tests"
        async with bench.workspaces.scratch("HEAD") as scratch:
            seen = (scratch.path / "made" / "seen").read_text()
            assert seen == f"{URL}\n{person}/own/ca.pem\nown certificate\n{NPMRC}"
        # For manifests that a model may have written, setup has neither network nor logins.
        workspace = await bench.workspaces.start("bae/task-1-x")
        (workspace.path / "package.json").write_text('{"dependencies": {"a": "1"}}')
        await workspace.commit(["package.json"], "changed")
        await bench.workspaces.refresh(workspace)
        assert URL not in (workspace.path / "made" / "seen").read_text()
        await bench.workspaces.remove(workspace)


@pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
async def test_a_failed_setup_shows_and_stores_no_login(person: Path) -> None:
    async with a_bench(person, files=SHELL, setup=("sh", "-c", SHOW, "sh", "1")) as (bench, _):
        checked = await bench.check_base("HEAD")
        folder = bench.store.path.parent
    assert "own certificate" in checked.output
    assert read_check(folder) == checked
    for path in folder.rglob("*"):
        if path.is_file() and "setup" not in path.relative_to(folder).parts:
            content = path.read_bytes()
            assert b"hidden-word" not in content, path
            assert TOKEN.encode() not in content, path


@pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")
@pytest.mark.parametrize("kind", [Protection.BUBBLEWRAP, Protection.LANDLOCK, Protection.LIMITS])
async def test_a_command_sees_the_home_files_that_the_caller_passes(
    kind: Protection, tmp_path: Path
) -> None:
    write(tmp_path, {"work/x": "", "pip.conf": "[global]\n"})
    os.chmod(tmp_path / "pip.conf", 0o600)
    home = {".config/pip/pip.conf": tmp_path / "pip.conf"}
    command = ("sh", "-c", "cat ~/.config/pip/pip.conf")
    try:
        ran = await sandbox.run(command, tmp_path / "work", timeout=60, kind=kind, home=home)
    except sandbox.SandboxError as error:
        pytest.skip(error.message)
    assert (ran.exit_code, ran.output) == (0, "[global]\n")
