"""What -i and --set give `bae run` for the start node is what Python code would have built of it:
to the last digit, whatever the types of its fields are."""

from __future__ import annotations

import json
import re
import shlex
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    Strict,
    ValidationInfo,
    field_validator,
)

from bae import BaeError, Gate, Node
from bae.cli.outcome import CommandLine
from bae.cli.start import start_node
from bae.cli.values import example_of, read, wanted
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
    rate: float = 1.0


class Parts(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    prices: list[Price] = []
    share: Decimal | None = Field(None, alias="Share")


class Start(Node):
    text: str = ""
    number: int = 0
    real: float = 0.0
    money: Decimal = Decimal(0)
    sure: bool = False
    day: date = date(2000, 1, 1)
    moment: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    hour: time = time(0)
    key: UUID = UUID(int=0)
    size: Size = Size.SMALL
    level: Level | None = None
    colour: Literal["red", "RED", "1", 1, True] = "red"
    perhaps: str | None = None
    either: int | str = 0
    several: float | str | bool | None = None
    wide: Decimal | float | None = None
    many: list[str] = []
    amounts: list[Decimal] = []
    pair: tuple[int, Decimal] | None = None
    unique: set[int] = set()
    named: dict[str, float | None] = {}
    prices: dict[str, Decimal] = {}
    days: dict[date, int] = {}
    parts: Parts | None = None
    price: Price | None = None
    secret: SecretStr = SecretStr("")
    short: Annotated[str, Field(max_length=5)] = ""
    positive: Annotated[Decimal, Field(gt=0, max_digits=30)] = Decimal(1)
    strict_day: Annotated[date, Strict()] = date(2000, 1, 1)
    strict_money: Annotated[Decimal, Strict()] = Decimal(0)
    strict_real: Annotated[float, Strict()] = 0.0
    renamed: Annotated[Decimal, Field(alias="re.named")] = Decimal(0)
    chosen: int = Field(0, validation_alias=AliasChoices("one", "other"))
    checked: Decimal = Decimal(0)

    @field_validator("checked")
    @classmethod
    def _checked(cls, value: Decimal, info: ValidationInfo) -> Decimal:
        assert "text" in info.data
        return value

    async def __call__(self) -> None: ...


NAMES = {"renamed": "re.named", "chosen": "other"}
"""What JSON and code call a field, where that is not its name."""


def decimals() -> st.SearchStrategy[Decimal]:
    """Those that a float holds: JSON has no more digits."""
    return st.integers(-(10**9), 10**9).map(lambda each: Decimal(each) / 1000)


def without_fold(moment: Any) -> Any:
    """ISO 8601 has nothing for it."""
    return moment.replace(fold=0)


INTS = st.integers(-(2**70), 2**70)
REALS = st.floats(allow_nan=False, allow_infinity=False)
PRICES = st.builds(
    lambda amount, of, rate: Price(Amount=amount, of=of, rate=rate),
    decimals(),
    st.none() | st.text(max_size=4),
    REALS,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(),
    "number": INTS,
    "real": REALS,
    "money": decimals(),
    "sure": st.booleans(),
    "day": st.dates(),
    "moment": st.datetimes(timezones=st.just(UTC)).map(without_fold),
    "hour": st.times().map(without_fold),
    "key": st.uuids(),
    "size": st.sampled_from(Size),
    "level": st.none() | st.sampled_from(Level),
    "colour": st.sampled_from(["red", "RED", "1", 1]),
    "perhaps": st.none() | st.text(),
    "either": INTS | st.text(),
    "several": st.none() | st.booleans() | REALS | st.text(),
    "wide": st.none() | REALS,
    "many": st.lists(st.text(max_size=5), max_size=3),
    "amounts": st.lists(decimals(), max_size=4),
    "pair": st.none() | st.tuples(INTS, decimals()),
    "unique": st.sets(INTS, max_size=3),
    "named": st.dictionaries(st.text(max_size=4), st.none() | REALS, max_size=3),
    "prices": st.dictionaries(st.text(max_size=4), decimals(), max_size=3),
    "days": st.dictionaries(st.dates(), INTS, max_size=2),
    "parts": st.none()
    | st.builds(Parts, prices=st.lists(PRICES, max_size=2), share=st.none() | decimals()),
    "price": st.none() | PRICES,
    "secret": st.text().map(SecretStr),
    "short": st.text(max_size=5),
    "positive": st.integers(1, 10**9).map(lambda each: Decimal(each) / 1000),
    "strict_day": st.dates(),
    "strict_money": decimals(),
    "strict_real": REALS,
    "renamed": decimals(),
    "chosen": INTS,
    "checked": decimals(),
}


def told(value: Any) -> str:
    """A value as JSON, with Decimals as numbers."""
    match value:
        case Decimal():
            return str(value)
        case SecretStr():
            return told(value.get_secret_value())
        case Enum():
            return told(value.value)
        case BaseModel():
            return told(
                {info.alias or n: getattr(value, n) for n, info in type(value).model_fields.items()}
            )
        case dict():
            inside = (f"{told(str(name))}: {told(each)}" for name, each in value.items())
            return f"{{{', '.join(inside)}}}"
        case list() | tuple() | set():
            return f"[{', '.join(map(told, value))}]"
        case date() | time():
            return told(value.isoformat())
        case UUID():
            return told(str(value))
        case _:
            return json.dumps(value, ensure_ascii=False)


def same(one: Node, two: Node) -> bool:
    """Whether two nodes are the same, types included."""
    written = {re.sub(r"TzInfo\((UTC|0)\)", "datetime.timezone.utc", repr(n)) for n in (one, two)}
    zeros = r"(Decimal\('-?\d+)(?:\.0+|(\.\d*?)0*)'"
    written = {re.sub(zeros, r"\1\2'", each) for each in written}
    return one == two and len(written) == 1 and one.model_fields_set == two.model_fields_set


GIVEN = st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=6).flatmap(
    lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
)


def test_the_fields_of_these_tests_are_all_there_are() -> None:
    assert VALUES.keys() == Start.model_fields.keys()


@settings(derandomize=True, max_examples=100, deadline=None)
@given(GIVEN)
def test_json_in_i_gives_the_node_that_code_would_have_built(given: dict[str, Any]) -> None:
    built = Start(**{NAMES.get(name, name): value for name, value in given.items()})
    for names in (NAMES, {}):
        said = told({names.get(name, name): value for name, value in given.items()})
        assert same(start_node(Start, said, (), ask=False, said=""), built)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(GIVEN)
def test_json_in_set_gives_the_node_that_code_would_have_built(given: dict[str, Any]) -> None:
    built = Start(**{NAMES.get(name, name): value for name, value in given.items()})
    for names in (NAMES, {}):
        sets = [f"{names.get(name, name)}={told(value)}" for name, value in given.items()]
        assert same(start_node(Start, None, sets, ask=False, said=""), built)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: VALUES[name]
            for name in ("money", "day", "moment", "hour", "key", "size", "strict_day", "renamed")
        },
    ),
    st.fixed_dictionaries({}, optional={name: st.text() for name in ("text", "secret")}),
)
def test_text_in_set_that_is_no_json_gives_it_too(given: dict[str, Any], texts: Any) -> None:
    names = {**NAMES}
    sets = [f"{name}={text_of(value)}" for name, value in given.items()]
    for name, text in texts.items():
        try:
            json.loads(text)
        except ValueError:
            sets.append(f"{name}={text}")
            given[name] = text
    built = Start(**{names.get(name, name): value for name, value in given.items()})
    assert same(start_node(Start, None, sets, ask=False, said=""), built)


def text_of(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    return value.isoformat() if isinstance(value, date | time) else str(value)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(decimals(), st.none() | st.text(max_size=4).filter(lambda text: text != "null"), REALS)
def test_fields_of_a_model_inside_are_set_by_name_or_alias(
    amount: Decimal, of: str | None, rate: float
) -> None:
    built = Start(price=Price(Amount=amount, of=of, rate=rate))
    for name in ("amount", "Amount"):
        sets = [f"price.{name}={amount}", f"price.of={told(of)}", f"price.rate={told(rate)}"]
        assert same(start_node(Start, None, sets, ask=False, said=""), built)


class Prices(Node):
    prices: dict[str, Decimal]

    async def __call__(self) -> None: ...


@pytest.mark.parametrize("said", ['{"tea": 0.10}', '{"prices": {"tea": 0.10}}'])
def test_the_one_field_may_be_an_object_itself(said: str) -> None:
    node = start_node(Prices, said, (), ask=False, said="")
    assert repr(node) == "Prices(prices={'tea': Decimal('0.1')})"


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "start.json"
    file.write_text('{"text": "é"}', encoding="utf-8-sig")
    assert start_node(Start, f"@{file}", (), ask=False, said="") == Start(text="é")


# What is refused, and what is said instead


def refusal(given: str | None, *sets: str) -> BaeError:
    with pytest.raises(BaeError) as caught:
        start_node(Start, given, sets, ask=False, said="bae run app.py")
    assert caught.value.code == "bae-start-fields"
    return caught.value


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["number=1", "number=2"], "--set gives number twice"),
        (["renamed=1", "re.named=2"], "--set gives renamed twice"),
        (["price.of=a", "price.of=b"], "--set gives price.of twice"),
        (["price.of=a", 'price={"Amount": 1}'], "--set gives price.of and then price"),
    ],
)
def test_a_field_that_is_set_twice_is_refused(sets: list[str], said: str) -> None:
    assert said in refusal(None, *sets).message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"number": 1, "number": 1}', '"number" is there twice'),
        ('{"price": {"Amount": 1, "of": "a", "of": "b"}}', '"of" is there twice'),
        ('{"renamed": 1, "re.named": 2}', "renamed twice"),
    ],
)
def test_a_name_that_is_there_twice_in_json_is_refused(given: str, said: str) -> None:
    assert said in refusal(given).message


def test_a_name_that_is_there_twice_in_the_json_of_a_set_is_refused() -> None:
    assert '"a" is there twice' in refusal(None, 'named={"a": 1, "a": 2}').message
    text = '{"a": 1, "a": 2}'
    assert start_node(Start, None, [f"text={text}"], ask=False, said="") == Start(text=text)


def test_an_object_may_be_set_before_fields_inside_it() -> None:
    sets = ['price={"Amount": 1.50}', "price.of=tea"]
    built = Start(price=Price(Amount=Decimal("1.50"), of="tea"))
    assert same(start_node(Start, None, sets, ask=False, said=""), built)


@pytest.mark.parametrize(
    "said", ["many=a", "many=a, b", "many=5", "amounts=0.10", "unique=1,2", "money=much", "level=3"]
)
def test_a_text_that_does_not_fit_is_refused_with_a_set_that_works(said: str) -> None:
    fix = refusal(None, said).fix or ""
    _, example = shlex.split(fix[fix.index("--set") :])
    start_node(Start, None, [example], ask=False, said="")
    if said == "many=a, b":
        assert example == 'many=["a", "b"]'


@pytest.mark.parametrize("said", ["1", "LOW", "low", " low "])
def test_a_member_of_an_enum_is_known_by_its_value_and_its_name(said: str) -> None:
    assert read(Start, "level", said).value is Level.LOW
    assert wanted(Start.model_fields["level"].annotation) == "1 (LOW) | 2 (HIGH)"
    assert wanted(Start.model_fields["size"].annotation) == "small | LARGE"


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


def test_no_example_stands_in_for_a_secret() -> None:
    assert example_of(Asked, "token") is None
    gate = OpenGate("The token?", Asked, "token", SecretStr)
    line = CommandLine("app.py", ".bae/runs.db").answer("r1", gate)
    assert line == "bae runs answer r1 Asked.token -m app.py"


def test_a_missing_secret_is_asked_for_in_a_file_and_not_on_the_command_line() -> None:
    with pytest.raises(BaeError) as caught:
        start_node(Needed, None, (), ask=False, said="bae run app.py")
    fix = caught.value.fix or ""
    assert fix.startswith("bae run app.py --set 'user=…' -i @FILE")
    assert "--set token" not in fix


class Needed(Node):
    user: str
    token: SecretStr

    async def __call__(self) -> None: ...


def test_what_looks_like_an_option_comes_after_two_dashes_in_a_command_to_copy() -> None:
    said = CommandLine("app.py", "my.db", "local")
    assert said.answer_with("r1", "Asked.below", "-5") == (
        "bae runs answer --lm local -m app.py -j my.db -- r1 Asked.below -5"
    )
    assert said.resume("-x", "--max-iters", "9") == (
        "bae runs resume --max-iters 9 --lm local -m app.py -j my.db -- -x"
    )
