"""Reading the manifests of a project, such as pyproject.toml, package.json and tox.ini."""

from __future__ import annotations

import configparser
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from bae.given_files import read_text


def as_table(value: Any) -> dict[str, Any]:
    """The value as a table; empty for other values."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_texts(value: Any) -> list[str]:
    """The texts of a list, without other values."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [item for item in items if isinstance(item, str)]


def find_table(table: dict[str, Any], *names: str) -> dict[str, Any]:
    """The table at a path of names, or an empty table."""
    for name in names:
        table = as_table(table.get(name))
    return table


def read_json(path: Path) -> dict[str, Any]:
    """The table in a JSON file, or an empty table."""
    return _read_table(path, json.loads)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file, or an empty table."""
    return _read_table(path, tomllib.loads)


def read_ini(path: Path) -> configparser.RawConfigParser:
    """The sections of an INI file, or none."""
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
