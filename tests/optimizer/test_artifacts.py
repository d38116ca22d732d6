"""Artifacts: learned prompts of a node class, in readable files that are refused where they do not
fit, and that improve any backend without dspy."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    BaseModel,
    Field,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)

import bae
from bae import ArtifactError, Dep, Gate, Graph, Map, Node, NodeConfig, Recall
from bae.lm import LearnedPrompt, PromptExample, WithPrompts
from bae.optimizer.artifacts import Artifact, Made, load_artifacts, save_artifacts
from bae.optimizer.node_schemas import schema_of
from toy_backend import ToyBackend


class Weather(BaseModel):
    sky: str
    degrees: float = Field(ge=-90)


class Tone(Enum):
    warm = "warm"
    dry = "dry"


def get_weather() -> Weather:
    return Weather(sky="clear", degrees=3)


class Waking(Node):
    message: str

    async def __call__(self) -> Outfit | AskBack | None: ...


class Outfit(Node):
    weather: Annotated[Weather, Dep(get_weather)]
    top: str = Field(min_length=2)
    tone: Tone
    worn_on: date | None = None
    price: Decimal = Decimal(0)

    @field_validator("top")
    @classmethod
    def is_no_hat(cls, top: str) -> str:
        if "hat" in top:
            raise ValueError("a hat is no top")
        return top

    async def __call__(self) -> None: ...


class AskBack(Node):
    question: str

    @model_validator(mode="after")
    def asks(self) -> AskBack:
        if not self.question.endswith("?"):
            raise ValueError("it asks nothing")
        return self

    async def __call__(self) -> None: ...


GRAPH = Graph(start=Waking)
KNOWN: dict[str, Any] = {
    "Waking": {"message": "früh auf — ☀"},
    "context": {"weather": {"sky": "clear", "degrees": 3.0}},
}
WORN: dict[str, Any] = {
    "top": "a blue shirt",
    "tone": "warm",
    "worn_on": "2030-01-02",
    "price": "12.50",
}


def example(known: dict[str, Any], answer: dict[str, Any]) -> PromptExample:
    return PromptExample(known=known, answer=answer)


def outfit(**changed: Any) -> Artifact:
    given = {
        "node": "Outfit",
        "schema": schema_of(Outfit),
        "fill": LearnedPrompt(instruction="Dress for the day", examples=[example(KNOWN, WORN)]),
        "made": Made(optimizer="bootstrap", seed=3, examples={"fill": 20}, score=0.75),
    }
    return Artifact(**{**given, **changed})


def waking(*choices: str) -> Artifact:
    known = {"Waking": {"message": "up"}}
    examples = [example(known, {"choice": choice}) for choice in choices or ("Outfit",)]
    return Artifact(
        node="Waking",
        schema=schema_of(Waking),
        choice=LearnedPrompt(instruction="Choose well.", examples=examples),
    )


def write_changed_artifact(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A saved artifact of Outfit with a change."""
    (file,) = save_artifacts({Outfit: outfit()}, tmp_path)
    data = json.loads(file.read_text("utf-8"))
    change(data)
    file.write_text(json.dumps(data), "utf-8")
    return file


def loading_error(tmp_path: Path, nodes: Any = GRAPH) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        load_artifacts(nodes, tmp_path)
    return caught.value


WEATHER = (
    '{"properties": {"degrees": {"minimum": -90, "type": "number"}, "sky": {"type": "string"}}, '
    '"type": "object"}'
)

# Files


def test_an_artifact_is_readable_and_deterministic(tmp_path: Path):
    files = save_artifacts({Outfit: outfit(), Waking: waking()}, tmp_path / "a" / "b")
    again = save_artifacts({Waking: waking(), Outfit: outfit()}, tmp_path / "c")

    assert [file.name for file in files] == ["Outfit.json", "Waking.json"]
    text = files[0].read_text("utf-8")
    assert text == again[1].read_text("utf-8")
    assert text.startswith('{\n  "format": "bae-artifact-1",\n  "node": "Outfit",\n  "schema": {\n')
    assert '"message": "früh auf — ☀"' in text
    assert text.endswith("}\n")
    assert not text.endswith("\n\n")
    assert "\r" not in text
    content = json.loads(text)
    assert list(content) == ["format", "node", "schema", "sources", "fill", "made"]
    assert content["sources"] == {"Waking": {"message": "string"}}
    assert content["schema"]["fields"]["weather"] == f"{WEATHER} from get_weather"
    # The order inside an example is the one that a model sees.
    assert list(content["fill"]["examples"][0]["answer"]) == ["top", "tone", "worn_on", "price"]


def test_saved_prompts_are_loaded_for_classes_with_a_file(tmp_path: Path):
    save_artifacts({Outfit: outfit(), Waking: waking("Outfit", "None")}, tmp_path)

    known = outfit(sources={"Waking": {"message": "string"}})
    both = {Outfit: known, Waking: waking("Outfit", "None")}
    assert load_artifacts(GRAPH, tmp_path) == both
    assert load_artifacts([AskBack, Outfit], tmp_path) == {Outfit: known}
    assert load_artifacts(GRAPH, tmp_path)[Outfit].made == outfit().made
    assert outfit().made.score == 0.75  # pyright: ignore


def test_a_file_of_an_earlier_version_is_loaded(tmp_path: Path):
    either = '{"anyOf": [{"type": "number"}, {"type": "string"}]}'
    day = '{"anyOf": [{"format": "date", "type": "string"}, {"type": "null"}]}'
    fields = {
        "weather": f"{WEATHER} from get_weather",
        "top": '{"minLength": 2, "type": "string"}',
        "tone": '{"enum": ["dry", "warm"], "type": "string"}',
        "worn_on": day,
        "price": either,
    }
    made = {"optimizer": "bootstrap", "seed": 3, "examples": {"fill": 20}, "score": 0.75}
    data = {
        "format": "bae-artifact-1",
        "node": "Outfit",
        "schema": {
            "hash": "43116c20bdcee351335baaac55b6e4f6",
            "fields": fields,
            "leads_to": ["None"],
        },
        "sources": {"Waking": {"message": "string"}},
        "fill": {
            "instruction": "Dress for the day",
            "examples": [{"known": KNOWN, "answer": WORN}],
        },
        "made": {**made, "model": "", "teacher": "", "notes": []},
    }
    (tmp_path / "Outfit.json").write_text(json.dumps(data), "utf-8")
    assert load_artifacts(GRAPH, tmp_path) == {Outfit: outfit(sources=data["sources"])}


def test_an_artifact_file_is_replaced_atomically(tmp_path: Path):
    (file,) = save_artifacts({Outfit: outfit()}, tmp_path)
    plain = tmp_path / "plain"
    plain.write_text("")
    save_artifacts({Outfit: outfit(made=None)}, tmp_path)

    assert load_artifacts(GRAPH, tmp_path)[Outfit].made is None
    assert sorted(os.listdir(tmp_path)) == ["Outfit.json", "plain"]
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_an_invalid_artifact_prevents_the_whole_save(tmp_path: Path):
    wrong = outfit(fill=LearnedPrompt(instruction="", examples=[example({}, {"top": 3})]))

    with pytest.raises(ArtifactError, match=r"fill\.examples\[0\]\.answer\.tone: it is missing"):
        save_artifacts({Waking: waking(), Outfit: wrong}, tmp_path)
    assert os.listdir(tmp_path) == []


def test_an_unwritable_directory_is_named_in_the_error(tmp_path: Path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ArtifactError) as caught:
        save_artifacts({Outfit: outfit()}, tmp_path / "file" / "in it")
    assert caught.value.code == "bae-artifact-invalid"
    assert str(tmp_path / "file" / "in it") in caught.value.message


def test_files_of_unknown_nodes_are_skipped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    save_artifacts({Outfit: outfit()}, tmp_path)
    (tmp_path / "Other.json").write_text("no JSON")
    (tmp_path / "notes.txt").write_text("notes")
    with caplog.at_level(logging.WARNING, "bae.optimizer"):
        assert list(load_artifacts(GRAPH, tmp_path)) == [Outfit]

    (record,) = caplog.records
    assert record.name == "bae.optimizer"
    assert "Other.json is for none of the node classes Waking, Outfit, AskBack" in record.message


def test_a_missing_directory_is_named_in_the_error(tmp_path: Path):
    error = loading_error(tmp_path / "gone")
    assert (error.code, error.file) == ("bae-artifact-missing", str(tmp_path / "gone"))
    assert "is not there" in error.message

    (tmp_path / "file").write_text("")
    assert "is no directory" in loading_error(tmp_path / "file").message


@pytest.mark.parametrize("nodes", [Outfit, [int]])
def test_objects_that_are_not_node_classes_are_refused(tmp_path: Path, nodes: Any):
    with pytest.raises(TypeError, match="load_artifacts takes a Graph, or node classes"):
        load_artifacts(nodes, tmp_path)


# Files that are none


GOOD = json.dumps({"format": "bae-artifact-1", "node": "Outfit"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x80\x04\x95K\x00.", "Invalid JSON"),
        (b"", "Invalid JSON: EOF"),
        (GOOD[:-5].encode(), "Invalid JSON: EOF"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "is no artifact: Input should be"),
        (b"{}", "is no artifact: node: Field required; schema: Field required"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_artifact_file_without_plain_json_is_refused_by_name(
    tmp_path: Path, content: bytes, said: str
):
    (tmp_path / "Outfit.json").write_bytes(content)
    error = loading_error(tmp_path)

    assert error.code == "bae-artifact-invalid"
    assert str(tmp_path / "Outfit.json") in error.message
    assert said in error.message
    assert "optimize again" in str(error)


def test_symbolic_links_and_directories_are_refused_as_artifacts(tmp_path: Path):
    (elsewhere,) = save_artifacts({Outfit: outfit()}, tmp_path / "elsewhere")
    (tmp_path / "Outfit.json").symlink_to(elsewhere)
    assert "it is a symbolic link" in loading_error(tmp_path).message

    (tmp_path / "Outfit.json").unlink()
    (tmp_path / "Outfit.json").mkdir()
    assert "Is a directory" in loading_error(tmp_path).message


def test_an_oversized_artifact_file_is_not_read(tmp_path: Path):
    with open(tmp_path / "Outfit.json", "wb") as file:
        file.truncate(64 * 1024 * 1024)  # takes no room on the disk

    assert "more than 33,554,432 bytes" in loading_error(tmp_path).message


def add(**answer: Any) -> Callable[[dict[str, Any]], None]:
    """Adds an example with something else in its answer."""
    return lambda data: data["fill"]["examples"].append(
        {"known": KNOWN, "answer": {**WORN, **answer}}
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(surprise=1), "surprise: Extra inputs are not permitted"),
        (
            lambda d: d["fill"]["examples"][0].update(more=1),
            "fill.examples.0.more: Unexpected keyword argument",
        ),
        (lambda d: d.update(format="bae-artifact-9"), "format: Input should be 'bae-artifact-1'"),
        (lambda d: d.pop("format"), "it has no format"),
        (lambda d: d["fill"].update(instruction=7), "fill.instruction: Input should be a valid"),
        (lambda d: d.update(node="AskBack"), "node: it is for AskBack, and not for Outfit"),
        (add(top="x"), "fill.examples[1].answer.top: String should have at least 2 characters"),
        (add(top="a hat"), "fill.examples[1].answer.top: Value error, a hat is no top"),
        (add(shoes=2), "fill.examples[1].answer.shoes: the LM fills only top, tone, worn_on"),
        (add(weather={}), "fill.examples[1].answer.weather: the LM fills only"),
        (
            lambda d: d["fill"]["examples"][0]["known"]["Waking"].update(old=1),
            "fill.examples[0].known.Waking.old: Waking has no such field that a model sees",
        ),
    ],
    ids=range(11),
)
def test_an_invalid_artifact_file_is_refused_with_the_faulty_place(
    tmp_path: Path, change: Any, said: str
):
    file = write_changed_artifact(tmp_path, change)
    error = loading_error(tmp_path)

    assert (error.code, error.file) == ("bae-artifact-invalid", str(file))
    assert said in error.message


def test_model_validators_of_a_node_check_examples_too(tmp_path: Path):
    def learned(question: str) -> dict[type[Node], Artifact]:
        fill = LearnedPrompt(instruction="x", examples=[example({}, {"question": question})])
        return {AskBack: Artifact(node="AskBack", schema=schema_of(AskBack), fill=fill)}

    with pytest.raises(ArtifactError, match=r"fill\.examples\[0\]\.answer\.Value error, it asks"):
        save_artifacts(learned("why"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("answer", [{"choice": "Nap"}, {}])
def test_a_saved_choice_of_a_class_that_is_not_offered_is_refused(
    tmp_path: Path, answer: dict[str, Any]
):
    (file,) = save_artifacts({Waking: waking("Outfit", "None")}, tmp_path)
    data = json.loads(file.read_text("utf-8"))
    data["choice"]["examples"][1]["answer"] = answer
    file.write_text(json.dumps(data))

    said = 'choice.examples[1].answer: it must be {"choice": …}, with one of Outfit, AskBack, None'
    assert said in loading_error(tmp_path).message


# Classes that have changed


def make_changed_outfit() -> type[Node]:
    class Outfit(Node):
        weather: Weather
        top: Literal["shirt", "jumper"]
        shoes: int = 2
        tone: Tone
        worn_on: date | None = None

        async def __call__(self) -> AskBack: ...

    return Outfit


def test_an_artifact_of_a_changed_class_is_refused_with_all_changes(tmp_path: Path):
    (file,) = save_artifacts({Outfit: outfit()}, tmp_path)
    now = make_changed_outfit()
    error = loading_error(tmp_path, [now])

    assert error.code == "bae-artifact-changed"
    assert (error.file, error.node_type) == (str(file), now)
    kind = WEATHER
    price = next(change for change in error.changes if change.startswith("price is gone (was "))
    assert error.changes == (
        f"weather was {kind} from get_weather, is {kind}",
        'top was {"minLength": 2, "type": "string"}, is {"enum": ["jumper", "shirt"], '
        '"type": "string"}',
        price,
        "shoes is new (integer)",
        "it no longer leads to None",
        "it leads to AskBack now",
    )
    assert error.message == (
        f"{file} was made for another Outfit than there is now: {'; '.join(error.changes)}"
    )
    assert error.fix == "optimize Outfit again, or delete the file to go without"


def test_an_artifact_is_refused_once_its_instruction_has_changed(tmp_path: Path):
    def classes(instruction: str, description: str) -> tuple[type[Node], type[Node]]:
        class Reply(Node):
            node_config = NodeConfig(instruction=instruction, description=description)
            text: str

            async def __call__(self) -> None: ...

        class Asked(Node):
            async def __call__(self) -> Reply | None: ...

        return Asked, Reply

    def learned(cls: type[Node], **parts: LearnedPrompt) -> Artifact:
        return Artifact(node=cls.__name__, schema=schema_of(cls), **parts)  # pyright: ignore

    prompt = LearnedPrompt(instruction="Answer well.")
    asked, reply = classes("Answer.", "an answer")
    saved = {asked: learned(asked, choice=prompt), reply: learned(reply, fill=prompt)}
    save_artifacts(saved, tmp_path)
    assert load_artifacts(classes("Answer.", "an answer"), tmp_path)
    error = loading_error(tmp_path, classes("Reply.", "a reply"))
    assert error.changes == (
        "Asked: its description of Reply was 'an answer', is 'a reply'",
        "Reply: its instruction was 'Answer.', is 'Reply.'",
    )


def test_one_error_names_all_artifact_files_that_do_not_fit(tmp_path: Path):
    def break_hash(file: Path) -> None:
        data = json.loads(file.read_text("utf-8"))
        data["schema"]["hash"] = "0" * 32
        file.write_text(json.dumps(data), "utf-8")

    saved = save_artifacts({Outfit: outfit(), Waking: waking()}, tmp_path)
    for file in saved:
        break_hash(file)
    error = loading_error(tmp_path)
    assert error.code == "bae-artifact-changed"
    assert error.message.startswith(f"2 artifacts in {tmp_path} do not fit:")
    for file in saved:
        assert f"{file} was made for another {file.stem} than there is now: its" in error.message
    why = "its hash does not match its fields"
    assert sorted(error.changes) == [f"Outfit: {why}", f"Waking: {why}"]
    assert error.file == str(tmp_path)

    (tmp_path / "Outfit.json").write_text("{")
    error = loading_error(tmp_path)
    assert error.code == "bae-artifact-invalid"
    assert "Outfit.json is no artifact" in error.message
    assert error.changes == (f"Waking: {why}",)


def test_a_saved_choice_that_code_now_makes_is_refused(tmp_path: Path):
    save_artifacts({Waking: waking()}, tmp_path)

    def now() -> type[Node]:
        class Waking(Node):
            message: str

            async def __call__(self) -> Outfit | AskBack | None:
                return AskBack(question="why?")

        return Waking

    cls = now()
    assert schema_of(cls) == schema_of(Waking)
    error = loading_error(tmp_path, [cls])
    assert error.code == "bae-artifact-changed"
    assert error.changes == ("the LM no longer chooses its successor",)


# The nodes that examples come from


def a_graph(**fields: Any) -> tuple[Graph[Any, Any], type[Node], type[Node]]:
    """A new graph of First, which has these fields, and Second."""

    class Second(Node):
        text: str

        async def __call__(self) -> None: ...

    class Origin(Node):
        async def __call__(self) -> None: ...

    Origin.__call__.__annotations__["return"] = Second
    first = create_model("First", __base__=Origin, **fields)
    return Graph(start=first), first, Second


def make_artifact_from(known: dict[str, Any], cls: type[Node]) -> Artifact:
    examples = [example(known, {"text": "hello"})]
    fill = LearnedPrompt(instruction="Second", examples=examples)
    return Artifact(node="Second", schema=schema_of(cls), fill=fill)


def test_an_artifact_is_refused_if_a_node_before_it_has_changed(
    tmp_path: Path,
):
    graph, _, second = a_graph(name=(str, ...), age=(int, ...))
    given = {second: make_artifact_from({"First": {"name": "Ada", "age": 3}}, second)}
    save_artifacts(given, tmp_path, among=graph)
    assert list(load_artifacts(graph, tmp_path)) == [second]
    described = a_graph(age=(int, Field(7, description="in years")), name=(str, ...))[0]
    assert load_artifacts(described, tmp_path)

    for fields, said in [
        ({"called": (str, ...), "age": (int, ...)}, "name is gone (was string)"),
        ({"name": (str, ...), "age": (str, ...)}, "age was integer, is string"),
        (
            {"name": (str, ...), "age": (int, ...), "home": (str, "")},
            "home is new (string)",
        ),
    ]:
        changed, *classes = a_graph(**fields)
        for nodes in (changed, classes):
            error = loading_error(tmp_path, nodes)
            assert error.code == "bae-artifact-changed"
            assert error.changes[0] == f"its examples come from First, where {said}"
            assert error.file == str(tmp_path / "Second.json")
        # Where that class is not known, nothing can be said of it.
        assert list(load_artifacts(classes[1:], tmp_path)) == classes[1:]


def test_an_artifact_with_examples_from_a_removed_edge_is_refused(
    tmp_path: Path,
):
    graph, _, second = a_graph(name=(str, ...))
    given = {second: make_artifact_from({"First": {"name": "Ada"}}, second)}
    save_artifacts(given, tmp_path, among=graph)

    error = loading_error(tmp_path, Graph(start=second))
    assert error.code == "bae-artifact-changed"
    assert error.changes == ("its examples come from First, which no longer leads to it",)


def test_an_artifact_contains_no_field_hidden_from_the_model(tmp_path: Path):
    graph, _, second = a_graph(name=(str, ...), secret=(int, Field(1, exclude=True)))
    with pytest.raises(
        ArtifactError, match=r"known\.First\.secret: First has no such field"
    ) as error:
        save_artifacts(
            {second: make_artifact_from({"First": {"secret": 1}}, second)}, tmp_path, among=graph
        )
    assert error.value.code == "bae-artifact-invalid"


def test_a_node_with_a_custom_serializer_may_be_in_examples(tmp_path: Path):
    class Gone(Node):
        text: str

        async def __call__(self) -> None: ...

    class Said(Node):
        name: str

        @model_serializer
        def say(self) -> str:
            return self.name

        async def __call__(self) -> None: ...

    Said.__call__.__annotations__["return"] = Gone
    fill = LearnedPrompt(instruction="x", examples=[example({"Said": "Ada"}, {"text": "bye"})])
    artifact = Artifact(node="Gone", schema=schema_of(Gone), fill=fill)
    save_artifacts({Gone: artifact}, tmp_path, among=Graph(start=Said))
    assert list(load_artifacts(Graph(start=Said), tmp_path)) == [Gone]


# The hash


def hash_of(top: Any, field: Any = ..., *, leads_to: Any = None, **more: Any) -> str:
    """The hash of a new class with the field `top`."""

    class Made(Node):
        async def __call__(self) -> None: ...

    if leads_to is not None:
        Made.__call__.__annotations__["return"] = leads_to
    return schema_of(create_model("Made", __base__=Made, top=(top, field), **more)).hash


TYPES: list[Any] = [
    *(str, int, float, bool, bytes, date, Tone, Weather, Literal["a"], Literal["a", "b"]),
    *(str | None, Any, list[str], set[int], dict[str, int], tuple[int, str], list[Weather]),
]


def test_a_changed_type_bound_name_source_or_successor_changes_the_hash():
    def get_top() -> str: ...
    def get_other_top() -> str: ...
    async def one_of(item: int) -> str: ...

    base: dict[str, Any] = {"numbers": (list[int], ...), "letters": (list[int], ...)}
    hashes = [hash_of(kind) for kind in TYPES]
    hashes += [
        hash_of(str, Field(min_length=3)),
        hash_of(int, Field(ge=2)),
        hash_of(list[int], Field(max_length=4)),
        hash_of(str, other=(int, ...)),
        hash_of(Annotated[str, Dep(get_top)]),
        hash_of(Annotated[str, Dep(get_other_top)]),
        hash_of(Annotated[str, Recall()]),
        hash_of(Annotated[str, Recall(AskBack)]),
        hash_of(Annotated[str, Gate("which top?")]),
        *(hash_of(str, leads_to=to) for to in (AskBack, AskBack | None, Outfit | None)),
        *(hash_of(Annotated[list[str], Map(one_of, over=over)], **base) for over in base),
    ]
    assert len(set(hashes)) == len(hashes)
    assert hashes[: len(TYPES)] == [hash_of(kind) for kind in TYPES]
    # What a person is asked, and how a function is called, is not for the model.
    assert hash_of(Annotated[str, Gate("x?")]) == hash_of(Annotated[str, Gate("y?")])
    timed = hash_of(Annotated[str, Dep(get_top, timeout=3)])
    assert timed == hash_of(Annotated[str, Dep(get_top)])


def test_descriptions_defaults_and_order_do_not_change_the_hash():
    about = Field(None, description="said", title="Top", examples=[1], deprecated=True)
    for kind in TYPES:
        assert hash_of(kind, about) == hash_of(kind)
    one = hash_of(Literal["a", "b"] | None, leads_to=Outfit | AskBack, x=(dict[str, int | str], 0))
    base = {"x": (dict[str, str | int], 0), "top": (Literal["b", "a"] | None, ...)}

    class Made(Node):
        async def __call__(self) -> None: ...

    Made.__call__.__annotations__["return"] = AskBack | Outfit
    assert schema_of(create_model("Made", __base__=Made, **base)).hash == one


def python(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(bae.__file__).parents[1]), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Classes that share a name


def other_outfit() -> type[Node]:
    class Outfit(Node):
        shoes: int

        async def __call__(self) -> None: ...

    return Outfit


Second: Any = other_outfit()


def make_artifact(cls: type[Node], instruction: str) -> Artifact:
    return Artifact(
        node=cls.__name__, schema=schema_of(cls), fill=LearnedPrompt(instruction=instruction)
    )


def test_files_of_classes_that_share_a_name_include_the_module(tmp_path: Path):
    both = {Outfit: make_artifact(Outfit, "first"), Second: make_artifact(Second, "second")}
    files = save_artifacts(both, tmp_path)

    mine = f"{__name__}.Outfit.json"
    assert [file.name for file in files] == [mine, f"{__name__}.other_outfit.Outfit.json"]
    assert load_artifacts([Second, Outfit], tmp_path) == both
    # One that is saved alone, for a graph that has both, has it too.
    (file,) = save_artifacts({Outfit: both[Outfit]}, tmp_path, among=[Second, Outfit])
    assert file.name == mine


# NodePrompts


async def test_examples_of_a_loaded_artifact_have_the_form_of_real_questions(
    tmp_path: Path,
):
    save_artifacts({Outfit: outfit(), Waking: waking("None", "AskBack")}, tmp_path)
    prompts = {cls: artifact.prompts() for cls, artifact in load_artifacts(GRAPH, tmp_path).items()}
    model = ToyBackend(lambda asked: {"choice": "Outfit"} if asked.question.types else WORN)
    result = await GRAPH.arun(Waking(message="früh auf — ☀"), WithPrompts(model, prompts))

    assert isinstance(result.result, Outfit)
    choice, fill = model.prompts
    assert [json.loads(shown.answer) for shown in choice.examples] == [
        {"choice": "None"},
        {"choice": "AskBack"},
    ]
    assert choice.text.startswith("Choose well.\n- Outfit\n")
    # The example was of this very question, so both read the same to the letter.
    assert fill.examples[0].asked == fill.text
    assert json.loads(fill.examples[0].answer) == WORN


@pytest.mark.once
def test_artifacts_are_loaded_and_used_without_dspy(tmp_path: Path):
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dspy", "optuna", "gepa", "litellm"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import bae.compiler, bae.optimizer, bae.evals
from bae import Graph, Node
from bae.compiler import create_optimized_lm
from bae.lm import LearnedPrompt
from bae.optimizer.artifacts import (Artifact, load_artifacts, save_artifacts)
from bae.optimizer.node_schemas import (schema_of)
from bae.lm.backend import Answer, Backend

class Ask(Node):
    text: str
    async def __call__(self) -> "Say": ...
class Say(Node):
    word: str
    async def __call__(self) -> None: ...
class Model(Backend):
    async def answer(self, prompt):
        return Answer(value={{"word": prompt.text.splitlines()[0]}})

graph = Graph(start=Ask, end=Say)
fill = LearnedPrompt(instruction="Say it politely")
save_artifacts({{Say: Artifact(node="Say", schema=schema_of(Say), fill=fill)}}, {str(tmp_path)!r})
assert list(load_artifacts(graph, {str(tmp_path)!r})) == [Say]
lm = create_optimized_lm(graph, {str(tmp_path)!r}, Model())
print(graph.run(Ask(text="x"), lm).result.word, lm.get_stats())
try:
    from bae.compiler import compile_graph
    compile_graph(graph)
except Exception as error:
    print(error.code)
"""
    said = python(program)
    assert said.splitlines()[0] == "Say it politely {'optimized': 1, 'naive': 0}"
    assert said.splitlines()[1:] == ["bae-lm-extra-missing"]
