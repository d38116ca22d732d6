"""Limits on the files of a request: their kinds, their number, their size and the pixels of images.
bae checks the limits before it sends a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bae.exceptions import BaeLMError
from bae.files import File, Image, size_text

if TYPE_CHECKING:
    from bae.files import Attached
    from bae.lm.backend import Backend
    from bae.prompts.messages import FilePart, Prompt


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The limits of a provider on the files in one request. None means no limit. Sizes are in
    base64, which has a third more bytes than the file."""

    total: int = 50 * 1024 * 1024
    """The most bytes of all files and texts together."""
    image: int | None = None
    """The most bytes of one image."""
    images: int | None = None
    """The most images."""
    side: int | None = None
    """The most pixels on the longer side of an image."""
    side_of_many: int | None = None
    """The limit instead of `side` if the request has more than `many` images."""
    many: int = 20
    """The number of images above which `side_of_many` applies."""


DEFAULT_LIMITS: Final = FileLimits()
"""The limits for a provider whose own limits are unknown."""
CLAUDE_LIMITS: Final = FileLimits(
    total=32 * 1024 * 1024,
    image=5 * 1024 * 1024,
    images=600,
    side=8_000,
    side_of_many=2_000,
)
"""The limits of Anthropic's API. For a model with a context window of at most 200,000 tokens,
`claude_limits` returns a lower limit on the number of images."""
_SMALL_WINDOW: Final = 200_000
_IMAGES_OF_SMALL: Final = 100
OPENAI_LIMITS: Final = FileLimits(images=500)


def claude_limits(window: int | None) -> FileLimits:
    """Return the limits of an Anthropic model with this context window."""
    if window is None or window > _SMALL_WINDOW:
        return CLAUDE_LIMITS
    return FileLimits(
        CLAUDE_LIMITS.total,
        CLAUDE_LIMITS.image,
        _IMAGES_OF_SMALL,
        CLAUDE_LIMITS.side,
        CLAUDE_LIMITS.side_of_many,
    )


def limits_of(provider: str, window: int | None = None) -> FileLimits:
    """Return the limits of a provider, by its name in PydanticAI and LiteLLM."""
    match provider:
        case "anthropic":
            return claude_limits(window)
        case "openai":
            return OPENAI_LIMITS
        case _:
            return DEFAULT_LIMITS


def check_files(backend: Backend, prompt: Prompt, parts: Sequence[FilePart]) -> None:
    """Raise `BaeLMError` if the model does not take a file of the prompt, or if the provider would
    refuse the files."""
    for part in parts:
        if part.file.kind not in backend.takes_files:
            raise unsupported_file_error(backend, part.file, part.label)
    excess = next(_excesses(backend.file_limits, prompt, parts), "")
    if excess:
        listed = ", ".join(f"{part.label} ({part.file.about})" for part in parts[:_SHOWN])
        more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
        raise BaeLMError(
            f"{backend!r} was not asked: {excess}. The files are {listed}{more}",
            code="bae-lm-files-limit",
            sent=False,
            fix="send fewer or smaller files: a Dep that makes an image smaller, or a Map that asks"
            " about each file by itself",
        )


def unsupported_file_error(backend: object, file: Attached, label: str = "") -> BaeLMError:
    """Return the error for a file that the model does not take."""
    file_text = f" ({label or 'the file'}: {file.about})"
    return BaeLMError(
        f"{backend!r} takes no {file.kind}s{file_text}",
        code="bae-lm-files",
        sent=False,
        fix=f"use a model that takes {file.kind}s, for this node alone with NodeConfig(lm=…), or "
        "leave the field out of what the model sees with Field(exclude=True)",
    )


_SHOWN: Final = 5


def _excesses(limits: FileLimits, prompt: Prompt, parts: Sequence[FilePart]) -> Iterator[str]:
    """Yield a message for each limit that the files exceed."""
    files = [part.file for part in parts if isinstance(part.file, File)]
    total = sum(_sent_size(file) for file in files)
    texts = len(prompt.system) + sum(len(message.text) for message in prompt.conversation)
    if total + texts > limits.total:
        yield (
            f"its files have {size_text(total)} in base64, and a request may have "
            f"{size_text(limits.total)} with its texts"
        )
    images = [part.file for part in parts if part.file.kind == "image"]
    if limits.images is not None and len(images) > limits.images:
        yield f"it has {len(images)} images, and a request may have {limits.images}"
    is_many = len(images) > limits.many
    side = limits.side_of_many if is_many and limits.side_of_many else limits.side
    for image in images:
        if not isinstance(image, Image):
            continue
        if limits.image is not None and _sent_size(image) > limits.image:
            yield (
                f"{image.placeholder} has {size_text(_sent_size(image))} in base64, and an image "
                f"may have {size_text(limits.image)}"
            )
        width, height = image.pixels
        if side is not None and max(width, height) > side:
            among = f" among more than {limits.many}" if is_many else ""
            yield (
                f"{image.placeholder} has {width:,} × {height:,} pixels, and a side of an image"
                f"{among} may have {side:,}"
            )


def _sent_size(file: File) -> int:
    return (file.size + 2) // 3 * 4


def estimated_tokens(file: Attached) -> int:
    """Estimate the tokens of a file."""
    if isinstance(file, Image):
        width, height = file.pixels
        return max(85, min(_TOKENS_OF_IMAGE, width * height // _PIXELS_PER_TOKEN))
    if isinstance(file, File) and file.media_type == "text/plain":
        return max(1, file.size // 4)
    if isinstance(file, File):
        return _TOKENS_OF_PAGE * max(1, file.data.count(b"/Type /Page\n"), file.size // _PAGE)
    return _TOKENS_OF_IMAGE


_TOKENS_OF_IMAGE: Final = 1_600
_PIXELS_PER_TOKEN: Final = 750
_TOKENS_OF_PAGE: Final = 2_000
_PAGE: Final = 100_000
"""The approximate bytes of a page in a PDF."""
