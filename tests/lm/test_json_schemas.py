"""Schemas as a model is told of them: short, however often a type is used."""

from __future__ import annotations

import json
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

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
            '  "tree": Tree',
            "}",
            'Tree: {"leaf": {"name": string, "size": integer (at least 1)}, '
            '"children"?: [Tree, ...], "twin"?: Tree | null}',
        ]
    )


class Address(BaseModel):
    street: str = Field(max_length=60, description="the street, with the number of the house")
    town: str = Field(max_length=60)


def test_a_long_type_in_several_places_is_named_and_told_once():
    class Letter(BaseModel):
        sender: Address
        receiver: Address = Field(description="who gets it")
        size: Size
        other_size: Size

    assert outline(Letter.model_json_schema()) == "\n".join(
        [
            "{",
            '  "sender": Address,',
            '  "receiver": Address (who gets it),',
            '  "size": "S" | "L",',
            '  "other_size": "S" | "L"',
            "}",
            'Address: {"street": string (at most 60 characters; the street, with the number of the '
            'house), "town": string (at most 60 characters)}',
        ]
    )


def test_an_outline_grows_with_the_types_and_not_with_the_ways_through_them():
    kind: Any = Leaf
    for number in range(30):
        kind = create_model(
            f"Level{number}", left=(kind, ...), middle=(kind, ...), right=(kind, ...)
        )
    assert len(outline(kind.model_json_schema())) < 5000


def test_of_very_many_values_the_first_are_shown_and_how_many_there_are():
    names = [f"name-{number}" for number in range(3000)]
    schema = {"type": "object", "properties": {"a": {"enum": names}}, "required": ["a"]}
    told = outline(schema)
    assert '"a": "name-0" | "name-1" | ' in told
    assert told.endswith(" | ... (3000 values)\n}")
    assert len(told) < 1500
    assert "values)" not in outline({**schema, "properties": {"a": {"enum": names[:50]}}})
    assert json.dumps(names[49]) in outline({**schema, "properties": {"a": {"enum": names[:50]}}})
