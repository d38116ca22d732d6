"""What `bae.Node` promises: a Pydantic model like any other, except that the fields which have a
source may be left out until the run resolves them."""

import copy
import functools
import pickle
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import pytest
from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    computed_field,
    field_validator,
    model_validator,
)

from bae import Dep, Gate, Graph, Map, Node, NodeConfig, NodeError, Recall
from bae.testing import ScriptedLM
from bounded import error_from
from end_node import EndNode, leading_to
from naming import describe_value

T = TypeVar("T")


def get_place() -> str:
    return "harbour"


def run(node: Node, **options: Any) -> Any:
    return Graph(start=type(node)).run(node, **options).result


class Trip(EndNode):
    """A node with one plain field and one that has a source."""

    who: str
    place: Annotated[str, Dep(get_place)]


# --- a model like any other -------------------------------------------------------------------


def test_a_generic_node_is_a_node_for_each_of_its_arguments():
    class Box(Node, Generic[T]):
        value: T
        place: Annotated[str, Dep(get_place)]

        async def __call__(self) -> None: ...

    assert Box[int](value="3").value == 3
    with pytest.raises(ValidationError):
        Box[int](value="three")
    assert run(Box[int](value=3)) == Box[int](value=3, place="harbour")
    assert run(Box(value="any")).place == "harbour"
    assert Box[int].is_terminal()


def test_a_subclass_may_remove_or_add_the_source_of_a_field():
    class Base(EndNode):
        one: Annotated[str, Dep(get_place)]
        two: str = "plain"

    class Sub(Base):
        one: str
        two: Annotated[str, Dep(get_place)]

    with pytest.raises(ValidationError):
        Sub()
    assert run(Sub(one="mine")) == Sub(one="mine", two="harbour")
    assert run(Base()) == Base(one="harbour", two="plain")


def test_a_node_may_write_its_own_constructor():
    class Short(EndNode):
        who: str
        place: Annotated[str, Dep(get_place)]

        def __init__(self, who: str) -> None:
            super().__init__(who=who.title())

    assert run(Short("ada")).model_dump() == {"who": "Ada", "place": "harbour"}


# --- drafts: a node without what has a source -------------------------------------------------


@pytest.mark.parametrize(
    "source", [Dep(get_place), Map(len, over="plain"), Recall(), Gate("where?")], ids=describe_value
)
def test_a_field_with_any_source_may_be_left_out(source):
    class Sourced(EndNode):
        plain: list[str]
        field: Annotated[Any, source]

    assert Sourced(plain=["a"]).model_dump() == {"plain": ["a"]}


def test_reading_an_unresolved_field_raises_an_error_that_explains_when_it_is_resolved():
    draft = Trip(who="me")
    with pytest.raises(AttributeError) as caught:
        draft.place
    assert "Trip.place has a source and is not resolved yet" in str(caught.value)
    assert "when the run calls the node" in str(caught.value)
    assert not hasattr(draft, "place")
    assert getattr(draft, "place", "unknown") == "unknown"


def test_an_explicit_value_for_a_field_with_a_source_is_validated_at_once():
    class Two(EndNode):
        one: Annotated[str, Dep(get_place)]
        two: Annotated[str, Dep(get_place)]

    for given in ({"one": 3}, {"one": 3, "two": "fine"}):
        with pytest.raises(ValidationError) as caught:
            Two(**given)
        assert [error["loc"] for error in caught.value.errors()] == [("one",)]


def test_a_draft_keeps_explicit_values_and_resolves_the_other_fields():
    class Two(EndNode):
        one: Annotated[str, Dep(get_place)]
        two: Annotated[str, Dep(get_place)]
        who: str

    draft = Two(who="me", two="given")
    assert list(draft.model_dump()) == ["two", "who"]
    assert run(draft).model_dump() == {"one": "harbour", "two": "given", "who": "me"}


def test_the_default_of_a_field_with_a_source_is_set_after_the_source_ran():
    class Fallback(EndNode):
        place: Annotated[str, Dep(get_place)] = "nowhere"
        seen: Annotated[list[bytes], Recall()] = Field(default_factory=list)

    draft = Fallback()
    assert draft.model_dump() == {}
    assert run(draft).model_dump() == {"place": "harbour", "seen": []}


def test_a_draft_compares_copies_dumps_and_prints_its_current_values():
    draft = Trip(who="me")
    assert draft == Trip(who="me")
    assert draft != Trip(who="you")
    assert draft != Trip(who="me", place="harbour") != draft
    assert repr(draft) == "Trip(who='me')"
    assert str(draft) == "who='me'"
    assert dict(draft) == draft.model_dump() == {"who": "me"}
    assert draft.model_dump_json() == '{"who":"me"}'
    for same in (draft.model_copy(), draft.model_copy(deep=True), copy.copy(draft)):
        assert same == draft
        assert same is not draft
    assert pickle.loads(pickle.dumps(draft)) == draft


def test_a_run_does_not_change_the_draft_that_it_starts_with():
    draft = Trip(who="me")
    whole = run(draft)
    assert (whole.who, whole.place) == ("me", "harbour")
    assert whole is not draft
    assert draft == Trip(who="me")
    with pytest.raises(AttributeError):
        draft.place


def test_a_default_factory_of_a_draft_is_called_once():
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    class Made(EndNode):
        number: int = Field(default_factory=make)
        place: Annotated[str, Dep(get_place)]

    draft = Made()
    assert run(draft).number == draft.number == 0
    assert made == [0]


def test_model_validate_requires_every_field():
    with pytest.raises(ValidationError) as caught:
        Trip.model_validate({"who": "me"})
    assert [error["loc"] for error in caught.value.errors()] == [("place",)]
    assert Trip.model_validate({"who": "me", "place": "here"}).place == "here"


# --- drafts and the rest of pydantic ----------------------------------------------------------


def test_aliases_name_the_fields_of_a_draft():
    class Aliased(EndNode):
        who: str = Field(alias="Who")
        place: Annotated[str, Dep(get_place)] = Field(alias="Place")

    assert Aliased(Who="me").model_dump() == {"who": "me"}
    assert run(Aliased(Who="me")).model_dump(by_alias=True) == {"Who": "me", "Place": "harbour"}
    assert run(Aliased(Who="me", Place="given")).place == "given"
    assert run(Aliased(who="me", place="given")).place == "given"
    with pytest.raises(ValidationError) as caught:
        Aliased(whom="me")
    assert [error["loc"] for error in caught.value.errors()] == [("Who",)]


def test_a_draft_keeps_extra_values_if_its_model_allows_them():
    class Open(EndNode):
        model_config = ConfigDict(extra="allow")
        who: str
        place: Annotated[str, Dep(get_place)]

    draft = Open(who="me", when="now")
    assert draft.when == "now"
    assert repr(draft) == "Open(who='me', when='now')"
    assert run(draft).model_dump() == {"who": "me", "place": "harbour", "when": "now"}
    assert draft.model_extra == {"when": "now"}


def test_a_frozen_node_can_be_changed_only_by_the_run():
    class Frozen(EndNode):
        model_config = ConfigDict(frozen=True)
        who: str
        place: Annotated[str, Dep(get_place)]

    draft = Frozen(who="me")
    for name in ("who", "place"):
        with pytest.raises(ValidationError):
            setattr(draft, name, "changed")
    whole = run(draft)
    assert hash(whole) == hash(Frozen(who="me", place="harbour"))
    with pytest.raises(ValidationError):
        whole.place = "changed"


class Noted(EndNode):
    """A node with private attributes, which a run must not lose."""

    who: str
    place: Annotated[str, Dep(get_place)]
    _visits: int = PrivateAttr(default=1)
    _log: list[str] = PrivateAttr(default_factory=list)
    _unset: str = PrivateAttr()


def test_private_attributes_of_a_draft_are_on_the_complete_node():
    draft = Noted(who="me")
    draft._visits = 2
    draft._log.append("built")
    draft._unset = "set"
    whole = run(draft)
    assert (whole._visits, whole._log, whole._unset) == (2, ["built"], "set")
    assert run(Noted(who="you"))._log == []


def test_model_post_init_runs_once_when_the_node_is_complete():
    class Counted(EndNode):
        place: Annotated[str, Dep(get_place)]
        _letters: int = 0
        seen: ClassVar[list[str]] = []

        def model_post_init(self, context: Any) -> None:
            self.seen.append(self.place)
            self._letters += len(self.place)

    draft = Counted()
    draft._letters = 100
    assert Counted.seen == []
    assert run(draft)._letters == 107
    assert Counted.seen == ["harbour"]
    assert Counted(place="here")._letters == 4


class Watched(EndNode):
    """A node that notes which of its validators ran, and on what."""

    who: str
    place: Annotated[str, Dep(get_place)]
    log: ClassVar[list[Any]] = []

    @model_validator(mode="before")
    @classmethod
    def _before(cls, data: dict[str, Any]) -> dict[str, Any]:
        cls.log.append(("before", dict(data)))
        if "whom" in data:
            data["who"] = data.pop("whom")
        return data

    @field_validator("who")
    @classmethod
    def _who(cls, who: str) -> str:
        cls.log.append(("who", who))
        return who + "!"

    @field_validator("place")
    @classmethod
    def _place(cls, place: str) -> str:
        cls.log.append(("place", place))
        return place + "?"

    @model_validator(mode="after")
    def _after(self) -> Self:
        self.log.append(("after", self.who, self.place))
        return self


@pytest.fixture
def log():
    Watched.log.clear()
    return Watched.log


def test_every_validator_of_a_draft_runs_once_as_soon_as_its_value_is_available(log):
    draft = Watched(whom="me")
    assert log == [("before", {"whom": "me"}), ("who", "me")]
    log.clear()
    whole = run(draft)
    assert log == [("place", "harbour"), ("after", "me!", "harbour?")]
    assert (whole.who, whole.place) == ("me!", "harbour?")


def test_validators_of_a_complete_node_run_as_in_any_model(log):
    node = Watched(whom="me", place="here")
    assert log.pop(0) == ("before", {"whom": "me", "place": "here"})
    assert log == [("who", "me"), ("place", "here"), ("after", "me!", "here?")]
    log.clear()
    run(node)
    assert log == []


def test_every_validator_of_a_node_that_the_llm_fills_runs_once(log):
    result = run(leading_to(Watched)(), lm=ScriptedLM([{"who": "me"}]))
    assert (result.who, result.place) == ("me!", "harbour?")


@pytest.mark.parametrize("raised", [ValueError("not to the harbour"), KeyError("harbour")])
def test_a_validator_that_refuses_the_whole_node_or_breaks_stops_the_run(raised: Exception):
    class Refused(EndNode):
        who: str
        place: Annotated[str, Dep(get_place)]

        @model_validator(mode="after")
        def _elsewhere(self) -> Self:
            raise raised

    with pytest.raises(NodeError) as caught:
        run(Refused(who="me"))
    assert caught.value.code == "bae-node-invalid"
    if isinstance(raised, ValueError):
        assert "not to the harbour" in str(caught.value)
        assert isinstance(caught.value.cause, ValidationError)
    else:
        assert "Refused: a validator raised KeyError" in str(caught.value)
        assert caught.value.cause is raised


def test_a_wrap_validator_sees_the_node_when_it_is_complete():
    class Wrapped(EndNode):
        who: str
        place: Annotated[str, Dep(get_place)]
        seen: ClassVar[list[str]] = []

        @model_validator(mode="wrap")
        @classmethod
        def _wrap(cls, data: Any, build: Any) -> Any:
            node = build(data)
            cls.seen.append(node.place)
            return node

    draft = Wrapped(who="me")
    assert Wrapped.seen == []
    run(draft)
    assert Wrapped.seen == ["harbour"]


def test_a_validator_of_a_plain_field_does_not_see_unresolved_fields():
    class Follows(EndNode):
        place: Annotated[str, Dep(get_place)]
        other: Annotated[str, Dep(get_place)]
        who: str

        @field_validator("who")
        @classmethod
        def _who(cls, who: str, info: Any) -> str:
            return f"{who} sees {sorted(info.data)}"

    assert run(Follows(who="me")).who == "me sees []"
    assert Follows(who="me", place="a", other="b").who == "me sees ['other', 'place']"


def test_a_validator_of_a_field_with_a_source_can_read_llm_fields():
    class Looks(EndNode):
        who: str
        place: Annotated[str, Dep(get_place)]

        @field_validator("place")
        @classmethod
        def _place(cls, place: str, info: Any) -> str:
            return f"{info.data['who'].title()} at the {place}"

    looks = run(leading_to(Looks)(), lm=ScriptedLM([{"who": "ada"}]))
    assert looks.place == "Ada at the harbour"


def test_a_computed_field_that_needs_a_source_is_left_out_of_a_drafts_repr():
    class Computed(EndNode):
        who: str
        secret: SecretStr = Field(default=SecretStr("x"), repr=False)
        place: Annotated[str, Dep(get_place)]

        @computed_field
        @property
        def label(self) -> str:
            return f"{self.who} at {self.place}"

    draft = Computed(who="me")
    assert repr(draft) == "Computed(who='me')"
    with pytest.raises(AttributeError, match=r"Computed\.place has a source"):
        draft.label
    whole = run(draft)
    assert repr(whole) == "Computed(who='me', place='harbour', label='me at harbour')"
    assert whole.model_dump()["label"] == "me at harbour"


def test_a_cached_property_of_a_draft_is_computed_again_when_it_is_complete():
    class Cached(EndNode):
        model_config = ConfigDict(extra="forbid")
        who: str
        place: Annotated[str, Dep(get_place)]

        @functools.cached_property
        def known(self) -> list[str]:
            return sorted(self.model_dump())

    draft = Cached(who="me")
    assert draft.known == ["who"]
    assert run(draft).known == ["place", "who"]


class Tree(EndNode):
    """A node that holds nodes of its own class."""

    name: str
    children: list["Tree"] = []
    place: Annotated[str, Dep(get_place)]

    @model_validator(mode="after")
    def _placed(self) -> Self:
        assert self.place
        return self


def test_a_node_with_fields_of_its_own_class_can_be_a_draft():
    leaf = {"name": "leaf", "place": "given"}
    draft = Tree(name="root", children=[leaf])
    assert draft.children == [Tree(name="leaf", place="given")]
    assert run(draft).model_dump() == {
        "name": "root",
        "children": [{"name": "leaf", "children": [], "place": "given"}],
        "place": "harbour",
    }
    with pytest.raises(ValidationError) as caught:
        Tree(name="root", children=[{"name": 3, "place": "given"}])
    assert [error["loc"] for error in caught.value.errors()] == [("children", 0, "name")]


# --- __call__ ---------------------------------------------------------------------------------


def _sync(self) -> None: ...


def _generator(self) -> None:
    yield


async def _async_generator(self) -> None:
    yield


@pytest.mark.parametrize("call", [_sync, _generator, _async_generator, lambda self: None])
def test_a_call_method_that_is_not_async_is_refused_with_a_fix(call):
    with pytest.raises(NodeError) as caught:
        type("Wrong", (Node,), {"__call__": call, "__module__": __name__})
    assert caught.value.code == "bae-node-sync-call"
    assert "Wrong.__call__ is not a coroutine function" in str(caught.value)
    assert "async def __call__(self)" in str(caught.value)


async def test_calling_a_node_without_a_call_method_is_an_error_with_a_fix():
    class Bare(Node):
        pass

    error = await error_from(NodeError, Bare()())
    assert error.code == "bae-node-without-call"
    assert "async def __call__(self) -> NextNode" in str(error)


# --- node_config ------------------------------------------------------------------------------


def test_a_pinned_lm_chooses_the_next_node_but_does_not_fill_it():
    pinned, passed = ScriptedLM(["Answer"]), ScriptedLM([{"text": "passed"}])

    class Ask(leading_to(leading_to(None, name="Answer", text=str), Trip)):  # type: ignore[misc]
        node_config: ClassVar[NodeConfig] = NodeConfig(lm=pinned)

    assert run(Ask(), lm=passed).text == "passed"
    assert [asked.kind for asked in pinned.asked] == ["choose_type"]
    assert [asked.kind for asked in passed.asked] == ["fill"]


def test_a_node_config_with_an_unknown_key_is_refused_at_class_definition():
    with pytest.raises(NodeError) as caught:

        class Pinned(EndNode):
            node_config = {"llm": "local"}  # type: ignore[assignment]

    assert caught.value.code == "bae-node-config"
    assert "Pinned.node_config is {'llm': 'local'}" in caught.value.message
    assert "NodeConfig(lm=" in (caught.value.fix or "")
