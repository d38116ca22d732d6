"""The tokens of a prompt, as `Provider` counts and caches them: four characters are one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from bae.testing.wire import Counted, Piece

_LEAST_CACHED = 1024
_STEP = 128


def tokens_in(text: str) -> int:
    """How many tokens a text has: one for four characters, begun ones included."""
    return _tokens(len(text))


class PromptCache:
    """The prefixes of prompts that were seen before, up to a number of them."""

    def __init__(self, size: int = 10_000) -> None:
        self._size = size
        self._seen: dict[bytes, None] = {}

    def marked(self, model: str, prompt: Iterable[Piece], answer: str) -> Counted:
        """Count an exchange where the client marks up to where a prompt is to be cached."""
        total = read = written = 0
        for digest, end, piece in _prefixes(model, prompt):
            total = end
            if piece.cached:
                if self._has(digest):
                    read, written = end, 0
                else:
                    written = end - read
        return Counted(total, tokens_in(answer), read, written)

    def long(self, model: str, prompt: Iterable[Piece], answer: str) -> Counted:
        """Count an exchange where every prompt that is long enough is cached, by a number of tokens
        at a time."""
        total = read = 0
        for digest, end, _ in _prefixes(model, prompt):
            total = end
            if end >= _LEAST_CACHED and self._has(digest):
                read = end // _STEP * _STEP
        return Counted(total, tokens_in(answer), read)

    def _has(self, digest: bytes) -> bool:
        """Whether it was seen before; it is from now on."""
        if digest in self._seen:
            return True
        self._seen[digest] = None
        if len(self._seen) > self._size:
            del self._seen[next(iter(self._seen))]
        return False


def _prefixes(model: str, pieces: Iterable[Piece]) -> Iterator[tuple[bytes, int, Piece]]:
    """What identifies every prefix of a prompt, the tokens in it, and the piece it ends with."""
    so_far = blake2b(model.encode(), digest_size=16)
    end = 0
    for piece in pieces:
        so_far.update(b"\0" + piece.text.encode("utf-8", "surrogatepass"))
        end += len(piece.text)
        yield so_far.digest(), _tokens(end), piece


def _tokens(characters: int) -> int:
    return -(-characters // 4)
