"""The page of the studio: static files, which the studio reads once. Their headers forbid the
browser to run other code."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response

from bae.exceptions import BaeError
from bae.serve.endpoints import raw_path
from bae.serve.problems import Refused

if TYPE_CHECKING:
    from bae.serve.api import API

FOLDER: Final = Path(__file__).with_name("page")
"""The folder of the built page."""
INDEX: Final = "/index.html"
ASSETS: Final = "/assets/"
"""The path of files whose names have a hash of their content. A browser may cache these files
forever."""
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_COMPRESSED: Final = (".ico", ".png", ".woff2")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self' {sockets}; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS: Final = {
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_FOREVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the page. `packed` is the compressed file, or None if compression does not make the
    file shorter."""

    media_type: str
    data: bytes
    packed: bytes | None
    etag: str


class StudioPage:
    """The files of a folder by their paths. For an unknown path, the page sends `index.html`. The
    code of the page then reads the path."""

    def __init__(self, folder: Path | None = None) -> None:
        self._files = _read_files(folder or FOLDER)

    def respond(self, request: Request, api: API) -> Response:
        """Answer a request for a path of the page. Raises `Refused` for the hosts and origins that
        `api` refuses."""
        if _opens_page(request):
            api.check_host(request)
        else:
            api.check_site(request)
        if request.method not in ("GET", "HEAD"):
            raise Refused(
                405,
                "bae-serve-method",
                f"the page has no {request.method[:20]}",
                "the API is below /api",
                headers={"allow": "GET, HEAD"},
            )
        path = raw_path(request.scope)
        file = self._files.get(path)
        if file is None and path.startswith(ASSETS):
            raise Refused(
                404, "bae-serve-path", f"the page has no file {path[:200]}", "reload the page"
            )
        headers = {**_HEADERS, "content-security-policy": _policy_of(request)}
        headers["cache-control"] = _FOREVER if path.startswith(ASSETS) else "no-cache"
        return _send(file or self._files[INDEX], request, headers)


def _opens_page(request: Request) -> bool:
    """Return whether a person opens the page, perhaps by a link on another site. This request is
    allowed from any site, because the page has no data, and no other site can frame the page."""
    kind = request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest")
    return kind == ("navigate", "document") and request.method == "GET"


def _policy_of(request: Request) -> str:
    """Return the content security policy. The policy names the host of the request, because older
    browsers do not accept 'self' for a WebSocket. The caller has checked the host."""
    host = request.headers.get("host", "")
    return _POLICY.format(sockets=f"ws://{host} wss://{host}")


def _send(file: _File, request: Request, headers: dict[str, str]) -> Response:
    packed = file.packed if _takes_gzip(request) else None
    etag = f'"{file.etag}{"" if packed is None else "-gz"}"'
    headers |= {"etag": etag, "vary": "accept-encoding"}
    known_etags = (part.strip() for part in request.headers.get("if-none-match", "").split(","))
    if etag in (known_etag.removeprefix("W/") for known_etag in known_etags):
        return Response(status_code=304, headers=headers)
    if packed is not None:
        headers["content-encoding"] = "gzip"
    body = file.data if packed is None else packed
    # With `media_type=`, Starlette would add a charset to the types of texts.
    response = Response(body, headers=headers)
    response.headers["content-type"] = file.media_type
    return response


def _takes_gzip(request: Request) -> bool:
    for encoding in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, quality = encoding.strip().partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "").rstrip(".0") != "q="
    return False


def _read_files(folder: Path) -> Mapping[str, _File]:
    """Return the files of the page by their paths. The page never sends another file."""
    files: dict[str, _File] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        media_type = _TYPES.get(path.suffix)
        if media_type is None or path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        packed = None if path.suffix in _COMPRESSED else gzip.compress(data, 9, mtime=0)
        if packed is not None and len(packed) >= len(data):
            packed = None
        etag = hashlib.sha256(data).hexdigest()[:20]
        name = f"/{path.relative_to(folder).as_posix()}"
        files[name] = _File(media_type, data, packed, etag)
    if INDEX not in files:
        raise BaeError(
            f"the page of the studio is not built: there is no {folder / INDEX[1:]}",
            code="bae-studio-page",
            fix="install bae-graphs from its wheel; in a clone of the repository, build it: "
            "npm ci && npm run build, in the folder studio",
        )
    return files
