"""What bae promises about type hints: every spelling of a return type is understood, an empty body
is found wherever code can run, and a name may be defined before or after, here or elsewhere."""

from __future__ import annotations

import ast
import code
import gc
import os
import runpy
import subprocess
import sys
import textwrap
import types
import typing
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bae
from bae import Graph, HintError, Node, ProofError
from bae.testing import ScriptedLM

Load = Callable[..., Any]

HEAD = """
from typing import *
from pydantic import BaseModel, Field
from bae import *
from bae.testing import ScriptedLM
"""

SPELLINGS = ["future", "quoted", "plain"] if sys.version_info >= (3, 14) else ["future", "quoted"]
"""With `from __future__ import annotations`, in quotes, and as they are, which lets a name be
defined later from Python 3.14 on."""


def respell(source: str, spelling: str) -> str:
    """The program `source`, whose annotations are plain, in another spelling, with its imports."""
    match spelling:
        case "future":
            return f"from __future__ import annotations\n{HEAD}\n{source}"
        case "quoted":
            return ast.unparse(_Quoted().visit(ast.parse(HEAD + source)))
        case _:
            return HEAD + source


def run_as_module(source: str, name: str, **names: Any) -> types.ModuleType:
    """Run source text as a module that import knows of; the caller takes it out again."""
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    exec(compile(source, f"<{name}>", "exec", dont_inherit=True), vars(module))
    return module


class _Quoted(ast.NodeTransformer):
    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = _quote(node.annotation)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(node)

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        if node.returns is not None:
            node.returns = _quote(node.returns)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        if node.annotation is not None:
            node.annotation = _quote(node.annotation)
        return node


def _quote(annotation: ast.expr) -> ast.expr:
    return ast.Constant(ast.unparse(annotation))


needs_type_statement = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="the type statement came with Python 3.12"
)


@pytest.fixture
def modules() -> Iterator[None]:
    """Takes out of sys.modules again what the test has put there."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("nodes_made"):
            del sys.modules[name]


@pytest.fixture(params=SPELLINGS)
def load(request: pytest.FixtureRequest, modules: None) -> Load:
    """Runs a program whose annotations are plain, as a module, in each spelling."""

    def load(source: str, name: str = "nodes_made", **names: Any) -> Any:
        return run_as_module(respell(textwrap.dedent(source), request.param), name, **names)

    return load


def leads_to(cls: type[Node]) -> list[str]:
    """The names of the successors, with None where a run may end."""
    return [successor.__name__ for successor in cls.successors()] + ["None"] * cls.is_terminal()


def problems(start: type[Node]) -> list[str]:
    return [f"{problem.code} {problem.place}" for problem in Graph(start=start).validate()]


# --- what a return type says ------------------------------------------------------------------

ENDS = """
class Yes(Node):
    async def __call__(self) -> None: ...

class No(Node):
    async def __call__(self) -> None: ...

Either = Yes | No
"""


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("Yes", ["Yes"]),
        ("Yes | No", ["Yes", "No"]),
        ("No | Yes", ["No", "Yes"]),
        ("Yes | No | Yes", ["Yes", "No"]),
        ("Union[Yes, No]", ["Yes", "No"]),
        ("Union[Yes, No, None]", ["Yes", "No", "None"]),
        ("Optional[Yes]", ["Yes", "None"]),
        ("Optional[Union[Yes, No]]", ["Yes", "No", "None"]),
        ("Yes | None", ["Yes", "None"]),
        ("None | Yes", ["Yes", "None"]),
        ("None", ["None"]),
        ("Annotated[Yes, 'why']", ["Yes"]),
        ("Annotated[Yes | None, 'why']", ["Yes", "None"]),
        ("Annotated[Yes, 'why'] | Annotated[No, 'why not'] | None", ["Yes", "No", "None"]),
        ("Annotated[Annotated[Yes, 1] | No, 2]", ["Yes", "No"]),
        ("Either", ["Yes", "No"]),
        ("Either | None", ["Yes", "No", "None"]),
        ("Optional['Yes']", ["Yes", "None"]),
        ("Union['Yes', No, None]", ["Yes", "No", "None"]),
        ("Annotated['Yes', 'why']", ["Yes"]),
        ("Annotated[Optional['Yes'], 'why']", ["Yes", "None"]),
        ("Self", ["Ask"]),
        ("Self | None", ["Ask", "None"]),
        ("Optional[Self]", ["Ask", "None"]),
        ("Ask | Yes", ["Ask", "Yes"]),
    ],
)
def test_a_return_type_names_the_next_node_in_every_spelling(load, hint, expected):
    made = load(f"""
class Ask(Node):
    async def __call__(self) -> {hint}: ...
{ENDS}""")
    assert leads_to(made.Ask) == expected
    assert Graph(start=made.Ask).edges[made.Ask] == made.Ask.successors()


@needs_type_statement
def test_a_type_statement_in_a_return_type_may_name_later_classes(load):
    made = load(f"""
type Reply = Yes | Maybe
type Maybe = No | None

class Ask(Node):
    async def __call__(self) -> Reply: ...
{ENDS}""")
    assert leads_to(made.Ask) == ["Yes", "No", "None"]


@needs_type_statement
def test_a_generic_node_can_have_successors(load):
    made = load(f"""
class Ask[T](Node):
    value: T
    async def __call__(self) -> Yes | None: ...

def inside():
    class Local[T](Node):
        value: T
        later: Later | None = None
        async def __call__(self) -> Later: ...
    class Later(Node):
        async def __call__(self) -> None: ...
    return Local
{ENDS}""")
    assert leads_to(made.Ask[int]) == ["Yes", "None"]
    assert made.Ask[int](value="3").value == 3
    assert leads_to(made.inside()) == ["Later"]
    assert leads_to(made.inside()[int]) == ["Later"]


def test_a_subclass_has_the_successors_of_its_parent_by_default(load):
    made = load(f"""
class Ask(Node):
    async def __call__(self) -> Yes | None: ...

class Same(Ask):
    more: int = 0

class Differs(Ask):
    async def __call__(self) -> No: ...

class SameAsDiffers(Differs):
    pass

class Again(Node):
    async def __call__(self) -> Self | None: ...

class Other(Again):
    pass
{ENDS}""")
    successors = [leads_to(cls) for cls in (made.SameAsDiffers, made.Differs, made.Same, made.Ask)]
    assert successors == [["No"], ["No"], ["Yes", "None"], ["Yes", "None"]]
    assert made.Other.successors() == (made.Other,)
    assert made.Again.successors() == (made.Again,)


@pytest.mark.parametrize("hint", ["int", "list[Yes]", "type[Yes]", "Any", "Node", "Literal['Yes']"])
def test_a_missing_or_wrong_return_type_of_call_is_a_problem(load, hint):
    made = load(f"""
class Ask(Node):
    async def __call__(self) -> {hint}: ...
class Unsaid(Node):
    async def __call__(self): ...
{ENDS}""")
    assert problems(made.Ask) == ["bae-route-not-a-node Ask.__call__"]
    assert problems(made.Unsaid) == ["bae-route-unannotated Unsaid.__call__"]


@pytest.mark.parametrize("hint", ["Yes[int]", "Yes.Missing", "Yes('no')"])
def test_a_return_type_that_cannot_be_evaluated_is_a_hint_error_with_its_cause(load, hint):
    made = load(f"""
class Ask(Node):
    async def __call__(self) -> {hint}: ...
class Yes(Node):
    async def __call__(self) -> None: ...
""")
    with pytest.raises(HintError) as caught:
        made.Ask.successors()
    assert "Ask.__call__" in str(caught.value)
    assert caught.value.cause is not None
    assert problems(made.Ask) == ["bae-hint-unresolved Ask.__call__"]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="raised by the class statement before 3.14")
def test_a_hint_that_python_can_never_evaluate_is_a_hint_error_too(modules):
    made = run_as_module(
        HEAD
        + """
class Ask(Node):
    async def __call__(self) -> "Yes" | None: ...
def get() -> "Yes" | None: ...
class Uses(Node):
    value: Annotated[Any, Dep(get)]
    async def __call__(self) -> None: ...
""",
        "nodes_made",
    )
    with pytest.raises(HintError, match="cannot be evaluated"):
        made.Ask.successors()
    assert problems(made.Ask) == ["bae-hint-unresolved Ask.__call__"]
    assert problems(made.Uses) == ["bae-hint-unresolved Uses.value"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_plain_mixin_may_name_classes_that_only_its_subclass_sees(modules, spelling):
    mixin = "class LeadsOn:\n    async def __call__(self, lm: LM) -> Late: ...\n"
    leads_on = run_as_module(respell(mixin, spelling), "nodes_made_mixins").LeadsOn
    made = run_as_module(
        f"""{HEAD}
class Late(Node):
    async def __call__(self) -> None: ...
class Ask(LeadsOn, Node): ...
""",
        "nodes_made",
        LeadsOn=leads_on,
    )
    assert made.Ask.successors() == (made.Late,)
    assert problems(made.Ask) == []


# --- empty bodies -----------------------------------------------------------------------------

EMPTY = {
    "ellipsis": "...",
    "pass": "pass",
    "docstring": "'''Says what it is for.'''",
    "bare annotations": "x: int; y: str",
    "a bare None": "None",
    "a comment on returning": "pass  # see there: return None",
    "a docstring on returning": "'''Then: return'''",
}
WRITTEN = {
    "return": "return Yes()",
    "await": "await self.nothing(); return Yes()",
    "try": "try:\n            return Yes()\n        finally: pass",
    "closure": "made = lambda: type(self)().make(); return made()",
}
ASK = """
class Ask(Node):
    def make(self): return Yes()
    async def nothing(self): ...
    async def __call__(self) -> Yes | None:
        {body}

class Yes(Node):
    async def __call__(self) -> None: ...
"""


def is_left_to_the_lm(ask: type[Node]) -> bool:
    """Whether a run from an `Ask` asks the LM, which then chooses Yes; the run ends there."""
    lm = ScriptedLM(["Yes"])
    result = Graph(start=ask).run(ask(), lm=lm)
    assert [type(node).__name__ for node in result.trace] == [ask.__name__, "Yes"]
    return "choose_type" in [asked.kind for asked in lm.asked]


@pytest.mark.parametrize("name", EMPTY | WRITTEN)
def test_only_an_empty_body_leaves_the_choice_to_the_llm(load, name):
    made = load(ASK.format(body=(EMPTY | WRITTEN)[name]))
    assert is_left_to_the_lm(made.Ask) is (name in EMPTY)


def test_a_body_that_only_raises_or_awaits_is_not_empty(load):
    made = load("""
class Raises(Node):
    async def __call__(self) -> Raises | None:
        raise LookupError("mine")

class Awaits(Node):
    seen: ClassVar[list] = []
    async def note(self): self.seen.append("awaited")
    async def __call__(self) -> Awaits | None:
        await self.note()
""")
    with pytest.raises(bae.NodeError) as caught:
        Graph(start=made.Raises).run(made.Raises())
    assert isinstance(caught.value.cause, LookupError)
    Graph(start=made.Awaits).run(made.Awaits())
    assert made.Awaits.seen == ["awaited"]


@pytest.mark.parametrize("parameters", ["self, lm: LM", "self, *, model: LM | None = None"])
def test_a_body_is_empty_whatever_its_parameters_are(load, parameters):
    source = ASK.replace("__call__(self) -> Yes", f"__call__({parameters}) -> Yes")
    assert is_left_to_the_lm(load(source.format(body="...")).Ask)
    assert not is_left_to_the_lm(load(source.format(body="return Yes()")).Ask)


def test_a_body_that_uses_its_closure_is_not_empty(load):
    made = load("""
def define(value):
    class Ask(Node):
        async def __call__(self) -> Yes | None: ...
    class Written(Node):
        async def __call__(self) -> Yes | None:
            return value and Yes()
    class Yes(Node):
        async def __call__(self) -> None: ...
    return Ask, Written
""")
    assert [is_left_to_the_lm(cls) for cls in made.define(True)] == [True, False]


RETURNED = {
    "bare return": "return",
    "return None": "return None",
    "in parentheses": "return (None)",
    "with a comment": "return None  # the end: pass",
    "after a docstring": "'''Ends here.'''\n        return None",
    "after an ellipsis": "...; return",
    "in a branch": "if True:\n            return None",
}


def ends_there(ask: type[Node]) -> bool:
    """Whether a run ends at an `Ask`, without asking the LM."""
    lm = ScriptedLM(["Yes"])
    result = Graph(start=ask).run(ask(), lm=lm)
    return len(result.trace) == 1 and not lm.asked


@pytest.mark.parametrize("body", [*RETURNED.values(), *EMPTY.values()], ids=[*RETURNED, *EMPTY])
def test_a_written_return_of_none_is_distinguished_from_an_empty_body_by_the_source(tmp_path, body):
    programs = [ASK, ASK.replace(":\n        {body}", ": {body}")]
    for number, program in enumerate(programs[: 1 if "\n" in body else 2]):
        path = tmp_path / f"returned{number}.py"
        path.write_text(respell(program.format(body=body), "future"))
        assert ends_there(runpy.run_path(str(path))["Ask"]) is (body in RETURNED.values())


def test_an_edited_source_file_is_read_again(tmp_path):
    path = tmp_path / "edited.py"
    for body, ends in (("pass", False), ("return None", True)):
        path.write_text(respell(ASK.format(body=body), "future"))
        assert ends_there(runpy.run_path(str(path))["Ask"]) is ends
    made: dict[str, Any] = {}
    exec(respell(ASK.format(body="return"), "future"), made)
    assert ends_there(made["Ask"])


# A whole program, which prints whom the LM was asked for and where the run ended.
PROGRAM = f"""{HEAD}
class Ask(Node):
    async def __call__(self) -> "Think": ...

class Think(Node):
    thought: str
    extra: "Extra | None" = None
    async def __call__(self) -> "Yes": return Yes()

class Extra(BaseModel):
    note: str = "later"

class Yes(Node):
    async def __call__(self) -> None:
        '''The end.'''

lm = ScriptedLM([{{"thought": "hm", "extra": {{}}}}])
result = Graph(start=Ask, end=Yes).run(Ask(), lm=lm)
print([asked.target.__name__ for asked in lm.asked], result.trace[1].extra.note, [result.result])
"""
PRINTED = "['Think'] later [Yes()]"


def python(*arguments: str, given: str = "", path: str = "") -> str:
    """What another interpreter prints."""
    paths = [path, str(Path(bae.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        input=given,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_works_as_bytecode_in_a_zip_file(tmp_path):
    """Without docstrings, asserts and line ranges, too."""
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ("-OO", "-X", "no_debug_ranges")
    python(*options, "-m", "compileall", "-b", "-q", str(tmp_path))
    with zipfile.ZipFile(tmp_path / "zipped.zip", "w") as archive:
        archive.write(tmp_path / "program.pyc", "program.pyc")
    printed = python(*options, "-c", "import program", path=str(tmp_path / "zipped.zip"))
    assert printed == PRINTED


def test_a_program_works_at_an_interactive_prompt(capsys):
    console = code.InteractiveConsole({"__name__": "__console__"})
    for statement in PROGRAM.split("\n\n"):
        for line in [*statement.splitlines(), ""]:
            console.push(line)
    printed = capsys.readouterr()
    assert (printed.out.strip(), printed.err) == (PRINTED, "")


def test_a_program_works_when_exec_runs_it_in_a_plain_dict(capsys):
    for names in ({}, {"__name__": "no_such_module"}, {"__name__": "typing"}):
        exec(PROGRAM, names)
        assert capsys.readouterr().out.strip() == PRINTED


# --- names defined later, or elsewhere --------------------------------------------------------


def test_classes_of_a_module_may_name_each_other_in_any_order(load):
    made = load("""
class First(Node):
    note: Note
    notes: list[Note] = []
    async def __call__(self) -> Second | None: ...

class Second(Node):
    back: Annotated[First, Recall()]
    async def __call__(self) -> First | Third: ...

class Third(Node):
    async def __call__(self) -> None: ...

class Note(BaseModel):
    text: str
""")
    graph = Graph(start=made.First)
    assert graph.nodes == (made.First, made.Second, made.Third)
    assert graph.validate() == []
    assert made.First(note={"text": "a"}, notes=[{"text": "b"}]).notes == [made.Note(text="b")]


def test_classes_of_a_function_may_name_each_other_after_its_return(load):
    made = load("""
def define():
    class First(Node):
        note: Note
        async def __call__(self) -> Second | None: ...
    class Second(Node):
        note: Annotated[Note, Recall()]
        async def __call__(self) -> First | Third: ...
    class Third(Node):
        note: Note
        async def __call__(self) -> None: ...
    class Note(BaseModel):
        text: str
    return First
""")
    first = made.define()
    graph = Graph(start=first)
    assert [cls.__name__ for cls in graph.nodes] == ["First", "Second", "Third"]
    assert graph.validate() == []
    lm = ScriptedLM(["Second", "Third", {"note": {"text": "b"}}])
    assert graph.run(first(note={"text": "a"}), lm=lm).result.note.text == "b"


def test_annotations_in_nested_functions_and_class_bodies_may_name_the_enclosing_classes(load):
    made = load("""
def outermost():
    class Far(Node):
        async def __call__(self) -> None: ...
    def outer():
        def inner():
            class First(Node):
                note: Note | None = None
                async def __call__(self) -> Near | Far | Later: ...
            class Near(Node):
                async def __call__(self) -> None: ...
            return First
        first = inner()
        class Later(Node):
            async def __call__(self) -> None: ...
        return first
    class Note(BaseModel):
        text: str
    return outer()

class Flow:
    class First(Node):
        note: Note
        async def __call__(self) -> Second: ...
    class Second(Node):
        async def __call__(self) -> Flow.Third | Outside: ...
    class Third(Node):
        async def __call__(self) -> None: ...
    class Note(BaseModel):
        text: str

class Outside(Node):
    async def __call__(self) -> None: ...
""")
    first = made.outermost()
    assert leads_to(first) == ["Near", "Far", "Later"]
    assert leads_to(made.Flow.First) == ["Second"]
    assert leads_to(made.Flow.Second) == ["Third", "Outside"]
    for cls in (first, made.Flow.First):
        assert cls(note={"text": "a"}).note.text == "a"


def test_a_name_of_the_function_shadows_the_module_and_every_call_has_its_own(load):
    made = load("""
class Last(Node):
    async def __call__(self) -> None: ...

def define():
    class First(Node):
        async def __call__(self) -> Last: ...
    class Last(Node):
        async def __call__(self) -> None: ...
    return First, Last

class First(Node):
    async def __call__(self) -> Last: ...
""")
    for first, last in (made.define(), made.define(), (made.First, made.Last)):
        assert first.successors() == (last,)


def test_a_dependency_may_name_types_defined_after_it_and_after_the_node(load):
    made = load("""
def define():
    async def get_weather() -> Weather:
        return Weather(sky="grey")
    async def describe(word: str) -> Description:
        return Description(word=word)
    class Day(Node):
        words: list[str]
        weather: Annotated[Weather, Dep(get_weather)]
        described: Annotated[list[Description], Map(describe, over="words")]
        async def __call__(self) -> None: ...
    class Weather(BaseModel):
        sky: str
    class Description(BaseModel):
        word: str
    return Day
""")
    day = made.define()
    graph = Graph(start=day)
    assert graph.validate() == []
    whole = graph.run(day(words=["a"])).result
    assert whole.model_dump() == {
        "words": ["a"],
        "weather": {"sky": "grey"},
        "described": [{"word": "a"}],
    }


# --- across modules ---------------------------------------------------------------------------

BY_ATTRIBUTE = {
    "nodes_made_a": """
import nodes_made_b
class First(Node):
    async def __call__(self) -> nodes_made_b.Second: ...
""",
    "nodes_made_b": """
import nodes_made_a
class Second(Node):
    async def __call__(self) -> nodes_made_a.First | None: ...
""",
}
AT_THE_BOTTOM = {
    "nodes_made_a": """
class First(Node):
    note: Note | None = None
    async def __call__(self) -> Second: ...
from nodes_made_b import Note, Second
""",
    "nodes_made_b": """
class Second(Node):
    async def __call__(self) -> First | None: ...
class Note(BaseModel):
    text: str
from nodes_made_a import First
""",
}


@pytest.mark.parametrize("first", ["nodes_made_a", "nodes_made_b"])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("sources", "given"),
    [(BY_ATTRIBUTE, {}), (AT_THE_BOTTOM, {"note": {"text": "a"}})],
    ids=["by attribute", "at the bottom"],
)
def test_modules_that_import_each_other_may_name_each_others_nodes(
    sources, given, spelling, first, tmp_path, monkeypatch, modules
):
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(respell(source, spelling))
    monkeypatch.syspath_prepend(tmp_path)
    __import__(first)
    a, b = sys.modules["nodes_made_a"], sys.modules["nodes_made_b"]
    graph = Graph(start=a.First)
    assert graph.edges == {a.First: (b.Second,), b.Second: (a.First,)}
    assert graph.validate() == []
    assert a.First(**given).model_dump() == given


def test_names_of_an_inherited_call_or_field_are_resolved_in_its_own_module(load):
    base = load(
        """
class Base(Node):
    note: Note
    async def __call__(self) -> Next: ...
""",
        "nodes_made_base",
    )
    sub = load(
        """
class Next(Node):
    async def __call__(self) -> None: ...
class Sub(Base):
    more: More
class More(BaseModel):
    text: str
""",
        "nodes_made_sub",
        Base=base.Base,
    )
    exec("class Note(BaseModel):\n    text: str", vars(base))
    exec("class Next(Node):\n    async def __call__(self) -> None: ...", vars(base))
    assert sub.Sub.successors() == (base.Next,)
    assert sub.Sub(note={"text": "a"}, more={"text": "b"}).note == base.Note(text="a")


def test_a_decorator_from_another_module_does_not_hide_the_names_of_the_call(load):
    tools = load(
        """
import functools
def noted(call):
    @functools.wraps(call)
    async def wrapper(self):
        return await call(self)
    return wrapper
""",
        "nodes_made_tools",
    )
    made = load(
        """
class First(Node):
    note: Note | None = None
    @noted
    async def __call__(self) -> Last:
        return Last()
class Last(Node):
    async def __call__(self) -> None: ...
class Note(BaseModel):
    text: str
""",
        noted=tools.noted,
    )
    assert leads_to(made.First) == ["Last"]
    assert made.First(note={"text": "a"}).note.text == "a"


# --- names that cannot be found ---------------------------------------------------------------


def only_problem(start: type[Node]) -> tuple[str, str]:
    """The place and the text of the one problem of a graph."""
    (problem,) = Graph(start=start).validate()
    assert (problem.code, problem.severity) == ("bae-hint-unresolved", "error")
    return problem.place, problem.message


def test_an_undefined_name_is_reported_with_the_searched_places(load):
    made = load("""
class Ask(Node):
    async def __call__(self) -> Missing | None: ...

def define():
    def inner():
        class Ask(Node):
            async def __call__(self) -> Missing: ...
        return Ask
    return inner()

class Flow:
    class Ask(Node):
        async def __call__(self) -> Missing: ...
""")
    for ask, label, looked in (
        (made.Ask, "Ask.__call__", "module nodes_made, builtins"),
        (
            made.define(),
            "define.inner.Ask.__call__",
            "the locals of define.inner(), the locals of define(), module nodes_made, builtins",
        ),
        (made.Flow.Ask, "Flow.Ask.__call__", "the body of class Flow"),
    ):
        for asked in (ask.successors, ask.is_terminal):
            with pytest.raises(HintError) as caught:
                asked()
            assert caught.value.code == "bae-hint-unresolved"
            assert f"{label}: the name 'Missing' cannot be resolved" in str(caught.value)
            assert looked in str(caught.value)
            assert "TYPE_CHECKING" in str(caught.value)
        place, message = only_problem(ask)
        assert place == "Ask.__call__"
        assert "'Missing'" in message
        assert looked in message


def test_a_similar_name_is_suggested_only_if_it_is_close(load):
    made = load("""
class Nothing(Node):
    async def __call__(self) -> Nope: ...

class Builtin(Node):
    async def __call__(self) -> Bytearray: ...

class Misspelt(Node):
    async def __call__(self) -> Builtn: ...
""")
    fixes: list[str] = []
    for ask in (made.Nothing, made.Builtin, made.Misspelt):
        with pytest.raises(HintError) as caught:
            ask.successors()
        fixes.append(str(caught.value.fix).partition("?")[0])
    assert fixes[0].startswith("define or import Nope ")
    assert fixes[1:] == ["did you mean bytearray", "did you mean Builtin"]


def test_a_field_with_an_unresolvable_name_is_reported_on_access(load):
    made = load("""
class Ask(Node):
    note: list[Missing]
    async def __call__(self) -> None: ...

def define():
    class Ask(Node):
        note: list[Missing]
        async def __call__(self) -> None: ...
    return Ask
""")
    for ask, looked in ((made.Ask, "module nodes_made"), (made.define(), "the locals of define()")):
        for asked in (ask.successors, lambda ask=ask: ask(note=[])):
            with pytest.raises(HintError, match="the name 'Missing' cannot be resolved") as caught:
                asked()
            assert looked in str(caught.value)
        assert looked in only_problem(ask)[1]


def test_a_graph_refuses_to_run_while_a_name_is_missing(load):
    made = load("""
class First(Node):
    async def __call__(self) -> Last: ...

class Holds(Node):
    note: Later
    place: Annotated[str, Dep(lambda: "harbour")]
    async def __call__(self) -> None: ...
""")
    graph = Graph(start=made.First)
    for _ in range(2):
        with pytest.raises(ProofError, match="'Last'"):
            graph.run(made.First(), lm=ScriptedLM())
    with pytest.raises(HintError, match="'Later'"):
        made.Holds(note={"text": "a"})
    exec("class Last(Node):\n    async def __call__(self) -> None: ...", vars(made))
    exec("class Later(BaseModel):\n    text: str", vars(made))
    assert graph.validate() == []
    assert isinstance(graph.run(made.First(), lm=ScriptedLM()).result, made.Last)
    assert graph.terminal_nodes == (made.Last,)
    draft = made.Holds(note={"text": "a"})
    assert draft.model_dump() == {"note": {"text": "a"}}
    assert Graph(start=made.Holds).run(draft).result.place == "harbour"


# --- what is kept alive -----------------------------------------------------------------------


class Big:
    """Something that should not live longer than the function that made it."""


def collect() -> None:
    for forget in typing._cleanups:  # typing keeps the last annotations it has seen
        forget()
    gc.collect()


def test_locals_of_a_function_are_released_once_its_classes_are_planned(load):
    made = load("""
def define():
    big = Big()
    class Base(Node):
        note: Note | None = None
        async def __call__(self) -> Last: ...
    class First(Base):
        pass
    class Last(Node):
        async def __call__(self) -> None: ...
    class Note(BaseModel):
        text: str
    return Graph(start=First), weakref.ref(big)
""")
    made.Big, made.weakref = Big, weakref
    graph, big = made.define()
    collect()
    assert big() is not None  # its frame may still hold what the classes name
    assert graph.validate() == []
    collect()
    assert big() is None
    assert leads_to(graph.start) == ["Last"]


def test_classes_of_a_function_are_garbage_collected_after_a_run(load):
    made = load("""
def run():
    big = Big()
    async def get() -> Value:
        return Value(of=type(big).__name__)
    class First(Node):
        value: Annotated[Value, Dep(get)]
        async def __call__(self) -> Last: ...
    class Last(Node):
        first: Annotated[First, Recall()]
        async def __call__(self) -> None: ...
    class Value(BaseModel):
        of: str
    result = Graph(start=First, end=Last).run(First(), lm=ScriptedLM())
    assert result.result.first.value.of == "Big"
    return [weakref.ref(each) for each in (big, get, First, Last, result.result)]
""")
    made.Big, made.weakref = Big, weakref
    references = made.run()
    collect()
    assert [reference() for reference in references] == [None] * 5
