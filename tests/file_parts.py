"""For tests of images and documents: small files of every type."""

from __future__ import annotations

import struct
import zlib

from bae import Document, Image

PDF = b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>\n%%EOF"


def png(width: int = 1, height: int = 1, shade: int = 0) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = (b"\0" + bytes([shade]) * min(width, 64)) * min(height, 64)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def gif(width: int = 3, height: int = 2) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0\xff\xff\xff\0\0\0;"


def jpeg(width: int = 5, height: int = 4) -> bytes:
    app = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0" + b"\0" * 9
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    return b"\xff\xd8" + app + b"\xff" + frame + b"\xff\xd9"


def webp(kind: bytes = b"VP8X", width: int = 7, height: int = 6) -> bytes:
    sizes = {
        b"VP8X": b"\0" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"),
        b"VP8L": b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little"),
        b"VP8 ": b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height),
    }
    data = kind + struct.pack("<I", len(sizes[kind])) + sizes[kind]
    return b"RIFF" + struct.pack("<I", len(data) + 4) + b"WEBP" + data


DOT = Image.from_bytes(png(), "dot.png")
NOTE = Document.from_bytes("a note, ä".encode(), "note.txt")
PAPER = Document.from_bytes(PDF, "paper.pdf")
