"""Schemas as a model is told of them."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from bae.lm.json_schemas import outline


class Size(Enum):
    SMALL = "S"
    LARGE = "L"


class Leaf(BaseModel):
    name: str
    size: int = Field(ge=1)


class Tree(BaseModel):
    leaf: Leaf
    children: list[Tree] = []
    twin: Tree | None = None


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


def test_an_outline_says_types_bounds_and_what_fields_are_for():
    class Order(BaseModel):
        garment: str = Field(max_length=20, description="a specific\n  garment")
        size: Size
        count: int = Field(ge=1, le=123456789)
        share: float = Field(gt=0, lt=1)
        day: date
        tags: list[str] = Field(default=[], min_length=1, max_length=3)
        spot: tuple[int, bool]
        prices: dict[Size, int | None]
        pet: Annotated[Cat | Dog, Field(discriminator="kind")]
        tree: Tree

    assert outline(Order.model_json_schema()) == "\n".join(
        [
            "{",
            '  "garment": string (at most 20 characters; a specific garment),',
            '  "size": "S" | "L",',
            '  "count": integer (1 to 123456789),',
            '  "share": number (above 0; below 1),',
            '  "day": date,',
            '  "tags"?: [string, ...] (1 to 3 items),',
            '  "spot": [integer, true | false],',
            '  "prices": {"S" | "L": integer | null, ...},',
            '  "pet": {"kind": "cat", "lives": integer} | '
            '{"kind": "dog", "tricks": [string, ...]},',
            '  "tree": {"leaf": {"name": string, "size": integer (at least 1)}, '
            '"children"?: [Tree, ...], "twin"?: Tree | null}',
            "}",
        ]
    )


def test_of_very_many_values_the_first_are_shown():
    names = [f"name-{number}" for number in range(3000)]
    schema = {"type": "object", "properties": {"a": {"enum": names}}, "required": ["a"]}
    told = outline(schema)
    assert '"a": "name-0" | "name-1" | ' in told
    assert told.endswith(" …\n}")
    assert len(told) < 1500
    few = outline({**schema, "properties": {"a": {"enum": names[:50]}}})
    assert '"name-49"\n}' in few
