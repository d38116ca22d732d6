"""The graph of a command: files, modules, packages, names in them, and pyproject.toml; and the
error where there is no graph."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import bae
from bae import BaeError
from bae.cli.loading import is_configured, load

pytestmark = pytest.mark.usefixtures("folder")
MAIN = "import sys, bae.cli; sys.exit(bae.cli.main())"
GRAPH = """
from __future__ import annotations

from bae import Graph, Node


class Ask(Node):
    async def __call__(self) -> None: ...


class Other(Node):
    async def __call__(self) -> None: ...


graph = Graph(start=Ask, name="first")
second = Graph(start=Ask, name="second")


def create_graph():
    return Graph(start=Ask, name="made")


class Kept:
    inside = Graph(start=Ask, name="inside")

    @staticmethod
    def make():
        return Graph(start=Ask, name="of a method")


instance = Ask()


async def make_later():
    return graph


def wants(argument):
    return graph
"""


def write(name: str, text: str = GRAPH) -> Path:
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def loading_error(said: str | None) -> BaeError:
    with pytest.raises(BaeError) as caught:
        load(said)
    assert caught.value.fix
    return caught.value


# --- what can be named --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "name", "attribute"),
    [
        ("app.py", "first", "graph"),
        ("app.py:second", "second", "second"),
        ("app.py:create_graph", "made", "create_graph"),
        ("app.py:Kept.inside", "inside", "Kept.inside"),
        ("app.py:Kept.make", "of a method", "Kept.make"),
        ("app.py:Other", "Other", "Other"),
        ("./app.py", "first", "graph"),
        ("app", "first", "graph"),
        ("app:second", "second", "second"),
    ],
)
def test_a_graph_is_found_by_file_or_module_and_by_name(said: str, name: str, attribute: str):
    write("app.py")
    loaded = load(said)
    assert (loaded.graph.name, loaded.attribute, loaded.module) == (name, attribute, "app")
    assert loaded.reference == said


def test_a_module_may_have_a_function_instead_of_a_graph():
    write(
        "app.py", GRAPH.replace("graph = Graph(start=Ask, name=", "first = Graph(start=Ask, name=")
    )
    assert load("app.py").graph.name == "made"


def test_a_file_is_found_by_an_absolute_path_and_finds_its_neighbors(tmp_path: Path):
    write("elsewhere/beside.py", "NAME = 'from beside'\n")
    file = write(
        "elsewhere/app.py",
        "from beside import NAME\nfrom bae import Graph, Node\n"
        "class Ask(Node):\n    async def __call__(self) -> None: ...\n"
        "graph = Graph(start=Ask, name=NAME)\n",
    )
    assert load(str(file.resolve())).graph.name == "from beside"


def test_a_file_of_a_package_is_imported_as_a_submodule():
    write("closet/__init__.py", "")
    write("closet/names.py", "NAME = 'closet'\n")
    write(
        "closet/nodes.py", GRAPH + "from .names import NAME\nnamed = Graph(start=Ask, name=NAME)\n"
    )
    loaded = load("closet/nodes.py:named")
    assert (loaded.graph.name, loaded.module) == ("closet", "closet.nodes")
    assert load("closet.nodes").graph is load("closet/nodes.py").graph


def test_a_graph_is_found_in_the_init_file_of_a_package():
    write("closet/__init__.py")
    assert load("closet").module == "closet"
    assert load("closet/").module == "closet"
    assert load("closet/__init__.py").module == "closet"


def test_a_file_named_like_another_module_does_not_replace_that_module():
    write("json.py")
    write("bae.py")
    assert load("json.py").graph.name == "first"
    assert load("bae.py").graph.name == "first"
    assert (sys.modules["json"], sys.modules["bae"]) == (json, bae)


def test_a_reference_with_an_empty_name_after_the_colon_is_accepted():
    write("app.py")
    assert load("app.py:").reference == "app.py"


def test_loading_a_script_does_not_run_its_main_block():
    write("app.py", GRAPH + '\nif __name__ == "__main__":\n    raise SystemExit(1)\n')
    assert load("app.py").graph.name == "first"


def test_the_same_file_is_not_executed_twice():
    write("app.py")
    assert load("app.py").graph is load("./app.py").graph


def test_a_file_that_failed_to_load_is_executed_again():
    write("app.py", "1 / 0")
    assert loading_error("app.py").code == "bae-module-failed"
    write("app.py")
    assert load("app.py").graph.name == "first"


# --- pyproject.toml -----------------------------------------------------------------------------


def test_pyproject_names_the_graph_from_anywhere_in_the_project(monkeypatch: pytest.MonkeyPatch):
    write("pyproject.toml", '[tool.bae]\ngraph = "closet/app.py:second"\n')
    write("closet/app.py")
    assert load(None).graph.name == "second"
    Path("tests/deep").mkdir(parents=True)
    monkeypatch.chdir("tests/deep")
    loaded = load(None)
    assert loaded.graph.name == "second"
    assert loaded.reference == str(Path("..", "..", "closet", "app.py")) + ":second"
    assert load(loaded.reference).graph is loaded.graph


def test_pyproject_may_name_a_module(monkeypatch: pytest.MonkeyPatch):
    write("pyproject.toml", '[tool.bae]\ngraph = "closet.nodes"\n')
    write("closet/__init__.py", "")
    write("closet/nodes.py")
    Path("tests").mkdir()
    monkeypatch.chdir("tests")
    assert (load(None).module, load(None).reference) == ("closet.nodes", "closet.nodes")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no MODULE was given"),
        ("[tool.other]\n", "no MODULE was given"),
        ("[tool.bae]\ngraph = 3\n", "[tool.bae] graph in pyproject.toml is 3"),
        ('[tool]\nbae = "x"\n', "pyproject.toml cannot be read"),
        ("tool = 3\n", "pyproject.toml cannot be read"),
        ("[tool.bae\n", "pyproject.toml cannot be read"),
        ('[tool.bae]\ngraph = "gone.py"\n', "there is no file gone.py"),
    ],
    ids=["none", "silent", "number", "no table", "no tools", "broken", "gone"],
)
def test_a_pyproject_without_a_graph_is_reported_with_what_to_write(text: str | None, message: str):
    if text is not None:
        write("pyproject.toml", text)
    elif any((folder / "pyproject.toml").exists() for folder in Path.cwd().parents):
        pytest.skip("the temporary directory is inside a project")
    error = loading_error(None)
    assert error.code == "bae-module-unknown"
    assert error.message.startswith(message)
    assert is_configured() == ("gone.py" in (text or ""))


# --- what is not there --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "code", "message", "fix"),
    [
        ("ap.py", "bae-module-unknown", "there is no file ap.py", "did you mean app.py?"),
        ("closet/ap.py", "bae-module-unknown", "there is no file closet/ap.py", "give its path"),
        ("nodes/", "bae-module-unknown", "nodes/ is a directory", "name a Python file"),
        ("no.such", "bae-module-unknown", "there is no module no.such", "or name its file"),
        ("app.graph", "bae-module-unknown", "there is no module app.graph", "app:graph"),
        ("my-app", "bae-module-unknown", "'my-app' is no module and no file", "as app.py"),
        ("app.py:third", "bae-module-no-graph", "app.py has no third", "app.py:graph, app.py:s"),
        ("app.py:Kept", "bae-module-no-graph", "app.py:Kept is no Graph", "name a graph"),
        ("app.py:instance", "bae-module-no-graph", "app.py:instance is no Graph", "name a graph"),
        ("app.py:make_later", "bae-module-no-graph", "app.py:make_later() is no Graph", "name a"),
        ("app.py:wants", "bae-module-failed", "app.py:wants() failed", "--debug"),
    ],
)
def test_an_unknown_name_is_reported_with_the_available_names(
    said: str, code: str, message: str, fix: str
):
    write("app.py")
    Path("nodes").mkdir()
    error = loading_error(said)
    assert error.code == code
    assert error.message.startswith(message)
    assert fix in (error.fix or "")


def test_a_package_file_without_an_init_is_reported_with_its_right_name():
    write("rel/app.py")
    write("rel/main.py", "from .app import graph\n")
    error = loading_error("rel/main.py")
    assert error.code == "bae-module-failed"
    assert "name it as a module" in (error.fix or "")
    assert load("rel.main").graph.name == "first"


def test_an_error_in_a_graph_function_is_reported_as_a_failed_call():
    write("app.py", "def create_graph():\n    1 / 0\n")
    assert loading_error("app.py").message == "app.py:create_graph() failed, app.py:2"
    write(
        "other.py",
        "from bae import Node\n\n\ndef create_graph():\n"
        "    class Ask(Node):\n        def __call__(self) -> None: ...\n",
    )
    assert loading_error("other.py").__notes__ == [
        "while other.py:create_graph() was called, other.py:5"
    ]


def test_a_missing_import_is_distinguished_from_a_missing_module():
    write("app.py", "import numpyy\n")
    error = loading_error("app")
    assert error.code == "bae-module-failed"
    assert error.message == "app could not be imported, app.py:1"
    assert "install the package with the module numpyy" in (error.fix or "")


def test_the_reported_line_is_the_innermost_line_of_user_code():
    write("deeper.py", "import json\n\n\ndef read():\n    return json.loads('{')\n")
    write("app.py", "from deeper import read\n\nread()\n")
    assert loading_error("app.py").message == "app.py could not be imported, deeper.py:5"


def test_an_error_of_bae_keeps_its_code_and_its_location():
    write("app.py", GRAPH.replace("async def", "def", 1))
    error = loading_error("app.py")
    assert error.code == "bae-node-sync-call"
    assert error.__notes__ == ["while app.py was imported, app.py:7"]
