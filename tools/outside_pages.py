"""Files of the repository on the docs site: a hook for mkdocs. Pages link to the changelog, to
examples and to tests as files beside `docs`, as they must in a clone; on the site each of these is
a page of its own, and the links lead there."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md")
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".json": "json", ".yml": "yaml"}
FENCED = re.compile(r"(^ *```.*?^ *```[^\S\n]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))|(?<=^\[)[^\]\n]+\]: (\S+)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the examples into the nav."""
    for part in config.nav or []:
        if isinstance(part, dict) and "Examples" in part:
            part["Examples"] = [_entry(path) for path in _examples()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside `docs` that a page links to, and for those in the nav."""
    ours = {file.src_uri for file in files}
    paths = [*ALWAYS, *_examples()]
    for file in files.documentation_pages():
        paths += _outside(file.content_string, f"docs/{file.src_uri}")
    pages: set[str] = set()
    while paths:
        path = paths.pop(0)
        if path in pages or (to := page_of(path)) == "index.md":
            continue
        pages.add(path)
        if to in ours:
            raise PluginError(f"{path} and docs/{to} would be the same page of the site")
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.endswith(".md"):
            paths += _outside(text, path)
        else:
            language = LANGUAGES.get(Path(path).suffix, "text")
            text = f"# {path}\n\n```{language}\n{text.rstrip()}\n```\n"
        files.append(File.generated(config, to, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page that leave `docs` to the pages made here."""
    at = page.file.src_uri
    generated = page.file.generated_by is not None
    source = f"docs/{at}"
    if generated:
        source = at if (ROOT / at).is_file() else at.removesuffix(".md")

    def led(link: str) -> str:
        path = _file_of(link, source)
        if path is None or (not generated and path.startswith("docs/")):
            return link
        to = posixpath.relpath(page_of(path), posixpath.dirname(at) or ".")
        fragment = urlsplit(link).fragment
        # The front page of the site and the README have different headings.
        return f"{to}#{fragment}" if fragment and path != "README.md" else to

    return _with_links(markdown, led)


def page_of(path: str) -> str:
    """Return mkdocs' name of the page for a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"{path}.md"


def _examples() -> list[str]:
    """Return the examples for the nav: the overview first, then the outfit, then the others."""
    examples = sorted(
        (ROOT / "examples").glob("*.py"), key=lambda path: (path.stem != "ootd", path)
    )
    overview = ROOT / "examples" / "README.md"
    return [
        path.relative_to(ROOT).as_posix()
        for path in [*([overview] if overview.is_file() else []), *examples]
    ]


def _entry(path: str) -> str | dict[str, str]:
    """Return the nav entry of an example."""
    return page_of(path) if path.endswith(".md") else {Path(path).name: page_of(path)}


def _outside(text: str, source: str) -> list[str]:
    """Return the files outside `docs` that a text links to."""
    paths: list[str] = []

    def note(link: str) -> str:
        path = _file_of(link, source)
        if path is not None and not path.startswith("docs/"):
            paths.append(path)
        return link

    _with_links(text, note)
    return paths


def _file_of(link: str, source: str) -> str | None:
    """Return the file of the repository that a link on a page refers to, or None."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), parts.path))
    if (ROOT / path).is_dir() and (ROOT / path / "README.md").is_file():
        path = f"{path}/README.md"
    return path if not path.startswith("..") and (ROOT / path).is_file() else None


def _with_links(text: str, change: Callable[[str], str]) -> str:
    """Change each link of a text, except in code."""

    def changed(match: re.Match[str]) -> str:
        link = match[1] or match[2]
        return match[0].replace(link, change(link))

    parts = FENCED.split(text)
    return "".join(part if at % 2 else LINK.sub(changed, part) for at, part in enumerate(parts))
