"""Files with one mistake each, as a newcomer would write them: what `bae check` must say of each,
and at which line. The line that is wrong ends in `# here`. The texts of the proof are tested here;
tests of the proof itself are about which graphs have which problem."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent
from typing import Literal


@dataclass(frozen=True)
class Mistake:
    """A file, the code of its mistake, and the texts that the output must contain so that a user
    can fix it without reading the source of bae."""

    name: str
    code: str
    source: str
    said: tuple[str, ...]
    severity: Literal["error", "warning", "note", "import"] = "error"
    future: bool = True
    options: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole file."""
        first = "from __future__ import annotations\n" if self.future else ""
        return first + HEAD + dedent(self.source)

    @property
    def line(self) -> int | None:
        """The number of the line that is wrong."""
        lines = self.text.splitlines()
        return next((i for i, each in enumerate(lines, 1) if each.endswith("# here")), None)


HEAD = """
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

import bae
from bae import LM, Dep, Gate, Graph, Map, Messages, Native, Node, NodeConfig, Recall, Text
from bae import Thread, Tool, ToolCall, Tools
from bae.lm import Answer as Said, Backend, Prompt


class Answer(Node):
    text: str

    async def __call__(self) -> None: ...


def get_name() -> str:
    'Get the name.'
    return "Ana"


def double(number: int) -> int:
    'Double a number.'
    return 2 * number


class Mood(BaseModel):
    word: str


"""


def field(written: str, *, before: str = "", more: str = "") -> str:
    """A start node with one field that is wrong."""
    return f"""{dedent(before)}
class Ask(Node):
    {more or "question: str"}
    {written}  # here

    async def __call__(self) -> Answer: ...


graph = Graph(start=Ask)
"""


def route(written: str, *, before: str = "", end: str = "") -> str:
    """A start node whose way on is wrong."""
    return f"""{dedent(before)}
class Ask(Node):
    question: str

    {written}: ...  # here


graph = Graph(start=Ask{end})
"""


def later(written: str, *, asks: str = "question: str") -> str:
    """A second node with a field that is wrong."""
    return f"""
class Ask(Node):
    {asks}

    async def __call__(self) -> Wear: ...


class Wear(Node):
    {written}  # here

    async def __call__(self) -> None: ...


graph = Graph(start=Ask)
"""


def unloadable_file(
    name: str, source: str, *said: str, code: str = "bae-module-failed", future: bool = True
) -> Mistake:
    """A file that cannot even be imported."""
    return Mistake(name, code, source, said, "import", future)


ROUTES = [
    Mistake(
        "no return type",
        "bae-route-unannotated",
        route("async def __call__(self)"),
        ("Ask.__call__", "no return annotation", "write `-> NextNode`, or `-> None`"),
    ),
    Mistake(
        "returns text",
        "bae-route-not-a-node",
        route("async def __call__(self) -> Answer | str"),
        ("returns str, which is not a Node", "or None to end the run"),
    ),
    Mistake(
        "returns any node",
        "bae-route-not-a-node",
        route("async def __call__(self) -> Node"),
        ("returns Node, which is not a node class of its own",),
    ),
    Mistake(
        "two of one name",
        "bae-route-same-name",
        route(
            "async def __call__(self) -> Answer | Other",
            before="""
            def make():
                class Answer(Node):
                    async def __call__(self) -> None: ...

                return Answer


            Other = make()
            """,
        ),
        ("two classes named Answer", "rename one of them"),
    ),
    Mistake(
        "no call",
        "bae-node-without-call",
        "class Ask(Node):  # here\n    question: str\n\n\ngraph = Graph(start=Ask)\n",
        ("has no __call__", "write `async def __call__(self) -> NextNode: ...`"),
    ),
    Mistake(
        "parameter",
        "bae-node-parameter",
        route("async def __call__(self, heat: float) -> Answer"),
        ("nothing can fill its parameter heat", "make other values fields of the node"),
    ),
    Mistake(
        "loop without end",
        "bae-loop-endless",
        """
        class Draft(Node):  # here
            text: str

            async def __call__(self) -> Review: ...


        class Review(Node):
            text: Annotated[str, Recall(Draft)]
            verdict: str

            async def __call__(self) -> Draft: ...


        graph = Graph(start=Draft)
        """,
        ("Draft -> Review -> Draft", "no exit", "let one of its nodes return None"),
        "warning",
    ),
    Mistake(
        "end out of reach",
        "bae-end-unreachable",
        route("async def __call__(self) -> None", end=", end=(Ask, Answer)").replace("# here", ""),
        ("Answer", "cannot be reached from Ask", "take it out of end="),
    ),
    Mistake(
        "end that goes on",
        "bae-end-not-terminal",
        """
        class Ask(Node):  # here
            question: str

            async def __call__(self) -> Answer: ...


        graph = Graph(start=Ask, end=(Ask, Answer))
        """,
        ("no run can end there", "name where the graph ends: Answer"),
    ),
    Mistake(
        "end left out",
        "bae-end-incomplete",
        """
        class Ask(Node):  # here
            question: str

            async def __call__(self) -> Answer | None: ...


        graph = Graph(start=Ask, end=Answer)
        """,
        ("the graph can end there", "write end=(Ask, Answer)"),
    ),
    Mistake(
        "misspelt way on",
        "bae-hint-unresolved",
        route("async def __call__(self) -> Anser"),
        ("Ask.__call__", "'Anser' cannot be resolved", "did you mean Answer?"),
    ),
    Mistake(
        "no type at all",
        "bae-hint-unresolved",
        route("async def __call__(self) -> Answer[int]"),
        ("cannot be evaluated: TypeError", "write a type that exists"),
    ),
    Mistake(
        "LM of no name",
        "bae-lm-type",
        """
        class Ask(Node):  # here
            node_config = NodeConfig(lm="clade-cli")
            question: str

            async def __call__(self) -> Answer: ...


        graph = Graph(start=Ask)
        """,
        ("there is no LM named 'clade-cli'", "did you mean 'claude-cli'?"),
    ),
    Mistake(
        "LM that is none",
        "bae-lm-type",
        """
        class Ask(Node):  # here
            node_config = NodeConfig(lm=3)
            question: str

            async def __call__(self) -> Answer: ...


        graph = Graph(start=Ask)
        """,
        ("lm=3 is no LM", 'pass a name such as lm="local"'),
    ),
    Mistake(
        "shown field that is none",
        "bae-show-unknown",
        """
        class Ask(Node):  # here
            node_config = NodeConfig(show=("quesion",))
            question: str

            async def __call__(self) -> Answer: ...


        graph = Graph(start=Ask)
        """,
        ("NodeConfig(show=…) names quesion", "name its fields: question"),
    ),
]
FIELDS = [
    Mistake(
        "misspelt type",
        "bae-hint-unresolved",
        field("mood: Moood"),
        ("Ask.mood", "'Moood' cannot be resolved", "did you mean Mood?"),
    ),
    Mistake(
        "imported for checkers",
        "bae-hint-unresolved",
        field(
            "price: Decimal",
            before="""
            from typing import TYPE_CHECKING

            if TYPE_CHECKING:
                from decimal import Decimal

            """,
        ),
        ("Ask.price", "'Decimal'", "an import under `if TYPE_CHECKING:` is not there at run time"),
    ),
    Mistake(
        "two sources",
        "bae-field-sources",
        field("name: Annotated[str, Dep(get_name), Recall()]"),
        ("has Dep and Recall", "keep one"),
    ),
    Mistake(
        "without parentheses",
        "bae-field-bare",
        later("again: Annotated[str, Recall]"),
        ("the class Recall as a marker", "write Recall(…) with its parentheses"),
    ),
    Mistake(
        "source as default",
        "bae-field-default",
        field("name: str = Dep(get_name)"),
        ("has a Dep as its default", "Annotated[…, Dep(…)]"),
    ),
    Mistake(
        "source inside the type",
        "bae-field-buried",
        field("name: Annotated[str, Dep(get_name)] | None"),
        ("inside its type", "put Annotated outermost"),
    ),
    Mistake(
        "source in a model",
        "bae-field-buried",
        field(
            "inner: Inner",
            before="""
            class Inner(BaseModel):
                name: Annotated[str, Dep(get_name)]


            """,
        ),
        ("Inner.name has a source", "Inner is not a Node", "make Inner a Node"),
    ),
    Mistake(
        "nothing JSON can say",
        "bae-field-no-schema",
        "class Line:\n    pass\n\n" + later("line: Line"),
        ("the LM is to fill it, but Line has no JSON schema\n", "Annotated[…, Dep(…)]"),
    ),
    Mistake(
        "recall at the start",
        "bae-recall-start",
        field("mood: Annotated[Mood, Recall()]"),
        ("there is no trace before it", "have the caller give the value, or use Dep"),
    ),
    Mistake(
        "recall of nothing",
        "bae-recall-path",
        later("mood: Annotated[Mood, Recall()]"),
        ("no Mood on the path Ask -> Wear", "fill a Mood before Wear"),
    ),
    Mistake(
        "recall of a number",
        "bae-recall-path",
        later("size: Annotated[int, Recall()]"),
        ("no int on the path", "fill an int before Wear"),
    ),
    Mistake(
        "recall of a dep",
        "bae-recall-path",
        later("name: Annotated[str, Recall()]", asks="name: Annotated[str, Dep(get_name)]"),
        ("Ask.name is one, but comes from Dep, which Recall skips", "use the same Dep here"),
    ),
    Mistake(
        "recall that may fail",
        "bae-recall-unsure",
        later("mood: Annotated[Mood, Recall()]", asks="mood: Mood | int"),
        ("may find no Mood", "hold nothing but a Mood there"),
        "warning",
    ),
    Mistake(
        "recall of one of two",
        "bae-recall-ambiguous",
        later("mood: Annotated[Mood, Recall()]", asks="before: Mood\n    after: Mood"),
        ("Ask holds a Mood in before, after; before is taken", "name the field like"),
        "warning",
    ),
    Mistake(
        "approval of what nobody has seen",
        "bae-gate-before-fill",
        later("euros: int\n    approved: Annotated[bool, Gate('Send the money?')]"),
        (
            "Wear.approved",
            "asked before the LM fills euros, so the person does not see it",
            "put the gate on a node after Wear, one that shows euros",
        ),
        "warning",
    ),
]
CALLS = [
    Mistake(
        "dep of another type",
        "bae-dep-type",
        field("number: Annotated[int, Dep(get_name)]"),
        ("is int, but get_name returns str", "declare the field str"),
    ),
    Mistake(
        "dep of a dep of another type",
        "bae-dep-type",
        field(
            "number: Annotated[int, Dep(count)]",
            before="""
            def count(name: Annotated[int, Dep(get_name)]) -> int:
                return name


            """,
        ),
        ("count(name) takes int, but get_name returns str", "annotate the parameter str"),
    ),
    Mistake(
        "dep that does not say",
        "bae-dep-unannotated",
        field("number: Annotated[int, Dep(count)]", before="def count():\n    return 1\n\n"),
        ("count has no return annotation", "write `def count(…) -> int`"),
    ),
    Mistake(
        "async dep that does not say",
        "bae-dep-unannotated",
        field("number: Annotated[int, Dep(count)]", before="async def count():\n    return 1\n\n"),
        ("count has no return annotation", "write `async def count(…) -> int`"),
    ),
    Mistake(
        "dep that cannot say",
        "bae-dep-unannotated",
        field("number: Annotated[int, Dep(lambda: 1)]"),
        ("<lambda> has no return annotation", "give Dep a function with a return annotation"),
        "warning",
    ),
    Mistake(
        "dep of nothing",
        "bae-dep-nothing",
        field("number: Annotated[int, Dep()]"),
        ("Dep() names nothing to call", "give Dep a function, a Graph or a Node class"),
    ),
    Mistake(
        "dep with a parameter",
        "bae-dep-unfilled",
        field(
            "number: Annotated[int, Dep(count)]",
            before="def count(city: str) -> int:\n    return 1\n\n",
        ),
        (
            "nothing can fill the parameter city of count",
            "annotate city Annotated[…, Dep(…)] or LM",
        ),
    ),
    Mistake(
        "dep that wants a field",
        "bae-dep-unfilled",
        field(
            "number: Annotated[int, Dep(count)]",
            before="def count(question: str) -> int:\n    return 1\n\n",
        ),
        (
            "the parameter question of count",
            'bind it to a field of the node, Dep(count, question="…")',
            "a value of the trace, Dep(count, question=Recall(…))",
        ),
    ),
    Mistake(
        "gate in a function",
        "bae-dep-unfilled",
        field(
            "number: Annotated[int, Dep(count)]",
            before="def count(mood: Annotated[str, Gate('How?')]) -> int:\n    return 1\n\n",
        ),
        ("count(mood) is annotated Gate", "put the Gate on a field of the node"),
    ),
    Mistake(
        "bound to no field",
        "bae-dep-binding",
        field(
            'number: Annotated[int, Dep(count, city="town")]',
            before="def count(city: str) -> int:\n    return 1\n\n",
        ),
        ("the field 'town'", "it has: question", "name a field of the same node"),
    ),
    Mistake(
        "app that needs a run",
        "bae-dep-scope",
        field(
            'number: Annotated[int, Dep(count, scope="app")]',
            before="""
            def count(name: Annotated[str, Dep(get_name)]) -> int:
                return 1


            """,
        ),
        ("parameter name is made for each run by get_name", 'write Dep(get_name, scope="app")'),
    ),
    Mistake(
        "text beside another",
        "bae-text-not-alone",
        later("body: Annotated[str, Text()]", asks="question: str").replace(
            "    body", "    title: str\n    body"
        ),
        ("cannot fill other fields of the node: title", "give title a source"),
    ),
    Mistake(
        "turns of another type",
        "bae-thread-type",
        later("history: Annotated[list[str], Thread()]"),
        ("is list[str], and Thread gives it Messages", "Annotated[Messages, Thread()]"),
    ),
    Mistake(
        "turns twice",
        "bae-thread-twice",
        later("history: Annotated[Messages, Thread()]").replace(
            "    history", "    newest: Annotated[Messages, Thread(1)]\n    history"
        ),
        ("a second field with Thread", "keep one of them"),
    ),
    Mistake(
        "turns without a source",
        "bae-thread-missing",
        later("history: Messages"),
        ("the LM would invent earlier turns", "write Annotated[Messages, Thread()]"),
    ),
    Mistake(
        "the text of an unknown field",
        "bae-text-unknown",
        """
        class Ask(Node):  # here
            node_config = NodeConfig(text="quesion")
            question: str

            async def __call__(self) -> Answer: ...


        graph = Graph(start=Ask)
        """,
        ("NodeConfig(text='quesion') names no field of it", "name one of its fields: question"),
    ),
    Mistake(
        "text of another type",
        "bae-text-type",
        later("body: Annotated[Mood, Text()]"),
        ("is Mood, but the answer of the LM is a str", "give Text a function that returns Mood"),
    ),
    Mistake(
        "text that is not parsed",
        "bae-text-parse",
        "def parse() -> str:\n    return ''\n\n" + later("body: Annotated[str, Text(parse)]"),
        ("parse cannot parse the answer", "write `def parse(text: str) -> str`"),
    ),
    Mistake(
        "tools without one",
        "bae-tools-none",
        later("calls: Annotated[list[ToolCall], Tools()]"),
        ("Wear.calls", "names no tool", "give it a function: Tools(search)"),
    ),
    Mistake(
        "function before a round that takes nothing",
        "bae-tools-before-round",
        later("calls: Annotated[list[ToolCall], Tools(double, before_round=get_name)]"),
        ("before_round=get_name must take a ToolProgress",),
    ),
    Mistake(
        "tools on the start node",
        "bae-tools-start",
        field("calls: Annotated[list[ToolCall], Tools(double)]"),
        ("Ask.calls", "no LM calls the tools", "put the field on the next node"),
    ),
    Mistake(
        "tools in a field of another type",
        "bae-tools-type",
        later("calls: Annotated[list[str], Tools(double)]"),
        ("is list[str], but Tools makes a list[ToolCall]", "declare the field list[ToolCall]"),
    ),
    Mistake(
        "two fields with tools",
        "bae-tools-twice",
        later("more: Annotated[list[ToolCall], Tools(get_name)]").replace(
            "    more", "    calls: Annotated[list[ToolCall], Tools(double)]\n    more"
        ),
        ("a second field with Tools", "put all tools into one field"),
    ),
    Mistake(
        "two tools of one name",
        "bae-tool-same-name",
        later('calls: Annotated[list[ToolCall], Tools(double, Tool(get_name, name="double"))]'),
        ("two tools named double", 'rename one: Tool(double, name="…")'),
    ),
    Mistake(
        "tool whose name no provider takes",
        "bae-tool-name",
        later("calls: Annotated[list[ToolCall], Tools(lambda: 1)]"),
        ("the tool '<lambda>' has a name that providers refuse", 'Tool(<lambda>, name="…")'),
    ),
    Mistake(
        "approval that depends on what the tool does not get",
        "bae-tool-approve",
        later("calls: Annotated[list[ToolCall], Tools(Tool(double, approve=lambda sum: True))]"),
        ("takes sum, and the model gives double", "name its parameters as those of the tool"),
    ),
    Mistake(
        "approval of a call with a secret",
        "bae-tool-secret",
        "from pydantic import SecretStr\n\ndef log_in(token: SecretStr) -> str:\n    'Log in.'\n"
        "    return ''\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(Tool(log_in, approve=True))]"),
        ("a person approves log_in, and no journal stores token", "have bae fill the secret"),
        severity="warning",
    ),
    Mistake(
        "question to a person for a secret",
        "bae-ask-secret",
        "from pydantic import SecretStr\n\nfrom bae import Ask as Person\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(Person(SecretStr))]"),
        ("Ask(SecretStr) asks for a secret, which the LM would read", "ask at a Gate"),
    ),
    Mistake(
        "tool with a parameter without a type",
        "bae-tool-unannotated",
        "def find(query) -> str:\n    return query\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(find)]"),
        ("find(query) has no type, so the model is not told what to give", "query: str"),
    ),
    Mistake(
        "tool that says nothing about itself",
        "bae-tool-undescribed",
        "def find(query: str) -> str:\n    return query\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(find)]"),
        ("find has no docstring, so the model is told the name alone", 'description="…"'),
        "warning",
    ),
    Mistake(
        "tool with a type that JSON cannot express",
        "bae-tool-no-schema",
        "class Shop: ...\n\ndef find(shop: Shop) -> str:\n    'Find.'\n    return ''\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(find)]"),
        ("the model is to give shop: Shop, which has no JSON schema", "Annotated[…, Dep(…)]"),
    ),
    Mistake(
        "question to a person of a type that JSON cannot express",
        "bae-tool-no-schema",
        "class Shop: ...\n\n" + later("calls: Annotated[list[ToolCall], Tools(bae.Ask(Shop))]"),
        ("Ask(Shop) has no JSON schema, so nobody can answer it", "use what JSON can express"),
    ),
    Mistake(
        "tool that returns what JSON cannot express",
        "bae-tool-result",
        "class Shop: ...\n\ndef find(query: str) -> Shop:\n    'Find.'\n    return Shop()\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(find)]"),
        ("find returns Shop, which JSON cannot express", "return text, numbers, lists"),
        "warning",
    ),
    Mistake(
        "tool that takes an image",
        "bae-file-filled",
        "def find(image: bae.Image) -> str:\n    'Find.'\n    return ''\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(find)]"),
        ("find(image) is Image, and no model gives a file", "take a name"),
    ),
    Mistake(
        "image that the LM is to fill",
        "bae-file-filled",
        later("drawing: bae.Image"),
        ("the LM fills it, and no model gives a file", "have code make the Image"),
    ),
    Mistake(
        "LM that takes no images",
        "bae-lm-files",
        """
        class Mute(Backend):
            model = "mute"

            async def answer(self, prompt: Prompt) -> Said:
                return Said()


        class Ask(Node):
            photo: bae.Image  # here

            async def __call__(self) -> Wear: ...


        class Wear(Node):
            node_config = NodeConfig(lm=Mute())
            text: str

            async def __call__(self) -> None: ...


        graph = Graph(start=Ask)
        """,
        ("takes no images, and is to see Ask.photo", "use a model that takes images"),
    ),
    Mistake(
        "bytes that the LM sees",
        "bae-bytes-shown",
        later("data: bytes"),
        ("an LM sees it, and would read the bytes as text", "declare it Image or Document"),
    ),
    Mistake(
        "tool that is a method of a class",
        "bae-tool-unannotated",
        "class Shop:\n    def find(self, query: str) -> str:\n        return query\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(Shop.find)]"),
        ("find is a method of a class, and has no object", "Tools(client.find)"),
    ),
    Mistake(
        "tool that is a generator",
        "bae-tool-kind",
        "def find(query: str):\n    yield query\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(find)]"),
        ("the tool find is a generator", "return the value from find"),
    ),
    Mistake(
        "tool whose parameters are all filled",
        "bae-tool-hidden",
        "def find(query: Annotated[str, Dep(get_name)]) -> str:\n    'Find.'\n    return query\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(find)]"),
        ("the model gives find nothing: bae fills all of its parameters, query", "description="),
        "warning",
    ),
    Mistake(
        "tool whose parameters are not named",
        "bae-tool-hidden",
        "def find(*words: str) -> str:\n    'Find.'\n    return ''\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(find)]"),
        ("the model gives find nothing: *words: 'str' is not shown to it", "leave a parameter"),
        "warning",
    ),
    Mistake(
        "function that accepts nothing",
        "bae-tools-accept",
        later("calls: Annotated[list[ToolCall], Tools(double, accept=get_name)]"),
        ("accept=get_name must take the filled Wear", "write `def get_name("),
    ),
    Mistake(
        "function that accepts with an LM",
        "bae-tools-accept",
        "def judge(wear: Wear, lm: bae.LM) -> None: ...\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(double, accept=judge)]"),
        ("accept=judge takes an LM, but gets none", "a node that the LM fills"),
    ),
    Mistake(
        "function that accepts something else",
        "bae-tools-accept",
        later("calls: Annotated[list[ToolCall], Tools(get_name, accept=double)]"),
        ("accept=double takes int, and not Wear", "annotate its parameter Wear"),
    ),
    Mistake(
        "tools on the start node",
        "bae-tools-start",
        field("calls: Annotated[list[ToolCall], Tools(double)]"),
        ("is on the start node, which the caller fills", "put the field on the next node"),
    ),
    Mistake(
        "approval of arguments that the tool does not have",
        "bae-tool-approve",
        later("calls: Annotated[list[ToolCall], Tools(Tool(double, approve=lambda amount: True))]"),
        ("approve=…) takes amount, and the model gives double number", "name its parameters"),
    ),
    Mistake(
        "question to a person for a secret",
        "bae-ask-secret",
        "from pydantic import SecretStr\n\n"
        + later("calls: Annotated[list[ToolCall], Tools(bae.Ask(SecretStr))]"),
        ("Ask(SecretStr) asks for a secret, which the LM would read", "ask at a Gate"),
    ),
    Mistake(
        "tool that the model of the node does not have",
        "bae-tool-native",
        """
class Mute(Backend):
    async def answer(self, prompt: Prompt) -> Said:
        return Said()


"""
        + later('calls: Annotated[list[ToolCall], Tools(Native("web_search"))]').replace(
            "class Wear(Node):", "class Wear(Node):\n    node_config = NodeConfig(lm=Mute())"
        ),
        ("has no tool web_search of its own; it has: none", "use a model that has it"),
    ),
    Mistake(
        "tools for an LM that calls none",
        "bae-tools-lm",
        """
class Mute:
    async def make(self, node: Any, target: Any) -> Any: ...
    async def decide(self, node: Any) -> Any: ...
    async def choose_type(self, types: Any, context: Any) -> Any: ...
    async def fill(self, target: Any, resolved: Any, instruction: str, source: Any) -> Any: ...


"""
        + later("calls: Annotated[list[ToolCall], Tools(double)]").replace(
            "class Wear(Node):", "class Wear(Node):\n    node_config = NodeConfig(lm=Mute())"
        ),
        ("Mute has only the four methods of an LM", "make Mute a bae.lm.Backend"),
    ),
    Mistake(
        "graph that wants a field",
        "bae-dep-unfilled",
        field(
            "told: Annotated[Answer, Dep(Sub)]",
            before="""
            class Sub(Node):
                topic: str

                async def __call__(self) -> Answer: ...


            """,
        ),
        ("nothing can fill the field topic of the start node", "bind it to a field of the node"),
    ),
    Mistake(
        "misspelt in a function",
        "bae-hint-unresolved",
        field(
            "number: Annotated[int, Dep(count)]",
            before="def count() -> Nmber:\n    return 1\n\n",
        ),
        ("count: the name 'Nmber' cannot be resolved",),
    ),
    Mistake(
        "functions in a circle",
        "bae-dep-cycle",
        field(
            "egg: Annotated[str, Dep(lay)]",
            before="""
            def lay(hen: Annotated[str, Dep(hatch)]) -> str:
                return "egg"


            def hatch(egg: Annotated[str, Dep(lay)]) -> str:
                return "hen"


            """,
        ),
        ("wait for each other: lay -> hatch -> lay", "break the circle"),
    ),
    Mistake(
        "functions in a chain that is too long",
        "bae-dep-depth",
        field(
            "name: Annotated[str, Dep(last)]",
            before="""
            def first() -> str:
                return "a"


            def after(step):
                def last(name):
                    return name

                last.__annotations__ = {"name": Annotated[str, Dep(step)], "return": str}
                return last


            last = first
            for _ in range(300):
                last = after(last)


            """,
        ),
        ("dependencies wait for each other, but at most 100 may", "make the chain shorter"),
    ),
    Mistake(
        "graph in itself",
        "bae-dep-cycle",
        """
        class Ask(Node):
            async def __call__(self) -> Again: ...


        class Again(Node):
            '''A node.

            Attributes:
                more: what is asked for again
            '''

            more: Annotated[Answer, Dep(Ask)]  # here

            async def __call__(self) -> Answer: ...


        graph = Graph(start=Ask)
        """,
        ("the graph is a dependency of itself", "a graph cannot wait for its own result"),
    ),
    Mistake(
        "options that differ",
        "bae-dep-options",
        field(
            "again: Annotated[str, Dep(get_name)]",
            more="name: Annotated[str, Dep(get_name, timeout=5)]",
        ),
        ("get_name with other options than Ask.name", "give both the same options"),
        "warning",
    ),
    Mistake(
        "map over nothing",
        "bae-map-over",
        field(
            'doubled: Annotated[list[int], Map(double, over="number")]', more="numbers: list[int]"
        ),
        ("maps over 'number', and Ask has no such field (it has: numbers)",),
    ),
    Mistake(
        "map over one",
        "bae-map-over",
        field('doubled: Annotated[list[int], Map(double, over="number")]', more="number: int"),
        ("which is int and no list", "declare number a list"),
    ),
    Mistake(
        "map over itself",
        "bae-map-over",
        field('doubled: Annotated[list[int], Map(double, over="doubled")]'),
        ("maps over itself",),
    ),
    Mistake(
        "map of other items",
        "bae-map-item",
        field('doubled: Annotated[list[int], Map(double, over="words")]', more="words: list[str]"),
        ("double(number) takes int, but the items are str", "annotate number as str"),
    ),
    Mistake(
        "map of two parameters",
        "bae-map-item",
        field(
            'sums: Annotated[list[int], Map(add, over="numbers")]',
            more="numbers: list[int]",
            before="def add(one: int, other: int) -> int:\n    return one + other\n\n",
        ),
        ("its free parameters are: one, other", "leave exactly one"),
    ),
    Mistake(
        "map into one",
        "bae-dep-type",
        field('doubled: Annotated[int, Map(double, over="numbers")]', more="numbers: list[int]"),
        ("Map makes a list of what double returns", "declare the field list[int]"),
    ),
]
DURABLE = [
    Mistake(
        "nothing a journal can hold",
        "bae-journal-field",
        "class Line:\n    pass\n\n" + field("line: Line"),
        ("a journal cannot keep it", "make it a Dep"),
        options=("--durable",),
    ),
    Mistake(
        "made anew",
        "bae-journal-live",
        "class Line:\n    pass\n\n\ndef dial() -> Line:\n    return Line()\n\n"
        + field("line: Annotated[Line, Dep(dial)]"),
        ("it is made again when a run is resumed",),
        "note",
        options=("--durable",),
    ),
    Mistake(
        "a secret",
        "bae-journal-withheld",
        "from pydantic import SecretStr\n\n" + field("token: SecretStr"),
        ("a journal does not write it", "resume(given={…})"),
        "note",
        options=("--durable",),
    ),
]
IMPORTS = [
    unloadable_file(
        "sync body",
        "class Ask(Node):  # here\n    def __call__(self) -> Answer: ...\n",
        "Ask.__call__ is not a coroutine function",
        "write `async def __call__(self) -> …`",
        code="bae-node-sync-call",
    ),
    unloadable_file(
        "config that is none",
        'class Ask(Node):  # here\n    node_config = {"llm": "local"}\n',
        "not a NodeConfig",
        'write `node_config = NodeConfig(lm="…")`',
        code="bae-node-config",
    ),
    unloadable_file(
        "syntax", "class Ask(Node)  # here\n    question: str\n", "SyntaxError", "expected ':'"
    ),
    unloadable_file(
        "node for a class",
        'graph = Graph(start=Answer(text=""))  # here\n',
        "Graph takes Node classes, not Answer(text=''): give the class, Answer",
    ),
    unloadable_file(
        "model for a node class",
        "graph = Graph(start=Mood)  # here\n",
        "Mood is a BaseModel; make it a Node: class Mood(Node)",
    ),
    unloadable_file(
        "dep that was called",
        """
        async def ask_name() -> str:
            return "Ana"


        class Ask(Node):  # here
            name: Annotated[str, Dep(ask_name())]
        """,
        "Dep(ask_name(…)): give the function itself: Dep(ask_name)",
    ),
    unloadable_file(
        "no annotation",
        'class Ask(Node):  # here\n    question = ""\n',
        "A non-annotated attribute was detected: `question = ''`",
    ),
    unloadable_file(
        "bound that is none",
        'class Ask(Node):  # here\n    number: int = Field(gt="a")\n',
        "'gt' must be coercible to an integer",
    ),
    unloadable_file(
        "program that ends",
        "import sys\n\nsys.exit(3)  # here\n",
        'put what runs the program under if __name__ == "__main__":',
    ),
    unloadable_file(
        "no graph",
        "class Ask(Node):\n    async def __call__(self) -> Answer: ...\n",
        "neither `graph` nor `create_graph()`",
        "write graph = Graph(start=YourFirstNode)",
        code="bae-module-no-graph",
    ),
    unloadable_file(
        "graph of another name",
        "refunds = Graph(start=Answer)\n",
        "neither `graph` nor `create_graph()`",
        "name a graph or a first node: app.py:refunds",
        code="bae-module-no-graph",
    ),
]
BEFORE_3_14 = [
    unloadable_file(
        "class further down",
        """
        class Ask(Node):
            async def __call__(self) -> Later: ...  # here


        class Later(Node):
            async def __call__(self) -> None: ...


        graph = Graph(start=Ask)
        """,
        "name 'Later' is not defined",
        "write `from __future__ import annotations`",
        future=False,
    ),
    unloadable_file(
        "name that is nowhere",
        "def get() -> Nowhere:  # here\n    return 1\n",
        "name 'Nowhere' is not defined",
        "define Nowhere",
        future=False,
    ),
    unloadable_file(
        "dep that is text",
        'class Ask(Node):\n    name: Annotated[str, Dep("get_name")]  # here\n',
        "Dep('get_name'): give it something to call: a function",
        future=False,
    ),
    unloadable_file(
        "gate without a question",
        "class Ask(Node):\n    fine: Annotated[bool, Gate()]  # here\n",
        "missing 1 required positional argument: 'question'",
        future=False,
    ),
]
"""Until Python 3.14 annotations are evaluated where they stand, and from then on when asked for."""
