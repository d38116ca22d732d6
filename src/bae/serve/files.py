"""Endpoints for images and documents. Users send files for later runs, and get the files of runs
that they may see. JSON names a file by its hash."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, Field
from starlette.responses import Response

from bae.files import HASH, MAX_BYTES, File, Image, file_of
from bae.serve.endpoints import ApiCall, Endpoint, Form, get_row, read_bytes
from bae.serve.problems import Refused

KEPT_SECONDS: Final = 3600.0
"""The seconds after which an upload is deleted."""
MOST_OF_USER: Final = 2 * MAX_BYTES
"""The maximum size of one user's uploads in bytes. New uploads replace the oldest uploads."""
MOST_OF_ALL: Final = 16 * MAX_BYTES
"""The maximum size of all users' uploads in bytes."""
MOST_NAMED: Final = 4 * MAX_BYTES
"""The maximum size in bytes of the files that one request names."""
MOST_HASHES: Final = 1_000
"""The maximum number of hashes in a request that are looked up. No provider takes so many files."""


class UploadQuery(Form):
    """The name of the file. People and the model see this name."""

    name: Annotated[str, Field(max_length=200)] = ""


class FileView(BaseModel):
    """A file in JSON. A field for an image or a document takes this object, or only the hash."""

    hash: str
    type: str
    size: int
    name: str = ""


class Uploads:
    """The files that users have sent, in memory. Users find only their own files."""

    def __init__(self) -> None:
        self._uploads: dict[tuple[str, str], tuple[float, File]] = {}
        """The uploads by user and hash, the oldest first. An upload is the time when it expires,
        and the file."""

    def add(self, user: str, file: File) -> None:
        """Store a file for a user. Raises `Refused` if the uploads of all users are too large."""
        now = monotonic()
        self._uploads.pop((user, file.hash), None)
        self._uploads = {key: upload for key, upload in self._uploads.items() if upload[0] > now}
        user_files = {key: upload for key, (_, upload) in self._uploads.items() if key[0] == user}
        for key in [*user_files]:
            if _total_size(user_files.values()) + file.size <= MOST_OF_USER:
                break
            del self._uploads[key], user_files[key]
        if _total_size(upload for _, upload in self._uploads.values()) + file.size > MOST_OF_ALL:
            raise Refused(
                503,
                "bae-serve-busy",
                f"the uploads of all users have {MOST_OF_ALL:,} bytes",
                "try again later: an upload is kept for an hour",
                headers={"retry-after": "60"},
            )
        self._uploads[user, file.hash] = now + KEPT_SECONDS, file

    def find(self, user: str, hash: str) -> File | None:
        """Return a file that the user has sent, or None."""
        until, file = self._uploads.get((user, hash), (0.0, None))
        return file if until > monotonic() else None


def _total_size(files: Iterable[File]) -> int:
    return sum(file.size for file in files)


async def upload_file(call: ApiCall) -> tuple[int, FileView]:
    """Send a file for a run, a fork or an answer."""
    data = await read_bytes(call.request, MAX_BYTES, "send a smaller file")
    try:
        file = await call.api.fold(file_of, data, call.query.name)
    except ValueError as error:
        raise Refused(
            422,
            "bae-serve-input",
            f"body: {error}",
            "send the bytes of a JPEG, PNG, GIF or WebP image, a PDF, or a text in UTF-8",
            place="body",
        ) from error
    call.api.uploads.add(call.user.name, file)
    return 201, FileView(hash=file.hash, type=file.media_type, size=file.size, name=file.name)


async def show_file(call: ApiCall) -> Response:
    """Get an image or a document."""
    name = call.path["hash"]
    hash = name if name.startswith("sha256:") else f"sha256:{name}"
    stored = await _find_visible_file(call, hash) if HASH.fullmatch(hash) else None
    if stored is None:
        raise Refused(
            404,
            "bae-serve-file",
            f"there is no file {name[:80]!r} in a run that you may see",
            "give a hash that a field of such a run has",
        )
    try:
        file = stored if isinstance(stored, File) else await call.api.fold(file_of, stored)
    except ValueError:  # the bytes are no file: another program has written the run
        return _file_response(
            cast("bytes", stored), "application/octet-stream", hash, is_shown=False
        )
    return _file_response(file.data, file.media_type, hash, is_shown=isinstance(file, Image))


def _file_response(data: bytes, media_type: str, hash: str, *, is_shown: bool) -> Response:
    """Return the response with a file. A browser shows an image, and saves any other file."""
    name = f"{hash[7:15]}.{_ENDINGS.get(media_type, 'bin')}"
    disposition = "inline" if is_shown else "attachment"
    headers = {
        "content-disposition": f'{disposition}; filename="{name}"',
        "content-security-policy": "default-src 'none'; sandbox",
    }
    return Response(data, headers=headers, media_type=media_type)


_ENDINGS: Final = {
    "image/jpeg": "jpg",
    "image/png": "png",
    "image/gif": "gif",
    "image/webp": "webp",
    "application/pdf": "pdf",
    "text/plain": "txt",
}


async def find_named_files(call: ApiCall, value: Any) -> dict[str, File | bytes]:
    """Return the files that JSON names by hash and that the user may see."""
    files: dict[str, File | bytes] = {}
    size = 0
    for hash in _hashes_in(value):
        file = await _find_visible_file(call, hash)
        if file is None:
            continue  # a field for files refuses the hash of an unknown file
        size += len(file) if isinstance(file, bytes) else file.size
        if size > MOST_NAMED:
            raise Refused(
                413,
                "bae-serve-large",
                f"the files that the request names have more than {MOST_NAMED:,} bytes",
                "name fewer files: no model takes so much at once",
            )
        files[hash] = file
    return files


def _hashes_in(value: Any) -> list[str]:
    hashes: dict[str, None] = {}
    values = [value]
    for item in values:
        if isinstance(item, str) and HASH.fullmatch(item):
            hashes[item] = None
        elif isinstance(item, dict):
            values += cast("dict[str, Any]", item).values()
        elif isinstance(item, list):
            values += cast("list[Any]", item)
    return [*hashes][:MOST_HASHES]


async def _find_visible_file(call: ApiCall, hash: str) -> File | bytes | None:
    """Return a file that the user has sent, or a file of a run that the user may see. If there is
    no such file, return None."""
    api, user = call.api, call.user
    upload = api.uploads.find(user.name, hash)
    if upload is not None:
        return upload
    return await api.journal.find_file(hash, lambda info: api.may_see(user, info))


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/files",
        "run",
        "Send an image or a document, for a run, a fork or an answer.",
        upload_file,
        {201: FileView},
        UploadQuery,
        takes_bytes=True,
        or_verbs=("answer", "edit"),
    ),
    get_row("/files/{hash}", "Get an image or a document of a run.", show_file, "*/*"),
)
