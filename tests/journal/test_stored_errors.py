"""Failures in a journal, for graphs with and without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr, field_validator, model_validator

from bae import BaeError, Dep, Graph, Node
from bae.journal import SQLiteJournal
from end_node import EndNode
from toy_backend import ToyBackend

WORD = "swordfish"


class Asks(Node):
    q: str

    async def __call__(self) -> Pin: ...


class Pin(EndNode):
    pin: str = Field(repr=False)

    @field_validator("pin")
    @classmethod
    def known(cls, value: str) -> str:
        raise ValueError(f"{value} is no pin")


class AsksForAll(Node):
    q: str

    async def __call__(self) -> Whole: ...


class Whole(EndNode):
    pins: dict[str, int] = Field(repr=False)

    @model_validator(mode="after")
    def known(self) -> Whole:
        raise ValueError(f"{'-'.join(self.pins)} are no pins")


class Keyed(Node):
    q: str

    async def __call__(self) -> Keys: ...


class Keys(EndNode):
    pins: dict[str, int] = Field(repr=False)


def get_token() -> SecretStr:
    raise ValueError(f"refused the token {WORD}")


class Opens(EndNode):
    token: Annotated[SecretStr, Dep(get_token)]


def good_token() -> SecretStr:
    return SecretStr(WORD)


def look_up(token: Annotated[SecretStr, Dep(good_token)]) -> int:
    raise ValueError(f"nobody has the token {token.get_secret_value()}")


class LooksUp(EndNode):
    found: Annotated[int, Dep(look_up)]


class Builds(Node):
    token: SecretStr

    async def __call__(self) -> Built:
        return Built(pin=self.token.get_secret_value())


class Built(EndNode):
    pin: str = Field(repr=False)

    @field_validator("pin")
    @classmethod
    def known(cls, value: str) -> str:
        raise ValueError(f"{value} is no pin")


class Raises(Node):
    token: SecretStr

    async def __call__(self) -> None:
        raise RuntimeError(f"cannot log in with {self.token.get_secret_value()}")


def everything_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


CASES = [
    (Graph(start=Asks), Asks(q="?"), [{"pin": WORD}] * 5),
    (Graph(start=AsksForAll), AsksForAll(q="?"), [{"pins": {WORD: 1}}] * 5),
    (Graph(start=Keyed), Keyed(q="?"), [{"pins": {WORD: "x"}}] * 5),
    (Graph(start=Opens), Opens(), []),
    (Graph(start=LooksUp), LooksUp(), []),
    (Graph(start=Builds), Builds(token=SecretStr(WORD)), []),
    (Graph(start=Raises), Raises(token=SecretStr(WORD)), []),
]


@pytest.mark.parametrize(("graph", "start", "answers"), CASES, ids=lambda case: str(case)[:20])
async def test_no_error_writes_a_secret_into_the_file(
    graph: Graph[Any, Any], start: Node, answers: list[Any], tmp_path: Path
) -> None:
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        with pytest.raises(BaeError) as failure:
            await graph.arun(start, ToyBackend(*answers), journal=journal, run_id="one")
        told = (await journal.runs())[0].error
    assert WORD in f"{failure.value} {failure.value.cause}", "the one who called is told all of it"
    assert f"[{failure.value.code}] " in told
    assert WORD.encode() not in everything_in(tmp_path), told


async def test_the_stored_error_of_a_run_with_secrets_has_type_code_and_place(
    tmp_path: Path,
) -> None:
    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        with pytest.raises(BaeError):
            await Graph(start=LooksUp).arun(LooksUp(), journal=journal, run_id="one")
        assert (await journal.runs())[0].error == (
            "[bae-dep-failed] LooksUp.found: withheld (ValueError)"
        )
        last = (await journal.read("one")).lines[-1].data
        said = '"type":"DepError","code":"bae-dep-failed","message":"LooksUp.found: withheld"'
        assert said in last
        journal.secrets = True
        with pytest.raises(BaeError):
            await Graph(start=LooksUp).arun(LooksUp(), journal=journal, run_id="two")
        assert WORD in (await journal.runs())[0].error


async def test_the_stored_error_of_a_run_without_secrets_has_its_message(tmp_path: Path) -> None:
    class Fails(Node):
        q: str

        async def __call__(self) -> None:
            raise RuntimeError("no connection")

    async with SQLiteJournal(tmp_path / "runs.db") as journal:
        with pytest.raises(BaeError):
            await Graph(start=Fails).arun(Fails(q="?"), journal=journal, run_id="one")
        assert "RuntimeError: no connection" in (await journal.runs())[0].error
