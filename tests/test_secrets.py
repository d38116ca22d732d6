"""What must not be shown, found once from the types of a graph: fields that hold a secret, share a
dependency with one or may recall one, and the LM calls that may quote one."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretBytes, SecretStr

from bae import Dep, Graph, Map, Node, NodeConfig, Recall
from bae.records import Asker
from bae.secrets import Secrets, depends_on_secret, may_show, secret_fields, without_hidden_parts
from end_node import leading_to


class Account(BaseModel):
    name: str
    token: str = Field(repr=False)


@dataclasses.dataclass
class Covered:
    key: str = dataclasses.field(repr=False)


async def get_key() -> SecretStr:
    return SecretStr("k")


async def get_page(key: Annotated[SecretStr, Dep(get_key)]) -> str:
    return "page"


async def get_word() -> str:
    return "word"


def shout(word: str) -> str:
    return word.upper()


class Login(Node):
    user: str
    token: SecretStr
    keys: dict[str, list[SecretBytes | None]]
    account: Account | None = None
    covered: list[Covered]
    note: str = Field("", repr=False)

    async def __call__(self) -> Session | Open: ...


class Session(Node):
    page: Annotated[str, Dep(get_page)]
    word: Annotated[str, Dep(get_word)] = Field(repr=False)
    note: Annotated[str, Recall()] = ""

    async def __call__(self) -> Open: ...


class Open(Node):
    word: Annotated[str, Dep(get_word)]
    words: list[str]
    shouted: Annotated[list[str], Map(shout, over="words")]

    async def __call__(self) -> Plain: ...


class Plain(Node):
    text: str

    async def __call__(self) -> Plain | None: ...


graph = Graph(start=Login)


def test_secret_fields_are_found_at_any_depth_with_a_reason() -> None:
    assert secret_fields(Login) == {
        "token": "it holds a SecretStr",
        "keys": "it holds a SecretBytes",
        "account": "Account.token has repr=False",
        "covered": "Covered.key has repr=False",
        "note": "the field has repr=False",
    }
    assert secret_fields(Plain) == {}


def test_fields_that_may_get_a_secret_from_another_field_are_hidden_too() -> None:
    secrets = Secrets.of(graph)
    assert secrets.fields(Session) == {"word", "note"}  # the note may be that of Login
    assert secrets.fields(Open) == {"word"}  # made by the function behind a hidden field
    assert secrets.fields(Plain) == frozenset()
    assert Secrets([Open, Plain]).fields(Open) == frozenset()


def test_a_value_of_a_dependency_is_secret_by_its_type_or_its_field() -> None:
    secrets = Secrets.of(graph)
    assert not secrets.source(Session, "page")
    assert secrets.source(Session, "page", "(key)")
    assert secrets.source(Session, "word")
    assert secrets.source(Open, "word")
    assert not secrets.source(Open, "shouted")
    assert depends_on_secret(Session, "page")
    assert not depends_on_secret(Open, "word")


def test_only_questions_that_may_contain_a_secret_are_hidden() -> None:
    secrets = Secrets.of(graph)
    assert secrets.any
    assert secrets.asks(Asker("choice", Login))
    assert secrets.asks(Asker("fill", Open))  # Login may lead there
    assert not secrets.asks(Asker("fill", Plain))
    assert not secrets.asks(Asker("choice", Plain))
    assert secrets.asks(Asker("body", Plain))  # nobody knows what a body asks
    assert not Secrets.of(Graph(start=Plain)).any


def test_values_quoted_in_a_validation_error_are_left_out() -> None:
    secrets = Secrets.of(graph)
    assert secrets.find_field_name("token: t0ken is wrong") == "token"
    assert secrets.find_field_name("keys.s3cret: is no bytes") == "keys"
    assert secrets.find_field_name("t0ken is wrong") == "withheld"


def test_classes_are_shown_if_no_class_a_body_may_ask_for_has_a_secret() -> None:
    class Shows(Plain):
        node_config = NodeConfig(show=("text",))  # perhaps a copy of a secret

    assert not may_show([Shows])
    before = leading_to(Login)
    assert may_show([Plain])
    assert may_show([Plain], following=True)
    assert not may_show([Plain, Login])
    assert may_show([before, type(None)])
    assert not may_show([before], following=True)


def test_hidden_parts_of_a_value_are_removed() -> None:
    value: Any = {"a": [Account(name="ann", token="t"), 1], "b": (Covered("k"),)}
    plain = {"a": [1, "x"], "b": Plain(text="t")}
    assert without_hidden_parts(plain, "-") is plain
    shown = without_hidden_parts(value, "-")
    assert shown == {"a": [{"name": "ann", "token": "-"}, 1], "b": [{"key": "-"}]}
