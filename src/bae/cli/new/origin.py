"""Where this bae was installed from, so that a new project can say how to get the same: an index
knows it by name, a clone or an archive by its URL."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, Final, cast
from urllib.parse import urlsplit, urlunsplit
from urllib.request import url2pathname

WITH_EXTRAS: Final = "bae-graphs[cli]"


@dataclass(frozen=True, slots=True)
class Origin:
    """The URL that bae was installed from, empty where that was an index; and, where that is of
    this machine alone, the same as uv wants it told."""

    url: str = ""
    uv: str = ""

    @property
    def requirement(self) -> str:
        """What pip is to be given."""
        return f"{WITH_EXTRAS} @ {self.url}" if self.url else WITH_EXTRAS

    @property
    def install(self) -> str:
        """The requirement, as it is typed at a shell."""
        return shlex.quote(self.requirement)

    @property
    def dependency(self) -> str:
        """What a pyproject.toml depends on. A path of this machine is no use to others, so that it
        is no part of it: `source` has it."""
        return json.dumps(WITH_EXTRAS if self.uv else self.requirement)

    @property
    def source(self) -> str:
        """The part of a pyproject.toml that says to uv where this machine has bae; empty where the
        dependency says it."""
        if not self.uv:
            return ""
        return (
            "# Where this machine has bae: it was not installed from an index. Others change it.\n"
            f"[tool.uv.sources]\nbae-graphs = {self.uv}\n\n"
        )


def origin() -> Origin:
    """Where the bae that runs was installed from, as its metadata say."""
    try:
        said = distribution("bae_graphs").read_text("direct_url.json")
        told: object = json.loads(said) if said else {}
    except (PackageNotFoundError, ValueError, OSError):
        return Origin()
    return _read(cast("dict[str, Any]", told)) if isinstance(told, dict) else Origin()


def _read(told: dict[str, Any]) -> Origin:
    url = _without_password(str(told.get("url") or ""))
    if not url:
        return Origin()
    vcs, folder = _part(told, "vcs_info"), str(told.get("subdirectory") or "")
    here = urlsplit(url).scheme == "file"
    if vcs:
        commit = str(vcs.get("commit_id") or "")
        uv = _table(git=url, rev=commit, subdirectory=folder)
        url = f"{vcs.get('vcs', 'git')}+{url}@{commit}".rstrip("@")
    else:
        editable = _part(told, "dir_info").get("editable") is True
        uv = _table(path=_path(url), editable=editable, subdirectory=folder)
    if folder:
        url += f"#subdirectory={folder}"
    return Origin(url, uv if here else "")


def _part(told: dict[str, Any], name: str) -> dict[str, Any]:
    part = told.get(name)
    return cast("dict[str, Any]", part) if isinstance(part, dict) else {}


def _path(url: str) -> str:
    """The path of a URL, with `/` on any system: TOML would read `\\` as an escape."""
    return url2pathname(urlsplit(url).path).replace("\\", "/")


def _table(**values: str | bool) -> str:
    """An inline table of TOML, of the values that say something. JSON writes them as TOML does."""
    said = (
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in values.items()
        if value
    )
    return f"{{ {', '.join(said)} }}"


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    user, at, host = parts.netloc.rpartition("@")
    if not at or (parts.scheme == "ssh" and ":" not in user):
        return url
    return urlunsplit(parts._replace(netloc=host))
