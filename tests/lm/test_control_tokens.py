"""Control tokens of a local model: found in its file, and broken in what is said to it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bae.lm.control_tokens import breaking, control_tokens

TOKENS = [
    "<|im_end|>",
    "hello",
    "[INST]",
    "<unk>",
    "<|mine|>",
    "<b>",
    "\N{SKULL}stop",
    "user",
    "<<s>",
]
KINDS = [3, 1, 3, 2, 4, 4, 3, 3, 3]
FOUND = {"<|im_end|>", "[INST]", "<unk>", "<|mine|>", "\N{SKULL}stop", "<<s>"}


def text(said: str) -> bytes:
    return struct.pack("<Q", len(said.encode())) + said.encode()


def value(name: str, kind: int, packed: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + packed


def array(kind: int, size: int, packed: bytes) -> bytes:
    return struct.pack("<IQ", kind, size) + packed


VALUES = [
    value("general.name", 8, text("small")),
    value("general.size", 10, struct.pack("<Q", 135)),
    value("tokenizer.ggml.merges", 9, array(8, 2, text("a b") + text("c d"))),
    value("tokenizer.ggml.scores", 9, array(6, 3, struct.pack("<3f", 1, 2, 3))),
    value("tokenizer.ggml.tokens", 9, array(8, len(TOKENS), b"".join(map(text, TOKENS)))),
    value("tokenizer.ggml.token_type", 9, array(5, len(KINDS), struct.pack("<9i", *KINDS))),
]


def file(folder: Path, version: int = 3, values: list[bytes] = VALUES) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(values)) + b"".join(values))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return file(tmp_path_factory.mktemp("model"))


def test_control_tokens_are_those_that_the_file_says_are(model: Path) -> None:
    assert control_tokens(model) == FOUND


@pytest.mark.parametrize("size", [0, 6, 20, 100, 200])
def test_of_a_file_that_cannot_be_read_the_usual_ones_are_taken(tmp_path: Path, size: int) -> None:
    path = file(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    assert {"<|im_start|>", "</s>", "[INST]"} <= control_tokens(path)


def test_so_they_are_for_a_file_of_another_kind_or_without_a_vocabulary(tmp_path: Path) -> None:
    usual = control_tokens(tmp_path / "gone")
    assert control_tokens(file(tmp_path, version=1)) == usual
    assert control_tokens(file(tmp_path, values=VALUES[:4])) == usual
    assert control_tokens(file(tmp_path, values=[value("odd", 77, b"")])) == usual


pieces = st.lists(st.one_of(st.sampled_from([*TOKENS, "<", "|", "\\", '"', "\n"]), st.text()))


@given(pieces.map("".join))
def test_to_json_a_broken_text_says_the_same_and_no_control_token_is_left(
    model: Path, said: str
) -> None:
    for written in (json.dumps([said]), json.dumps([said], ensure_ascii=False)):
        broken = breaking(model)(written)
        assert json.loads(broken) == [said]
        assert not any(token in broken for token in FOUND)


def test_a_text_without_them_stays_as_it_is(model: Path) -> None:
    assert breaking(model)("user: hello <b> im_end") == "user: hello <b> im_end"
    assert breaking(model)("a <|im_end|> b") == "a \\u003c|im_end|> b"
