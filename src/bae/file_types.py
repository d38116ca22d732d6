"""Reads the type of a file from its bytes, because a file name or an HTTP header may be wrong. Also
reads the size of an image in pixels, which providers limit."""

from __future__ import annotations

from typing import Final, NamedTuple

IMAGE_TYPES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""The types of images that models accept."""
DOCUMENT_TYPES: Final = ("application/pdf", "text/plain")
"""The types of documents that models accept."""


class ImageHeader(NamedTuple):
    """The header of an image: its type, and its size in pixels."""

    media_type: str
    width: int
    height: int


def image_header(data: bytes) -> ImageHeader | None:
    """Read the header of an image. Return None if the bytes are no image, or if the header is cut
    off."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR":
            kind_and_size = "image/png", _big(data, 16, 4), _big(data, 20, 4)
        elif data.startswith((b"GIF87a", b"GIF89a")):
            kind_and_size = "image/gif", _little(data, 6, 2), _little(data, 8, 2)
        elif data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            kind_and_size = "image/webp", *_webp_size(data)
        elif data.startswith(b"\xff\xd8\xff"):
            kind_and_size = "image/jpeg", *_jpeg_size(data)
        else:
            return None
    except IndexError:
        return None
    header = ImageHeader(*kind_and_size)
    return header if header.width and header.height else None


def document_type(data: bytes) -> str | None:
    """Return the type of a document: PDF, or plain text in UTF-8. Return None for other bytes."""
    if data[:_PDF_BEGINS].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"%PDF-"):
        return "application/pdf"
    if not data or image_header(data) is not None:
        return None
    try:
        is_text = b"\0" not in data and bool(data.decode())
    except UnicodeDecodeError:
        is_text = False
    if is_text:  # also if the text contains `%PDF-`
        return "text/plain"
    return "application/pdf" if b"%PDF-" in data[:_PDF_BEGINS] else None


_PDF_BEGINS: Final = 1024
"""The header of a PDF must begin within this many bytes. Other bytes may come before it."""


def _bytes_at(data: bytes, at: int, count: int) -> bytes:
    part = data[at : at + count]
    if len(part) < count:
        raise IndexError(at)
    return part


def _big(data: bytes, at: int, count: int) -> int:
    return int.from_bytes(_bytes_at(data, at, count), "big")


def _little(data: bytes, at: int, count: int) -> int:
    return int.from_bytes(_bytes_at(data, at, count), "little")


def _webp_size(data: bytes) -> tuple[int, int]:
    match data[12:16]:
        case b"VP8X":
            return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
        case b"VP8L":
            packed = _little(data, 21, 4)
            return (packed & 0x3FFF) + 1, ((packed >> 14) & 0x3FFF) + 1
        case b"VP8 ":
            return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
        case _:
            return 0, 0


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_MOST_MARKERS):
        if data[at] != 0xFF:
            return 0, 0
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        elif marker in _FRAMES:
            return _big(data, at + 7, 2), _big(data, at + 5, 2)
        elif marker in (0xD9, 0xDA):  # the end of the image, or pixels without a frame header
            return 0, 0
        else:
            at += 2 + max(2, _big(data, at + 2, 2))
    return 0, 0


_MOST_MARKERS: Final = 4_096
"""How many segments of a JPEG are read. Without this limit, a file of many tiny segments would take
seconds."""
_WITHOUT_LENGTH: Final = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
