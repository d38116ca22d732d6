"""Where this bae was installed from, so that a new project can say how to get the same: an index
knows it by name, a clone or an archive by its URL."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, Final, cast
from urllib.parse import urlsplit, urlunsplit

WITH_EXTRAS: Final = "bae-graphs[cli]"


@dataclass(frozen=True, slots=True)
class Origin:
    """The URL that bae was installed from, empty where that was an index; and whether others can
    use it too."""

    url: str = ""
    shared: bool = False

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
        """The line of a pyproject.toml. A path of this machine is no use to others, so that it is
        only said beside the name."""
        if not self.url or self.shared:
            return f"    {json.dumps(self.requirement)},"
        return (
            f"    # Not on an index yet. Here: pip install {self.install}\n"
            f"    {json.dumps(WITH_EXTRAS)},"
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
    vcs = told.get("vcs_info")
    if isinstance(vcs, dict):
        about = cast("dict[str, Any]", vcs)
        url = f"{about.get('vcs', 'git')}+{url}@{about.get('commit_id', '')}".rstrip("@")
    folder = told.get("subdirectory")
    if folder:
        url += f"#subdirectory={folder}"
    return Origin(url, shared=urlsplit(url).scheme.rpartition("+")[2] in ("https", "http", "ssh"))


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    user, at, host = parts.netloc.rpartition("@")
    if not at or (parts.scheme == "ssh" and ":" not in user):
        return url
    return urlunsplit(parts._replace(netloc=host))
