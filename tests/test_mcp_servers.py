"""What users write about MCP servers, the file that lists them, and what becomes of the names and
schemas of a stranger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("mcp")

from bae import MCP, ToolServerError
from bae.mcp.listing import clean_schema, name_for_model
from bae.tools import TOOL_NAME

pytestmark = pytest.mark.once


def write_servers(folder: Path, data: Any) -> Path:
    file = folder / "mcp.json"
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return file


def test_an_mcp_file_is_read_with_environment_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_TOKEN", "hush")
    servers = {
        "git": {"command": "uvx", "args": ["mcp-server-git", "${REPO:-/srv}"], "cwd": "/tmp"}
        | {"env": {"TOKEN": "${GIT_TOKEN}"}},
        "docs": {"type": "http", "url": "https://example.com/mcp?key=1", "headers": {"A": "b"}},
        "off": {"command": "nothing", "disabled": True},
    }
    servers_found = MCP.from_file(write_servers(tmp_path, {"mcpServers": servers}))
    git, docs = servers_found.endpoints
    assert (git.name, git.command, git.args, git.cwd) == (
        "git",
        "uvx",
        ("mcp-server-git", "/srv"),
        "/tmp",
    )
    assert git.env == {"TOKEN": "hush"}
    assert (docs.url, docs.headers) == ("https://example.com/mcp?key=1", {"A": "b"})
    assert [endpoint.prefix for endpoint in servers_found.endpoints] == ["git_", "docs_"]
    assert "hush" not in repr(servers_found)
    assert "key=1" not in repr(servers_found)
    (one,) = MCP.from_file(tmp_path / "mcp.json", servers=["docs"]).endpoints
    assert one == docs


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "cannot be read as JSON"),
        ({"servers": {}}, "has no mcpServers"),
        ({"mcpServers": {}}, "lists no server"),
        ({"mcpServers": {"a": {}}}, "a has neither a command nor a url"),
        ({"mcpServers": {"a": 1}}, "a is no object"),
        ({"mcpServers": {"a": {"command": 1}}}, "command of a is no text"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "args of a is no list"),
        ({"mcpServers": {"a": {"command": "x", "env": []}}}, "env of a is no object"),
        ({"mcpServers": {"a": {"command": "${BAE_NOT_SET}"}}}, "needs the variable BAE_NOT_SET"),
        ({"mcpServers": {"a": {"command": ""}}}, "a has neither a command nor a url"),
        ({"mcpServers": {"a": {"command": "x", "args": [None]}}}, "args of a has null"),
        ({"mcpServers": {"a": {"command": "x", "env": {"A": {}}}}}, "env of a has {}"),
        ({"mcpServers": {"a": {"url": "ftp://a"}}}, "url of a is no address"),
        ({"mcpServers": {"a": {"url": "http://["}}}, "url of a is no address"),
        ({"mcpServers": {"a": {"type": "sse", "url": "http://a"}}}, "old SSE transport"),
    ],
    ids=lambda value: None,
)
def test_an_invalid_mcp_file_is_an_error_that_shows_a_valid_file(tmp_path, data, message):
    if message == "env of a is no object":
        data["mcpServers"]["a"]["env"] = [1]
    with pytest.raises(ToolServerError, match=message) as info:
        MCP.from_file(write_servers(tmp_path, data))
    assert info.value.code == "bae-mcp-file"
    assert info.value.fix


def test_an_mcp_file_without_the_selected_server_is_an_error_that_lists_its_servers(tmp_path):
    file = write_servers(tmp_path, {"mcpServers": {"a": {"command": "x"}}})
    with pytest.raises(ToolServerError, match="no server b"):
        MCP.from_file(file, servers=["b"])


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["uvx", "mcp-server-git"], "mcp-server-git"),
        (["npx", "-y", "@modelcontextprotocol/server-everything"], "server-everything"),
        (["python3.12", "-m", "my_server"], "my_server"),
        (["python", "server.py"], "server"),
        (["/usr/bin/thing"], "thing"),
        (["uvx"], "uvx"),
    ],
)
def test_a_server_without_a_name_is_named_after_its_command(words, name):
    assert MCP.stdio(*words).name == name
    assert MCP.stdio(*words, name="mine").name == "mine"


def test_wrong_server_options_are_refused_at_construction():
    with pytest.raises(ValueError, match="give an address"):
        MCP.http("example.com/mcp")
    with pytest.raises(TypeError, match='only=\\["search"\\]'):
        MCP.stdio("x", only="search")
    with pytest.raises(ValueError, match="timeout"):
        MCP.stdio("x", timeout=0)
    with pytest.raises(TypeError, match="one for each"):
        MCP.stdio(["uvx", "mcp-server-git"])  # type: ignore[arg-type]


def test_a_missing_package_is_an_error_that_shows_how_to_install_it(monkeypatch):
    monkeypatch.setattr("bae.mcp.servers.is_there", lambda package: False)
    with pytest.raises(ToolServerError, match="needs the package mcp") as info:
        MCP.stdio("x")
    assert info.value.code == "bae-mcp-missing"
    assert "[mcp]" in str(info.value.fix)


@settings(max_examples=50)
@given(st.text(min_size=1, max_size=200))
def test_every_tool_name_becomes_a_name_that_providers_accept(name):
    made = name_for_model(name)
    assert TOOL_NAME.fullmatch(made)
    assert made == name or made != name_for_model(name + "x")
    assert name_for_model(made) == made


def test_a_schema_is_inlined_without_keys_that_providers_refuse():
    given = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Arguments",
        "properties": {"at": {"$ref": "#/definitions/Place", "description": "where"}},
        "definitions": {"Place": {"type": "object", "properties": {"title": {"type": "string"}}}},
    }
    assert clean_schema(given) == {
        "type": "object",
        "properties": {
            "at": {
                "type": "object",
                "properties": {"title": {"type": "string"}},
                "description": "where",
            }
        },
    }


def test_a_recursive_schema_keeps_its_definition():
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}}
    made = clean_schema({"properties": {"tree": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": tree}})
    assert made["$defs"]["Tree"] == tree


def _laughs(depth: int) -> dict[str, Any]:
    """A small schema that is huge when it is written out."""
    defs: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 8} for n in range(depth)
    }
    defs[f"d{depth}"] = {"type": "string"}
    return {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs}


def _deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return {"properties": {"a": schema}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"properties": []},
        {"properties": {"a": {"$ref": "https://example.com/a.json"}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"if": {"$ref": "#/$defs/b"}}}, "$defs": {"b": {}}},
        {"properties": {"a": {"enum": ["x" * 200_000]}}},
        {"$defs": []},
        _laughs(30),
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2_500)}},
        _deep(5_000),
    ],
    ids=range(10),
)
def test_an_unusable_or_too_large_schema_is_refused(schema):
    with pytest.raises((ValueError, AttributeError, RecursionError)):
        clean_schema(schema)
