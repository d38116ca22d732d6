"""The tokens by which a local model tells who speaks: llama.cpp reads them in what is said, too, so
that data could end the user's turn and begin another. They are found in the file of the model, and
broken in every message. `local_model.py` does both."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final


def breaking(path: Path) -> Callable[[str], str]:
    """What takes the meaning out of the control tokens of a model in a text. Each begins with an
    escape of JSON then, `\\u003c|im_end|>`, which to JSON says the same as before."""
    found = control_tokens(path)
    if not found:
        return lambda text: text
    rests: dict[str, list[str]] = {}
    for token in sorted(found, key=len, reverse=True):
        rests.setdefault(token[0], []).append(re.escape(token[1:]))
    starts = (f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
    pattern = re.compile("|".join(starts), re.DOTALL)
    return lambda text: pattern.sub(_escaped, text)


def control_tokens(path: Path) -> frozenset[str]:
    """The control tokens of a model, as they are written; those that most models have, where the
    file does not tell."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
            found = _Header(held).control_tokens()
    except (OSError, ValueError, struct.error, IndexError):
        return _USUAL
    # What begins with a letter or a sign of JSON could not be told from what JSON is made of.
    return frozenset(
        each for each in found if not (each[0].isalnum() or each[0] in ' \t\r\n"\\,:{}')
    )


class _Header:
    """The part of a GGUF file that is about the model: names with values."""

    def __init__(self, held: mmap.mmap) -> None:
        self.held = held
        self.at = 4
        version = self.number("<I")
        if not 2 <= version <= 3:
            raise ValueError(f"version {version}")

    def control_tokens(self) -> list[str]:
        self.number("<Q")  # of tensors
        texts: list[bytes] | None = None
        kinds: tuple[int, ...] | None = None
        for _ in range(self.number("<Q")):
            name = self.text()
            kind = self.number("<I")
            if name == b"tokenizer.ggml.tokens" and kind == _ARRAY:
                texts = self.texts()
            elif name == b"tokenizer.ggml.token_type" and kind == _ARRAY:
                kinds = self.numbers()
            else:
                self.skip(kind)
            if texts is not None and kinds is not None:
                return list(_controlling(texts, kinds))
        raise ValueError("there is no vocabulary")

    def texts(self) -> list[bytes]:
        kind, size = self.number("<I"), self.number("<Q")
        if kind != _TEXT:
            raise ValueError(f"tokens of kind {kind}")
        return [self.text() for _ in range(size)]

    def numbers(self) -> tuple[int, ...]:
        kind, size = self.number("<I"), self.number("<Q")
        if _SIZES.get(kind) != 4:
            raise ValueError(f"token types of kind {kind}")
        found = struct.unpack_from(f"<{size}i", self.held, self.at)
        self.at += 4 * size
        return found

    def skip(self, kind: int) -> None:
        if kind == _TEXT:
            self.text()
        elif kind == _ARRAY:
            of, size = self.number("<I"), self.number("<Q")
            if of in _SIZES:
                self.at += _SIZES[of] * size
            else:
                for _ in range(size):
                    self.skip(of)
        elif kind in _SIZES:
            self.at += _SIZES[kind]
        else:
            raise ValueError(f"a value of kind {kind}")

    def number(self, form: str) -> int:
        (found,) = struct.unpack_from(form, self.held, self.at)
        self.at += struct.calcsize(form)
        return found

    def text(self) -> bytes:
        size = self.number("<Q")
        start, self.at = self.at, self.at + size
        if self.at > len(self.held):
            raise ValueError("the file is cut short")
        return self.held[start : self.at]


def _controlling(texts: list[bytes], kinds: Iterable[int]) -> Iterable[str]:
    for text, kind in zip(texts, kinds, strict=True):
        # Some files have tokens of this form as the user's own, and their templates use them.
        own = kind == _USER_DEFINED and text.startswith(b"<|") and text.endswith(b"|>")
        if text and (own or kind in (_UNKNOWN, _CONTROL)):
            yield text.decode(errors="replace")


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2))


_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by its kind."""

_TEXT: Final = 8
_ARRAY: Final = 9
_UNKNOWN: Final = 2
_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_USUAL: Final = frozenset(
    {
        *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "[INST]", "[/INST]"),
        *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"),
        *("<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
    }
)
