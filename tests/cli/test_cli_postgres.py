"""The address of a database wherever a command takes a journal, `bae db upgrade`, and passwords,
which are printed and stored nowhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("asyncpg")

from bae.cli import exits
from bae.journal import PostgresJournal
from postgres_server import PostgresServer

pytestmark = pytest.mark.once

APP = """
from __future__ import annotations

from typing import Annotated

from bae import Gate, Graph, Node


class Ask(Node):
    text: str = "x"
    agreed: Annotated[bool, Gate("Well?")]

    async def __call__(self) -> None: ...


graph = Graph(start=Ask)
"""
PASSWORD = "s3cr%65t-word"
"""Postgres takes any password here; `%65` is an `e`."""
PARTS = ("s3cr", "cret-word")


@pytest.fixture(autouse=True)
def _no_lm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAE_LM", "none")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """The address of a new database, with a password."""
    return postgres.new_database().replace("bae@", f"bae:{PASSWORD}@")


def without_password(url: str) -> str:
    return url.replace(f":{PASSWORD}", "")


def without_secret(done: Any, folder: Path) -> Any:
    """The same result; neither it nor a file has a part of the password."""
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "pyproject.toml":
            assert not any(part.encode() in file.read_bytes() for part in PARTS), file
    assert not any(part in done.out + done.err for part in PARTS), done
    return done


def configure(line: str) -> None:
    Path("pyproject.toml").write_text(f'[tool.bae]\ngraph = "app.py"\n{line}\n')


# --- tables --------------------------------------------------------------------------------------


def test_db_upgrade_creates_the_tables_that_other_commands_need(bae: Any, url: str, folder: Path):
    missing = without_secret(bae("runs", "list", "-j", url), folder)
    assert missing.code == exits.FAILED
    assert "bae-journal-schema" in missing.err
    assert f"bae db upgrade -j {without_password(url)}" in " ".join(missing.err.split())
    first = without_secret(bae("db", "upgrade", "-j", url, "--json"), folder)
    assert first.data == {
        "journal": without_password(url),
        "before": 0,
        "version": first.data["version"],
    }
    again = bae("db", "upgrade", "-j", url)
    assert again.code == 0
    assert "already" in again.err
    assert bae("runs", "list", "-j", url, "--json").data == []


@pytest.mark.parametrize(("version", "fix"), [(0, "bae db upgrade"), (999, "update bae")])
def test_tables_that_are_too_old_or_too_new_are_refused_with_a_fix(
    bae: Any, url: str, version: int, fix: str
):
    bae("db", "upgrade", "-j", url)

    async def change() -> None:
        import asyncpg

        connection = await asyncpg.connect(url)
        await connection.execute(f"update bae.versions set version = {version}")
        await connection.close()

    asyncio.run(change())
    refused = bae("runs", "list", "-j", url)
    assert (refused.code, "bae-journal-schema" in refused.err) == (exits.FAILED, True)
    assert fix in refused.err
    if version:
        newer = bae("db", "upgrade", "-j", url)
        assert (newer.code, fix in newer.err) == (exits.FAILED, True)


def test_db_upgrade_of_a_file_is_refused_and_creates_nothing(bae: Any, folder: Path):
    refused = bae("db", "upgrade", "-j", "runs.db")
    assert refused.code == exits.FAILED
    assert "postgresql://" in refused.err
    assert [path.name for path in folder.iterdir()] == ["app.py"]


# --- addresses -----------------------------------------------------------------------------------


def test_a_run_in_a_database_is_started_answered_exported_and_loaded_by_its_address(
    bae: Any, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    bae("db", "upgrade", "-j", url)
    parked = without_secret(bae("run", "app.py", "--no-ask", "--run-id", "r1", "-j", url), folder)
    assert parked.code == exits.WAITING
    words = parked.command("runs answer")
    assert words[-1] == without_password(url)
    assert "agreed: yes" in without_secret(bae(*words), folder).out
    monkeypatch.setenv("BAE_JOURNAL", url)
    assert [run["run_id"] for run in bae("runs", "list", "--json").data] == ["r1"]
    assert bae("runs", "export", "all.jsonl").code == 0
    assert bae("runs", "load", "all.jsonl", "-j", "copy.db").code == 0
    copied = bae("runs", "show", "r1", "-j", "copy.db").out
    assert "agreed  true" in copied
    assert copied == bae("runs", "show", "r1").out
    assert bae("runs", "prune", "--older-than", "0s", "--yes").code == 0
    assert without_secret(bae("runs", "list", "--json"), folder).data == []
    assert not (folder / ".bae").exists()


def test_pyproject_may_name_a_database_without_a_password(bae: Any, url: str, folder: Path):
    configure(f'journal = "{without_password(url)}"')
    assert bae("db", "upgrade").code == 0
    parked = bae("run", "--no-ask", "--run-id", "r1")
    assert "-j" not in parked.command("runs answer")  # the command works as it is printed
    assert [run["run_id"] for run in bae("runs", "list", "--json").data] == ["r1"]
    configure(f'journal = "{url}"')
    refused = without_secret(bae("runs", "list"), folder)
    assert refused.code == exits.FAILED
    assert "bae-journal-configured" in refused.err
    assert "PGPASSWORD" in refused.err
    assert "passfile" in refused.err


def test_the_journal_named_in_pyproject_is_found_from_subdirectories(
    bae: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    configure('journal = "kept/runs.db"')
    for name in ("kept", "deep"):
        (folder / name).mkdir()
    monkeypatch.chdir("deep")
    assert bae("run", "--no-ask", "--run-id", "r1").code == exits.WAITING
    assert (folder / "kept" / "runs.db").is_file()
    assert [run["run_id"] for run in bae("runs", "list", "--json").data] == ["r1"]


@pytest.mark.parametrize("line", ["journal = 3", 'journal = ""', "journal = []"])
def test_a_project_with_an_invalid_journal_is_refused(bae: Any, line: str):
    configure(line)
    assert "bae-journal-configured" in bae("runs", "list").err


@pytest.mark.parametrize(
    "tail",
    ["@h:1:2/d", "#x@h/d", "/x@h/d", "@@h/d", "?x@h/d", "@h:port/d", " @h/d", "@h/d?PassWord=1"],
)
def test_an_invalid_database_address_is_not_shown(bae: Any, folder: Path, tail: str):
    refused = without_secret(bae("runs", "list", "-j", f"postgresql://u:{PASSWORD}{tail}"), folder)
    assert refused.code == exits.FAILED
    assert "postgresql://USER@HOST/DATABASE" in refused.err


@pytest.mark.parametrize(
    "words", [("runs", "list"), ("--debug", "runs", "list"), ("run", "--no-ask")]
)
def test_an_unreachable_database_is_reported_without_the_password(
    bae: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
):
    monkeypatch.setattr("bae.cli.journals.PATIENCE", 0.0)
    monkeypatch.setattr("bae.cli.journals.READING", 0.0)
    configure("")
    monkeypatch.setenv("BAE_JOURNAL", f"postgresql://u:{PASSWORD}@127.0.0.1:1/d")
    away = without_secret(bae(*words), folder)
    assert away.code == exits.FAILED
    assert "bae-journal-away" in away.err


# --- passwords -----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_check_against_a_database_does_not_print_its_password(
    bae: Any, url: str, folder: Path, more: tuple[str, ...]
):
    assert bae("db", "upgrade", "-j", url).code == 0
    done = without_secret(bae("check", "app.py", "--against", url, *more), folder)
    assert done.code == 0
    assert more or without_password(url) in done.out + done.err


async def test_a_database_password_is_in_no_repr_and_no_error(url: str):
    import traceback

    journal = PostgresJournal(url)
    with pytest.raises(Exception, match="bae db upgrade") as error:
        await journal.runs()
    texts = [repr(journal), str(vars(journal)["url"]), journal.name, repr(error.value)]
    texts += [*traceback.format_exception(error.value), repr(journal.__reduce_ex__)]
    cause: BaseException | None = error.value
    while cause is not None:
        texts += [str(cause), repr(cause.args)]
        cause = cause.__cause__ or cause.__context__
    assert not [text for text in texts for part in PARTS if part in text]
    await journal.close()
