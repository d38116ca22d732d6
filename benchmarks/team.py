"""The speed and the cost of a team, in one run: five workers against one, the event loop while they
run tests, idle agents, and events to many WebSocket clients:

    python -m benchmarks.team

Everything is real but the LLM, which answers after a fixed time. It exits with 1 when a target is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any, Final
from urllib.parse import urlsplit

from bae.lm import Answer, Backend, Prompt
from bae.team.events import ActivityUpdate, TaskStatusChanged
from bae.team.git import Repository
from bae.team.lead import LeadAgent
from bae.team.models import PlannedTask, Project, TaskStatus
from bae.team.pool import AgentPoolManager
from bae.team.store import Store
from bae.team.team_server import serving
from bae.team.workbench import Workbench
from bae.team.worker import WorkerAgent
from benchmarks.report import Result, Verdict, figure, publish
from benchmarks.sampling import say

BEGIN = "<!-- team figures: begin, written by python -m benchmarks.team --write -->"
END = "<!-- team figures: end -->"
AGENTS = 50
RATE = 1_000
CLIENTS, STALLED = 50, 2
LAG_MS = 50.0


class Lag:
    """How late the event loop is: a task that wants to run every 5 ms."""

    def __init__(self) -> None:
        self.samples: list[float] = []

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        async def sample() -> None:
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.005)
                self.samples.append((time.perf_counter() - before - 0.005) * 1000)

        task = asyncio.create_task(sample())
        try:
            yield
        finally:
            task.cancel()

    def row(self, name: str) -> list[str]:
        return [name, *map(figure, percentiles(self.samples))]


def percentiles(samples: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the median, two high percentiles, and the maximum."""
    cut = quantiles(samples, n=100)
    return cut[49], cut[94], cut[98], max(samples)


async def be_idle() -> None:
    """Measure the event loop of an idle process, which shows the delay that this machine adds."""
    lag = Lag()
    async with lag.measured():
        await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(lag.samples))


# Workers


class SlowScript(Backend):
    """An LLM that writes the module of a task, and its test, after a time."""

    model = "script"
    free = True

    def __init__(self, seconds: Mapping[str, float]) -> None:
        super().__init__(attempts=0, retries=0)
        self.seconds = seconds

    async def answer(self, prompt: Prompt) -> Answer:
        key = re.findall(r'\{"WorkRequest":\{.*?"task":"([a-z0-9-]+)"', prompt.flat())[-1]
        await asyncio.sleep(self.seconds[key])
        name = key.replace("-", "_")
        files = {
            f"{name}.py": f"def value():\n    return {len(key)}",
            f"tests/test_{name}.py": f"from {name} import value\n\n\ndef test_{name}():\n"
            f"    assert value() == {len(key)}",
        }
        edits = (f"<<<<<<< FILE {path}\n{text}\n>>>>>>> FILE\n" for path, text in files.items())
        return Answer("\n".join(edits))


def diamonds(unit: float) -> tuple[list[PlannedTask], dict[str, float]]:
    """Two diamonds in a row, twelve tasks, and how long the LLM takes for each: no two alike."""
    needs: dict[str, tuple[str, ...]] = {"start": ()}
    needs |= {f"first-{n}": ("start",) for n in range(5)}
    needs["middle"] = tuple(f"first-{n}" for n in range(5))
    needs |= {f"second-{n}": ("middle",) for n in range(4)}
    needs["end"] = tuple(f"second-{n}" for n in range(4))
    tasks = [
        PlannedTask(key=key, title=f"Write {key}", depends_on=needed, files=(f"{key}.py",))
        for key, needed in needs.items()
    ]
    return tasks, {key: unit * (1 + at % 5 * 0.2) for at, key in enumerate(needs)}


@asynccontextmanager
async def a_bench(folder: Path, tasks: Sequence[PlannedTask]) -> AsyncIterator[Workbench]:
    """Yield the bench of a new repository with tests and its state."""
    root = folder / "project"
    (root / "tests").mkdir(parents=True)
    (root / "conftest.py").write_text("")
    (root / "tests" / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
    git = ("git", "-c", "user.name=bench", "-c", "user.email=bench@localhost", "-C", str(root))
    for words in (("init", "-q", "-b", "main"), ("add", "."), ("commit", "-qm", "first")):
        await asyncio.to_thread(subprocess.run, (*git, *words), check=True)
    command = ("env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "python", "-m", "pytest", "-q")
    project = Project(id=0, name="b", root=str(root), branch="bae/team", test_command=command)
    async with await Store.open(folder / "state" / "team.db") as store:
        project = await store.save_project(project)
        await store.add_tasks(project.id, tasks)
        async with Workbench.open(project, store, review="off") as bench:
            yield bench


async def run_team(
    folder: Path, tasks: Sequence[PlannedTask], seconds: Mapping[str, float], workers: int
) -> tuple[float, dict[str, float], Lag]:
    """Return the seconds that a team takes, the seconds of each task, and the delay of the event
    loop."""
    lag = Lag()
    async with a_bench(folder, tasks) as bench:
        lead = LeadAgent(bench, SlowScript(seconds), max_agents=workers)
        began = time.perf_counter()
        async with lag.measured():
            summary = await lead.run()
        took = time.perf_counter() - began
        if not summary.done:
            raise ValueError(f"not all tasks were merged: {summary!r}")
        keys = {task.id: task.key for task in summary.tasks}
        started: dict[str, float] = {}
        lasted: dict[str, float] = {}
        for event in await bench.store.events(bench.project.id, most=100_000):
            if isinstance(event.event, TaskStatusChanged):
                key = keys[event.event.task_id]
                if event.event.status is TaskStatus.IN_PROGRESS:
                    started[key] = event.at
                elif event.event.status is TaskStatus.COMPLETED:
                    lasted[key] = event.at - started[key]
    return took, lasted, lag


def minimum_time(tasks: Sequence[PlannedTask], lasted: Mapping[str, float], workers: int) -> float:
    """Return the time that the graph allows. Each task begins when its prerequisites are done and a
    worker is free, and takes as long as it took alone."""
    ends: dict[str, float] = {}
    free = [0.0] * workers
    waiting = list(tasks)
    while waiting:

        def ready(task: PlannedTask) -> float:
            return max((ends.get(key, float("inf")) for key in task.depends_on), default=0.0)

        task = min(waiting, key=ready)
        waiting.remove(task)
        at = free.index(min(free))
        free[at] = ends[task.key] = max(free[at], ready(task)) + lasted[task.key]
    return max(ends.values())


async def measure_workers(folder: Path, *, unit: float) -> Result:
    """Measure five workers against one worker on the same tasks."""
    tasks, seconds = diamonds(unit)
    one, lasted, _ = await run_team(folder / "one", tasks, seconds, 1)
    five, _, lag = await run_team(folder / "five", tasks, seconds, 5)
    best = minimum_time(tasks, lasted, 5)
    alone = sum(lasted.values()) - sum(seconds.values())
    return Result(
        "workers",
        f"{len(tasks)} tasks in two diamonds, an LLM that takes {unit:g} to {unit * 1.8:g} s",
        ["", "seconds", "× one worker"],
        [
            ["one worker", figure(one), "1.00"],
            ["five workers", figure(five), figure(one / five)],
            ["what the graph allows", figure(best), figure(one / best)],
        ],
        [
            Verdict(
                "workers",
                "five workers are within 10 % of what the graph allows",
                f"{five / best - 1:+.1%}",
                five <= 1.1 * best,
            )
        ],
        [
            f"Besides the LLM, a task takes {alone / len(tasks):.2f} s: worktree, commits, tests of"
            " its branch, of its new tests on the base and of the merged tree.",
            f"Event loop lag with five workers: at most {max(lag.samples):.0f} ms.",
        ],
    )


async def measure_lag(folder: Path, *, count: int) -> Result:
    """Measure the event loop while five workers do nothing but run git and tests."""
    tasks = [PlannedTask(key=f"task-{n}", title=f"Write {n}") for n in range(count)]
    beside = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.team", "--idle"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    took, _, lag = await run_team(folder, tasks, {task.key: 0.0 for task in tasks}, 5)
    idle = Lag()
    idle.samples = json.loads((await beside.communicate(b"\n"))[0])
    high = percentiles(lag.samples)[2]
    return Result(
        "lag",
        f"Event loop lag while five workers run the tests of {count} tasks (ms)",
        ["", "median", "95 %", "99 %", "highest"],
        [lag.row("the team's process"), idle.row("an idle process beside it")],
        [
            Verdict(
                "lag",
                f"the loop is never {LAG_MS:g} ms late",
                f"99 % under {high:.1f} ms, highest {max(lag.samples):.1f} ms",
                max(lag.samples) < LAG_MS,
            )
        ],
        [f"The LLM answers at once. It took {took:.1f} s, {took / count:.2f} s a task."],
    )


async def measure_agents(folder: Path) -> Result:
    """Measure the memory of idle agents, and the time to make one."""
    async with (
        a_bench(folder, ()) as bench,
        AgentPoolManager(bench, SlowScript({}), most=AGENTS) as pool,
    ):
        first = await pool.take("backend", 1)
        await pool.give_back(first)
        gc.collect()
        before = resident()
        times: list[float] = []
        workers: list[WorkerAgent] = []
        for task_id in range(AGENTS):
            began = time.perf_counter()
            workers.append(await pool.take("backend", task_id))
            times.append((time.perf_counter() - began) * 1000)
        for worker in workers:
            await pool.give_back(worker)
        gc.collect()
        held = resident()
    middle, _, _, slowest = percentiles(times)
    return Result(
        "agents",
        f"{AGENTS} idle agents",
        ["", "measured"],
        [
            ["memory with them", f"{held / 1e6:.0f} MB"],
            ["memory that an agent adds", f"{(held - before) / AGENTS / 1024:.1f} KB"],
            ["making one, median", f"{middle:.1f} ms"],
            ["making one, slowest", f"{slowest:.1f} ms"],
        ],
        [Verdict("agents", "an agent is made in under 100 ms", f"{slowest:.1f} ms", slowest < 100)],
    )


def resident() -> int:
    """The bytes that this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# Events to clients


async def measure_events(folder: Path, *, seconds: float) -> Result:
    """Send 1,000 stored events a second to clients in another process."""
    total = int(RATE * seconds)
    lag = Lag()
    async with await Store.open(folder / "team.db") as store:
        repository = await Repository.create(folder / "bench")
        root = str(repository.root)
        project = Project(id=0, name="bench", root=root, branch="b", test_command=("pytest",))
        project = await store.save_project(project)
        async with serving(store, project.id) as address:
            url = f"{address.url.replace('http', 'ws', 1)}/feed#{address.token}"
            clients = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.team", "--clients", url),
                *("--events", str(total)),
                stdout=subprocess.PIPE,
                limit=1 << 24,
            )
            assert clients.stdout is not None
            assert await clients.stdout.readline() == b"connected\n"
            used, began = time.process_time(), time.perf_counter()
            async with lag.measured():
                sent = 0
                while sent < total:
                    due = min(total, int((time.perf_counter() - began) * RATE))
                    made = [
                        ActivityUpdate(
                            project_id=project.id,
                            agent_id=f"backend-{number % 5}",
                            text=f"step {number}: writes src/shop/basket.py and its tests",
                        )
                        for number in range(sent, due)
                    ]
                    await store.add_events(made)
                    sent = due
                    await asyncio.sleep(0.005)
                took = time.perf_counter() - began
                used = time.process_time() - used
                found = json.loads(await clients.stdout.readline())
            await clients.wait()
    readers = CLIENTS - STALLED
    delay = found["latency"]
    rows = [["latency", *map(figure, delay)], lag.row("event loop lag")]
    whole = found["complete"] == readers
    return Result(
        "events",
        f"{RATE:,} events a second to {CLIENTS} WebSocket clients, {STALLED} of them stalled (ms)",
        ["", "median", "95 %", "99 %", "highest"],
        rows,
        [
            Verdict(
                "events",
                f"{RATE:,} events a second are stored",
                f"{total / took:,.0f} a second",
                total / took > 0.98 * RATE,
            ),
            Verdict(
                "events",
                "every client that reads gets every event once, in order",
                f"{found['complete']} of {readers} clients got all {total:,}",
                whole,
            ),
            Verdict(
                "events",
                "stalled clients are dropped",
                f"{found['dropped']} of {STALLED}",
                found["dropped"] == STALLED,
            ),
        ],
        [
            "Latency is from the moment an event is stored to the moment a client has read it;"
            " events gather for up to 50 ms before they are sent.",
            f"The server, the store and the writer together took {used / took:.0%} of a core.",
        ],
    )


_FOLLOW: Final = '{"sub": 1, "feed": "team/bench", "after": -1}'


async def be_clients(url: str, total: int) -> None:
    """Run the clients of the other process: read events, or stall."""
    from websockets.asyncio.client import connect

    delays: list[float] = []
    numbers: list[int] = []

    async def read(websocket: Any) -> None:
        last = count = 0
        while count < total:
            batch = json.loads(await websocket.recv()).get("items")
            if not batch:
                continue
            now = time.time()
            delays.extend((now - batch[at]["time"]) * 1000 for at in (0, len(batch) // 2, -1))
            for event in batch:
                if event["number"] != last + 1:
                    raise ValueError(f"{event['number']} came after {last}")
                last = event["number"]
            count += len(batch)
        numbers.append(count)

    stalled = [await stall(url) for _ in range(STALLED)]
    address, _, token = url.partition("#")
    headers = {"authorization": f"Bearer {token}"}
    readers = [
        await connect(address, max_size=None, additional_headers=headers)
        for _ in range(CLIENTS - STALLED)
    ]
    for reader in readers:
        await reader.send(_FOLLOW)
    print("connected", flush=True)
    async with asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(read(reader))
    dropped = [await asyncio.to_thread(is_dropped, client) for client in stalled]
    figures = {"complete": len(numbers), "dropped": sum(dropped), "latency": percentiles(delays)}
    print(json.dumps(figures), flush=True)


async def stall(url: str) -> socket.socket:
    """Follow the feed as a client that reads nothing."""
    where = urlsplit(url)
    client = socket.create_connection((where.hostname or "", where.port or 0))
    key = b64encode(os.urandom(16)).decode()
    client.sendall(
        f"GET {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\n"
        f"Authorization: Bearer {where.fragment}\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        "\r\n".encode()
    )
    frame = _FOLLOW.encode()  # masked with zeros
    client.sendall(bytes([0x81, 0x80 | len(frame), 0, 0, 0, 0]) + frame)
    return client


def is_dropped(client: socket.socket) -> bool:
    """Return whether the server has closed the connection of a client that did not read."""
    client.settimeout(20)
    try:
        with client, suppress(ConnectionResetError):
            while client.recv(1 << 20):
                pass
    except TimeoutError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.team", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter: to try, not to quote")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into FILE")
    parser.add_argument("--case", metavar="A,B", help="agents, events, lag, workers (default: all)")
    parser.add_argument("--clients", help=argparse.SUPPRESS)
    parser.add_argument("--idle", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--events", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.clients:
        asyncio.run(be_clients(options.clients, options.events))
        return 0
    if options.idle:
        asyncio.run(be_idle())
        return 0
    quick = options.quick
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = {
            "agents": lambda: measure_agents(folder / "agents"),
            "events": lambda: measure_events(folder / "events", seconds=4 if quick else 20),
            "lag": lambda: measure_lag(folder / "lag", count=5 if quick else 15),
            "workers": lambda: measure_workers(folder / "workers", unit=1 if quick else 6),
        }
        for case in options.case.split(",") if options.case else cases:
            say(f"{case} ...")
            results.append(asyncio.run(cases[case]()))
    where = (
        f"Measured on {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python"
        f" {platform.python_version()}."
    )
    for result in results:
        print(result.markdown(), end="\n\n")
    verdicts = [verdict for result in results for verdict in result.verdicts]
    print("\n".join(verdict.line() for verdict in verdicts))
    if options.write:
        publish(options.write, where, results, BEGIN, END)
    return 0 if all(verdict.met for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
