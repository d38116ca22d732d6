"""What is left of settings when they are shown."""

from __future__ import annotations

from typing import Any

import pytest

from bae.lm.secrecy import is_secret, without_password, without_secrets


@pytest.mark.parametrize(
    "name",
    [
        *("api_key", "ANTHROPIC_API_KEY", "x-api-key", "aws_session_token", "access_tokens"),
        *("client_secret", "vertex_credentials", "Authorization", "X_AUTH", "PGPASS", "password"),
        *("HTTPS_PROXY", "Cookie", "ANTHROPIC_CUSTOM_HEADERS", "bearer", "jwt"),
    ],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name, "hidden")
    assert without_secrets({name: "hidden", "region": "eu"}) == {"region": "eu"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_tokens", 500), ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "500"), ("temperature", 0.5)),
        *(("top_k", 3), ("api_base", "https://here.test/v1"), ("region", "eu"), ("stop", ["a"])),
        ("thinking", {"type": "enabled", "budget_tokens": 2000}),
        ("schema", {"properties": {"key": {"type": "string"}, "token": {"type": "null"}}}),
    ],
)
def test_what_is_no_secret_stays(name: str, value: Any) -> None:
    assert without_secrets({name: value}) == {name: value}


def test_secrets_are_left_out_however_deep_they_are() -> None:
    given = {
        "default_headers": {"Authorization": "hidden", "x-team": "blue"},
        "servers": [{"name": "a", "auth": ["me", "hidden"]}, ("https://me:hidden@here.test",)],
        "vertex_credentials": {"private": "hidden"},
    }
    assert without_secrets(given) == {
        "default_headers": {"x-team": "blue"},
        "servers": [{"name": "a"}, ["https://here.test"]],
    }


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("https://me:p@ss@here.test:8/v1", "https://here.test:8/v1"),
        ("https://here.test/@me", "https://here.test/@me"),
        ("https://here.test?api_key=hidden&a=b#c", "https://here.test?api_key=&a=b#c"),
        ("me@here.test", "me@here.test"),
    ],
)
def test_an_address_is_shown_without_its_password(text: str, left: str) -> None:
    assert without_password(text) == left
