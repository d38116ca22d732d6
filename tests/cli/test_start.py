"""What -i and --set give `bae run` for the start node is what Python code would have built of it,
and what does not fit is refused with what would."""

from __future__ import annotations

import json
import shlex
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, Field, SecretStr, Strict

from bae import BaeError, Gate, Node
from bae.cli.outcome import CommandLine
from bae.cli.start import start_node
from bae.cli.values import describe_type, example_of, read
from bae.markers import OpenGate


class Size(Enum):
    SMALL = "small"
    LARGE = "LARGE"


class Level(Enum):
    LOW = 1
    HIGH = 2


class Price(BaseModel):
    amount: Decimal = Field(alias="Amount")
    of: str | None = None
    code: str = ""


class Start(Node):
    text: str = ""
    number: int = 0
    money: Decimal = Decimal(0)
    sure: bool = False
    day: date = date(2000, 1, 1)
    key: UUID = UUID(int=0)
    size: Size = Size.SMALL
    level: Level | None = None
    color: Literal["red", "1", 1] = "red"
    perhaps: str | None = None
    either: int | str = 0
    many: list[str] = []
    unique: set[int] = set()
    prices: dict[str, Decimal] = {}
    price: Price | None = None
    secret: SecretStr = SecretStr("")
    strict_day: Annotated[date, Strict()] = date(2000, 1, 1)
    strict_sure: Annotated[bool | None, Strict()] = None
    renamed: Annotated[Decimal, Field(alias="re.named")] = Decimal(0)
    chosen: int = Field(0, validation_alias=AliasChoices("one", "other"))

    async def __call__(self) -> None: ...


def make_start(*sets: str, given: str | None = None) -> Node:
    return start_node(Start, given, sets, ask=False, command="bae run app.py")


DAY = date(2026, 11, 17)
TYPED: list[tuple[str, str, Any]] = [
    ("text", "good morning", "good morning"),
    ("text", "5", "5"),
    ("text", '"in quotes"', "in quotes"),
    ("text", "[1, 2]", "[1, 2]"),
    ("number", "5", 5),
    ("money", "0.10", Decimal("0.1")),
    ("sure", "yes", True),
    ("sure", "false", False),
    ("day", "2026-11-17", DAY),
    ("day", '"2026-11-17"', DAY),
    ("strict_day", "2026-11-17", DAY),
    ("strict_sure", " Yes", True),
    ("strict_sure", "n", False),
    ("key", str(UUID(int=5)), UUID(int=5)),
    ("size", "small", Size.SMALL),
    ("size", "large", Size.LARGE),
    ("level", "2", Level.HIGH),
    ("level", " high ", Level.HIGH),
    ("level", "null", None),
    ("color", "RED", "red"),
    ("color", "1", 1),
    ("color", '"1"', "1"),
    ("perhaps", "null", None),
    ("either", "5", 5),
    ("either", "five", "five"),
    ("many", '["a", "b"]', ["a", "b"]),
    ("unique", "[1, 2, 1]", {1, 2}),
    ("prices", '{"tea": 2.5}', {"tea": Decimal("2.5")}),
    ("price", '{"Amount": 1.5}', Price(Amount=Decimal("1.5"))),
    ("secret", "hush", SecretStr("hush")),
    ("re.named", "1.5", Decimal("1.5")),
    ("renamed", "1.5", Decimal("1.5")),
    ("other", "7", 7),
]
FIELDS = {"re.named": "renamed", "other": "chosen"}


@pytest.mark.parametrize(("name", "text", "value"), TYPED)
def test_a_typed_value_is_json_if_it_fits_the_field_and_text_otherwise(
    name: str, text: str, value: Any
):
    node = make_start(f"{name}={text}")
    assert getattr(node, FIELDS.get(name, name)) == value
    assert node.model_fields_set == {FIELDS.get(name, name)}


@given(st.text())
def test_typed_text_is_kept_unless_it_is_a_json_string(text: str) -> None:
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    assert read(Start, "text", text).value == (data if isinstance(data, str) else text)


def test_the_input_option_accepts_names_or_aliases_and_set_overrides_it() -> None:
    node = make_start("number=2", given='{"number": 1, "re.named": 0.5, "one": 3}')
    assert node == Start(number=2, **{"re.named": Decimal("0.5"), "one": 3})


@pytest.mark.parametrize("name", ["amount", "Amount"])
def test_fields_of_a_nested_model_are_set_by_name_or_alias(name: str) -> None:
    node = make_start(f"price.{name}=1.50", "price.of=tea", "price.code=0815")
    assert node == Start(price=Price(Amount=Decimal("1.50"), of="tea", code="0815"))


def test_an_object_and_its_fields_may_be_set_in_any_order() -> None:
    node = make_start("price.of=tea", 'price={"Amount": 1.50}', "price.code=12")
    assert node == Start(price=Price(Amount=Decimal("1.50"), of="tea", code="12"))


class Prices(Node):
    prices: dict[str, Decimal]

    async def __call__(self) -> None: ...


@pytest.mark.parametrize("said", ['{"tea": 0.10}', '{"prices": {"tea": 0.10}}'])
def test_the_only_start_field_may_be_an_object(said: str) -> None:
    node = start_node(Prices, said, (), ask=False, command="")
    assert repr(node) == "Prices(prices={'tea': Decimal('0.1')})"


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "start.json"
    file.write_text('{"text": "é"}', encoding="utf-8-sig")
    assert start_node(Start, f"@{file}", (), ask=False, command="") == Start(text="é")


# What is refused, and what is said instead


def refusal(given: str | None, *sets: str) -> BaeError:
    with pytest.raises(BaeError) as caught:
        make_start(*sets, given=given)
    assert caught.value.code == "bae-start-fields"
    return caught.value


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["number=1", "number=2"], "--set gives number twice"),
        (["renamed=1", "re.named=2"], "--set gives re.named twice"),
        (["price.of=a", "price.of=b"], "--set gives price.of twice"),
        (["price.off=a"], "Price has no field off"),
        (["numbr=1"], "Start has no field numbr"),
    ],
)
def test_duplicate_and_unknown_start_fields_are_refused(sets: list[str], said: str) -> None:
    assert said in refusal(None, *sets).message


@pytest.mark.parametrize(
    "said", ["many=a", "many=a, b", "many=5", "unique=1,2", "money=much", "level=3"]
)
def test_an_invalid_start_value_is_refused_with_an_example_that_works(said: str) -> None:
    fix = refusal(None, said).fix or ""
    _, example = shlex.split(fix[fix.index("--set") :])
    start_node(Start, None, [example], ask=False, command="")


def test_enum_members_are_listed_by_name_if_their_values_are_unclear() -> None:
    assert describe_type(Start.model_fields["level"].annotation) == "1 (LOW) | 2 (HIGH)"
    assert describe_type(Start.model_fields["size"].annotation) == "small | LARGE"


# Examples in commands to copy


class Asked(Node):
    token: Annotated[SecretStr, Gate("The token?")]
    either: Annotated[str | int, Gate("Which?")]
    file: Path
    anything: Any
    below: Annotated[int, Field(lt=0), Gate("How far below?")]

    async def __call__(self) -> None: ...


def test_an_example_is_never_the_name_of_a_type() -> None:
    assert example_of(Asked, "either") == "…"
    for name in ("file", "anything"):
        assert example_of(Asked, name) not in (None, "Path", "Any")


def test_a_printed_command_has_no_example_value_for_a_secret() -> None:
    assert example_of(Asked, "token") is None
    gate = OpenGate("The token?", Asked, "token", SecretStr)
    line = CommandLine("app.py", ".bae/runs.db").answer("r1", gate)
    assert line == "bae runs answer r1 Asked.token -m app.py"


def test_the_fix_for_a_missing_secret_uses_a_file() -> None:
    with pytest.raises(BaeError) as caught:
        start_node(Needed, None, (), ask=False, command="bae run app.py")
    fix = caught.value.fix or ""
    assert fix.startswith("bae run app.py --set 'user=…' -i @FILE")
    assert "--set token" not in fix


class Needed(Node):
    user: str
    token: SecretStr

    async def __call__(self) -> None: ...


def test_values_that_look_like_options_follow_two_dashes_in_a_printed_command() -> None:
    command = CommandLine("app.py", "my.db", "local")
    assert command.answer_with("r1", "Asked.below", "-5") == (
        "bae runs answer --lm local -m app.py -j my.db -- r1 Asked.below -5"
    )
    assert command.resume("-x", "--max-iters", "9") == (
        "bae runs resume --max-iters 9 --lm local -m app.py -j my.db -- -x"
    )
