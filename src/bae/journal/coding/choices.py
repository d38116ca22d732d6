"""Unions that JSON does not tell apart: two models with the same fields, a date or a text, a list
or a tuple. Where a value written as its type has it would be read as another, it is written with
the number of its type, as `{"$choice": 1, "value": …}`; both forms are read. `exact.py` puts this
in the place of such unions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from bae.core_schemas import Schema

if TYPE_CHECKING:
    from bae.journal.coding.values import Kept

CHOICE: Final = "$choice"


def told_or_plain(union: Schema, choices: list[Any], definitions: list[Any], tell: bool) -> Any:
    """A schema that reads a value in either form, and writes it told, or plain.

    `union` is the one that stands for it, `choices` are the types as they were before anything was
    done to them, with the `definitions` they refer to.
    """
    walked = unlabelled(union["choices"])
    told = {
        "type": "tagged-union",
        "discriminator": CHOICE,
        "choices": {number: _entry(each) for number, each in enumerate(walked)},
    }
    unpacked = {"type": "function-after", "function": _UNPACK, "schema": told}
    plain = {key: value for key, value in union.items() if key != "ref"}
    kept: Schema = {"type": "union", "mode": "left_to_right", "choices": [unpacked, plain]}
    if "ref" in union:
        kept["ref"] = union["ref"]
    if tell:
        teller = _Teller(choices, definitions)
        kept["serialization"] = {
            "type": "function-plain",
            "function": teller,
            "return_schema": told,
        }
    else:
        kept["serialization"] = {"type": "function-wrap", "function": _as_it_is, "schema": plain}
    return kept


def unlabelled(choices: list[Any]) -> list[Any]:
    """The choices of a union without the labels that some have."""
    return [cast(Any, each[0] if isinstance(each, tuple) else each) for each in choices]


def _entry(schema: Any) -> Schema:
    """What a told value looks like."""
    number = {"type": "typed-dict-field", "schema": {"type": "int"}}
    value = {"type": "typed-dict-field", "schema": schema}
    return {"type": "typed-dict", "fields": {CHOICE: number, "value": value}}


def _unpack(told: dict[str, Any]) -> Any:
    return told["value"]


_UNPACK: Final = {"type": "no-info", "function": _unpack}


def _as_it_is(value: Any, handler: Any) -> Any:
    return handler(value)


class _Teller:
    """Finds the type of a union that keeps a value as it is."""

    def __init__(self, choices: list[Any], definitions: list[Any]) -> None:
        self._choices = choices
        self._definitions = definitions
        self._kept: list[Kept] | None = None

    def __call__(self, value: Any) -> dict[str, Any]:
        from bae.journal.coding.values import Kept, Unkeepable

        if self._kept is None:
            self._kept = [Kept(self._defined(each)) for each in self._choices]
        for number, kept in enumerate(self._kept):
            try:
                kept.dump(value)
            except Unkeepable:
                continue
            return {CHOICE: number, "value": value}
        raise ValueError("none of its types keeps the value as it is")

    def _defined(self, schema: Any) -> Any:
        if not self._definitions:
            return schema
        return {"type": "definitions", "schema": schema, "definitions": self._definitions}
