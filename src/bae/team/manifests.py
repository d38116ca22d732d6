"""Functions that read the manifests of a project, such as pyproject.toml, package.json and
tox.ini."""

from __future__ import annotations

import configparser
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from bae.given_files import read_text


def as_table(value: Any) -> dict[str, Any]:
    """Return `value` if it is a table, and otherwise an empty table."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_texts(value: Any) -> list[str]:
    """Return the texts in the list `value`. If `value` is no list, return an empty list."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str)]


def find_table(table: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the nested table at the path `names`. If it is missing, return an empty table."""
    for name in names:
        table = as_table(table.get(name))
    return table


def read_json(path: Path) -> dict[str, Any]:
    """Return the table in a JSON file. If it cannot be read, return an empty table."""
    return _read_table(path, json.loads)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table in a TOML file. If it cannot be read, return an empty table."""
    return _read_table(path, tomllib.loads)


def read_ini(path: Path) -> configparser.RawConfigParser:
    """Return a parser with the sections of an INI file. If the file cannot be read, return a parser
    without sections."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(read_text(path))
    except (OSError, ValueError, configparser.Error):
        return configparser.RawConfigParser()
    return parser


def _read_table(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        return as_table(parse(read_text(path)))
    except (OSError, ValueError):
        return {}
