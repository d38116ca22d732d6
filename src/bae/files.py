"""Images and documents that a model sees: values of fields, and results of functions and tools.

The hash of its bytes identifies a file. The JSON of a file is a reference with the hash. The bytes
are stored apart from the JSON: in the messages to a model, and once in the journal."""

from __future__ import annotations

import base64
import binascii
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from hashlib import sha256
from operator import is_
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeGuard, cast

from pydantic_core import PydanticCustomError, SchemaSerializer, core_schema

from bae.file_types import (
    DOCUMENT_TYPES,
    IMAGE_TYPES,
    ImageHeader,
    document_type,
    image_header,
)
from bae.given_files import read_file

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

__all__ = ["File", "visible"]

MAX_BYTES: Final = 32_000_000
"""The maximum size of a file in bytes. No provider accepts more in a request."""
HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
"""The form of a hash."""
OF_FILE: Final = "bae_file"
"""The key in the metadata of a core schema that names the kind of file."""

_Kind = Literal["image", "document"]


class Attached(ABC):
    """A file, or the address of a file, that a model sees beside the text."""

    __slots__ = ("__weakref__",)

    kind: ClassVar[_Kind]

    @property
    @abstractmethod
    def key(self) -> str:
        """The hash of a file, or the address. Equal files have equal keys."""

    @property
    @abstractmethod
    def about(self) -> str:
        """A short description of the file, for people and for prompts."""

    @property
    def placeholder(self) -> str:
        """The text in place of the file, such as `[image photo.png, image/png, 20 KB]`."""
        return f"[{self.kind} {self.about}]"

    @abstractmethod
    def as_json(self) -> Any:
        """Return the JSON of the file or address."""

    @classmethod
    @abstractmethod
    def read_json(cls, value: Any) -> Self:
        """Read a file or address from JSON, which may come from another program."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        from pydantic import Tag

        def make_schema(_: Any) -> core_schema.CoreSchema:
            validator = core_schema.no_info_plain_validator_function(cls._validate)
            return core_schema.json_or_python_schema(
                json_schema=validator,
                python_schema=validator,
                serialization=_SERIALIZER,
                metadata={OF_FILE: cls.__name__},
            )

        # In a union, errors have this tag in place of pydantic's name for the schema.
        tag = Tag(cls.__name__)
        return tag.__get_pydantic_core_schema__(source, cast("GetCoreSchemaHandler", make_schema))

    @classmethod
    def _validate(cls, value: Any) -> Self:
        return value if isinstance(value, cls) else cls.read_json(value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: make another object")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed: make another object")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


class File(Attached):
    """An image or a document with its bytes. The object cannot be changed."""

    __slots__ = ("data", "hash", "media_type", "name")

    data: bytes
    hash: str
    """The hash of the bytes, in the form `sha256:…`."""
    media_type: str
    """The type, read from the bytes: for example `image/png`."""
    name: str
    """A name for people and for the model. It may be empty."""

    media_types: ClassVar[tuple[str, ...]]
    """The media types that the class accepts."""

    def __init__(self, data: bytes, name: str = "") -> None:
        if type(data) is not bytes:
            value = f"{data!r:.80}" if isinstance(data, str | os.PathLike) else type(data).__name__
            raise TypeError(
                f"{type(self).__name__}({value}): give the bytes, or read a file with "
                f"{type(self).__name__}.from_path(…)"
            )
        global _in_use
        _in_use = True
        refused, media_type = self._find_type(data)
        if refused:
            raise ValueError(refused)
        set_attribute = object.__setattr__
        set_attribute(self, "data", data)
        set_attribute(self, "hash", f"sha256:{sha256(data).hexdigest()}")
        set_attribute(self, "media_type", media_type)
        set_attribute(self, "name", _as_name(name))

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "") -> Self:
        """Make a file from bytes. Raises `ValueError` if the class does not accept this type of
        bytes."""
        return cls(data, name)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], name: str | None = None) -> Self:
        """Read a file. Raises `OSError` if it cannot be read, and `ValueError` if the class does
        not accept its type. Only code can read a path in this way: JSON cannot name a path."""
        try:
            return cls(read_file(path, MAX_BYTES), Path(path).name if name is None else name)
        except OSError as error:
            if error.filename is not None:
                raise
            raise OSError(f"{os.fspath(path)!r} cannot be read: {error}") from error
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)!r}: {error}") from None

    @classmethod
    def from_data_url(cls, text: str, name: str = "") -> Self:
        """Make a file from a data URL, such as `data:image/png;base64,…`. The type is read from the
        bytes, not from the URL."""
        return cls(_decode_data_url(text), name)

    @property
    def data_url(self) -> str:
        """The complete file as a data URL."""
        return f"data:{self.media_type};base64,{self.base64}"

    @property
    def base64(self) -> str:
        """The bytes as base64 text."""
        return base64.b64encode(self.data).decode()

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.data)

    @property
    def key(self) -> str:
        """The hash."""
        return self.hash

    @property
    def about(self) -> str:
        """The name, the type and the size."""
        parts = [self.name, self.media_type, size_text(self.size)]
        return ", ".join(part for part in parts if part)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the bytes to a file."""
        Path(path).write_bytes(self.data)

    def as_json(self) -> dict[str, Any]:
        """Return a reference to the file: its hash, type and size, and its name if it has one."""
        reference = {"hash": self.hash, "type": self.media_type, "size": self.size}
        return {**reference, "name": self.name} if self.name else reference

    @classmethod
    def read_json(cls, value: Any) -> Self:
        """Read a file from a data URL, or find it by a reference to a visible file. A path is
        refused."""
        source, name = value, None
        if is_reference(value) or _has_data_url(value):
            source, name = value.get("hash", value.get("data")), value.get("name", "")
            if not isinstance(name, str):
                raise _invalid_file_error(cls, "its name is not a text")
        if isinstance(source, bytes | bytearray):
            raise _invalid_file_error(cls, f"give bytes as {cls.__name__}.from_bytes(data)")
        if isinstance(source, FileUrl) or (isinstance(source, str) and _ADDRESS.fullmatch(source)):
            both = f"{cls.__name__} | {cls.__name__}Url"
            raise _invalid_file_error(cls, f"an address is allowed only if the type is {both}")
        if not isinstance(source, str):
            raise _invalid_file_error(cls, f"{_FORMS}, and this is a {type(source).__name__}")
        try:
            if source[:5].lower() == "data:":
                return cls(_decode_data_url(source), name or "")
            if HASH.fullmatch(source):
                return cls._find(source, name)
        except ValueError as error:
            raise _invalid_file_error(cls, str(error)) from None
        raise _invalid_file_error(
            cls,
            f"{_FORMS}. This is neither; only {cls.__name__}.from_path(…) in Python reads a path",
        )

    @classmethod
    def _find(cls, hash: str, name: str | None) -> Self:
        """Return the visible file with a hash. The file gets the `name`. If `name` is None, it
        keeps its own name."""
        scope = _scope.get()
        visible_file = None
        while scope is not None and (visible_file := scope.find(hash)) is None:
            scope = scope.outer
        if visible_file is None or scope is None:
            raise ValueError(
                f"there is no file {hash[:15]}… that is visible here: give a data URL, or make the "
                "file visible with bae.files.visible(…)"
            )
        if isinstance(visible_file, cls) and name in (None, visible_file.name):
            return visible_file
        data, own_name = (
            (visible_file, "")
            if isinstance(visible_file, bytes)
            else (visible_file.data, visible_file.name)
        )
        file = cls(data, own_name if name is None else name)
        scope.collected.setdefault(hash, file)
        return file

    @classmethod
    @abstractmethod
    def _find_type(cls, data: bytes) -> tuple[str, str]:
        """Return the reason why the class refuses the bytes, and the media type of the bytes. One
        of the two texts is empty."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, File):
            return NotImplemented
        return (type(self), self.hash, self.name) == (type(other), other.hash, other.name)

    def __hash__(self) -> int:
        return hash((self.hash, self.name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.about})"

    def __reduce__(self) -> Any:
        return type(self), (self.data, self.name)


class Image(File):
    """An image that a model sees: JPEG, PNG, GIF or WebP.

    Make an image with `Image.from_path(path)`, `Image.from_bytes(data)` or
    `Image.from_data_url(text)`. `Image.from_url(address)` makes an `ImageUrl`.
    """

    __slots__ = ()

    kind = "image"
    media_types = IMAGE_TYPES

    @classmethod
    def from_url(cls, url: str) -> ImageUrl:
        """Make an `ImageUrl` from an address. The provider of the model fetches the image."""
        return ImageUrl(url)

    @property
    def pixels(self) -> tuple[int, int]:
        """The width and the height in pixels."""
        return cast("ImageHeader", image_header(self.data))[1:]

    @classmethod
    def _find_type(cls, data: bytes) -> tuple[str, str]:
        if not data or len(data) > MAX_BYTES:
            return _explain_size(data), ""
        header = image_header(data)
        if header is None:
            return "the bytes are no JPEG, PNG, GIF or WebP image, or its header is cut off", ""
        return "", header.media_type

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _describe_json("An image", "image", handler.mode)


class Document(File):
    """A document that a model sees: PDF, or plain text in UTF-8.

    Make a document with `Document.from_path(path)`, `Document.from_bytes(data)` or
    `Document.from_data_url(text)`. `Document.from_url(address)` makes a `DocumentUrl`.
    """

    __slots__ = ()

    kind = "document"
    media_types = DOCUMENT_TYPES

    @classmethod
    def from_url(cls, url: str) -> DocumentUrl:
        """Make a `DocumentUrl` from an address. The provider of the model fetches the document."""
        return DocumentUrl(url)

    @property
    def text(self) -> str:
        """The text of a plain text document. Raises `ValueError` for a PDF."""
        if self.media_type != "text/plain":
            raise ValueError(f"{self.placeholder} is no plain text")
        return self.data.decode()

    @classmethod
    def _find_type(cls, data: bytes) -> tuple[str, str]:
        if not data or len(data) > MAX_BYTES:
            return _explain_size(data), ""
        media_type = document_type(data)
        if not media_type:
            return "the bytes are no PDF and no text in UTF-8", ""
        return "", media_type

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return _describe_json("A PDF or plain text document", "document", handler.mode)


class FileUrl(Attached):
    """The address of a file. The provider of the model fetches the file; bae does not."""

    __slots__ = ("url",)

    url: str

    def __init__(self, url: str) -> None:
        global _in_use
        _in_use = True
        if not isinstance(cast(object, url), str) or not _ADDRESS.fullmatch(url):
            raise ValueError(
                f"{type(self).__name__}({url!r:.80}): give an address that begins with https:// or "
                f"http://, of at most {_LONGEST_URL:,} characters"
            )
        object.__setattr__(self, "url", url)

    @property
    def key(self) -> str:
        """The address."""
        return self.url

    @property
    def about(self) -> str:
        """The address without the parts that may be secret: the user, the query and the
        fragment."""
        scheme, _, rest = re.split(r"[?#]", self.url, maxsplit=1)[0].partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"

    def as_json(self) -> str:
        """Return the address."""
        return self.url

    @classmethod
    def read_json(cls, value: Any) -> Self:
        """Read an address."""
        if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
            raise PydanticCustomError(
                "bae_file_url", "an address begins with https:// or http://, and this does not"
            )
        return cls(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        about = f"The address of the {cls.kind}, which the provider of the model fetches"
        return {"type": "string", "format": "uri", "description": about}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileUrl):
            return NotImplemented
        return (type(self), self.url) == (type(other), other.url)

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.about})"

    def __reduce__(self) -> Any:
        return type(self), (self.url,)


class ImageUrl(FileUrl):
    """The address of an image. A field takes an address from JSON if its type allows it:
    `Image | ImageUrl`. The provider of the model fetches the image; bae does not."""

    __slots__ = ()

    kind = "image"


class DocumentUrl(FileUrl):
    """The address of a document. A field takes an address from JSON if its type allows it:
    `Document | DocumentUrl`. The provider of the model fetches the document; bae does not."""

    __slots__ = ()

    kind = "document"


# --- visible files -----------------------------------------------------------------------------


class FileScope:
    """The files that are visible while JSON is read or written.

    `known` are the files that the scope began with, by hash. `collected` are the files in JSON that
    was written in the scope, and files that bae made from the bytes of visible files. `outer` is
    the scope around this scope.
    """

    __slots__ = ("collected", "known", "outer")

    def __init__(
        self, known: Mapping[str, File | bytes] | None = None, outer: FileScope | None = None
    ) -> None:
        self.known, self.outer = known or {}, outer
        self.collected: dict[str, Attached] = {}

    def find(self, hash: str) -> File | bytes | None:
        """Return a file of this scope by its hash; None if the scope does not have it."""
        file = self.collected.get(hash)
        return file if isinstance(file, File) else self.known.get(hash)


_scope: ContextVar[FileScope | None] = ContextVar("bae_files", default=None)
_in_use = False


def in_use() -> bool:
    """Return whether this process has made a file, a file's address, or a file visible. If it has
    not, no value can contain a file or an address."""
    return _in_use


@contextmanager
def visible(files: Iterable[File] | Mapping[str, File | bytes]) -> Generator[None]:
    """Let JSON that is read inside the block name these files by their hashes. A server can so let
    each client name only the client's own files.

    ```python
    with visible(files_of(user)):
        start = Question.model_validate_json(body)
    ```
    """
    global _in_use
    known: Mapping[str, File | bytes]
    if isinstance(files, Mapping):
        known = cast("Mapping[str, File | bytes]", files)
    else:
        known = {file.hash: file for file in files}
    # For example, a resumed run may have files before this process has made a file.
    _in_use = _in_use or bool(known)
    token = _scope.set(FileScope(known, _scope.get()))
    try:
        yield
    finally:
        _scope.reset(token)


def collect_files() -> _FileCollector:
    """Collect the files in all JSON that is written inside the block. The block gets a dict with
    the files by hash or address."""
    return _FileCollector()


class _FileCollector:
    """Collects files inside a block. Every record is written in such a block. So this is a class: a
    generator would take three times as long."""

    __slots__ = ("_token",)

    _token: Token[FileScope | None]

    def __enter__(self) -> dict[str, Attached]:
        scope = FileScope(None, _scope.get())
        self._token = _scope.set(scope)
        return scope.collected

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)


def is_collecting() -> bool:
    """Return whether the files in JSON that is written now are collected."""
    return _scope.get() is not None


def find_visible(hash: str, name: str = "") -> File | None:
    """Return the visible file with this hash; None if there is no such file. If bae only has the
    bytes, the file gets the `name`."""
    scope = _scope.get()
    while scope is not None:
        file = scope.find(hash)
        if file is not None:
            return file if isinstance(file, File) else file_of(file, name)
        scope = scope.outer
    return None


def visible_files_in(value: Any) -> Iterator[File]:
    """Yield the visible files that a JSON value refers to."""
    if is_reference(value):
        file = find_visible(value["hash"], str(value.get("name", "")))
        if file is not None:
            yield file
    elif isinstance(value, list | dict):
        parts = cast("list[Any] | dict[str, Any]", value)
        for part in parts.values() if isinstance(parts, dict) else parts:
            yield from visible_files_in(part)


def file_of(data: bytes, name: str = "") -> File:
    """Make an image or a document from bytes. Raises `ValueError` if the bytes are neither."""
    return Document(data, name) if image_header(data) is None else Image(data, name)


def is_reference(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a JSON value has the form of a reference to a file."""
    if not isinstance(value, dict):
        return False
    reference = cast("dict[str, Any]", value)
    return isinstance(reference.get("hash"), str) and reference.keys() <= _OF_REFERENCE


def placeholder_of(reference: Mapping[str, Any]) -> str:
    """Make the placeholder of a file from a reference in JSON."""
    media_type = str(reference.get("type", ""))
    kind = "image" if media_type.startswith("image/") else "document"
    size = reference.get("size")
    parts = [str(reference.get("name", "")), media_type]
    parts.append(size_text(size) if isinstance(size, int) else "")
    return f"[{kind} {', '.join(_as_name(part) for part in parts if part)}]"


def with_placeholders(value: Any) -> Any:
    """Replace the references in a JSON value with placeholders."""
    if isinstance(value, list):
        return [with_placeholders(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    parts = cast("dict[str, Any]", value)
    if parts.keys() >= {"hash", "type", "size"} and is_reference(value):
        return placeholder_of(parts) if HASH.fullmatch(parts["hash"]) else parts
    return {name: with_placeholders(part) for name, part in parts.items()}


def placeholders_in(value: Any) -> list[str]:
    """Return the placeholders of the references in a JSON value, without duplicates."""
    placeholders: dict[str, None] = {}
    values_to_search = [value]
    for searched_value in values_to_search:
        if isinstance(searched_value, list):
            values_to_search += cast("list[Any]", searched_value)
        elif isinstance(searched_value, dict):
            placeholder = with_placeholders(searched_value)
            if isinstance(placeholder, str):
                placeholders[placeholder] = None
            else:
                values_to_search += cast("dict[str, Any]", searched_value).values()
    return [*placeholders]


def with_paths_read(value: Any, read: Callable[[str], File]) -> Any:
    """Replace every `@PATH` in a JSON value with the file that `read` returns for the path. Return
    the same object if there is no `@PATH`. Use this function only for JSON that a person types at
    this machine, because it reads files."""
    if isinstance(value, str):
        if len(value) < 2 or not value.startswith("@"):
            return value
        file = read(value[1:])
        return {"data": file.data_url, "name": file.name}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        read_items = [with_paths_read(item, read) for item in items]
        return items if all(map(is_, read_items, items)) else read_items
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value)
        read_parts = {name: with_paths_read(part, read) for name, part in parts.items()}
        return parts if all(map(is_, read_parts.values(), parts.values())) else read_parts
    return value


def size_text(size: int) -> str:
    """Return a number of bytes as a short text, such as `20 KB`."""
    if size < 1_000:
        return f"{size} bytes"
    if size < 1_000_000:
        return f"{size / 1_000:.0f} KB"
    return f"{size / 1_000_000:.1f} MB"


def _write_json(value: Attached) -> Any:
    scope = _scope.get()
    if scope is None:
        return value.as_json()
    scope.collected.setdefault(value.key, value)
    return value.as_json()


_SERIALIZER: Final = core_schema.plain_serializer_function_ser_schema(
    _write_json, return_schema=core_schema.any_schema(), when_used="json"
)
# If a value has no declared type, pydantic uses the serializer of the value.
cast(Any, Attached).__pydantic_serializer__ = SchemaSerializer(
    core_schema.any_schema(serialization=_SERIALIZER)
)

_OF_REFERENCE: Final = frozenset({"hash", "type", "size", "name"})
_OF_DATA: Final = frozenset({"data", "type", "size", "name"})
_FORMS: Final = (
    'a file in JSON is a data URL, {"data": a data URL, "name": …}, or {"hash": "sha256:…"} of a '
    "visible file"
)
_LONGEST_URL: Final = 2_048
_ADDRESS: Final = re.compile(rf"https?://[^\s\x00-\x1f]{{1,{_LONGEST_URL - 8}}}", re.IGNORECASE)
_LONGEST_NAME: Final = 200
_DATA_URL: Final = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_LONGEST_DATA_URL: Final = MAX_BYTES // 3 * 4 + 300


def _has_data_url(value: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(value, dict):
        return False
    parts = cast("dict[str, Any]", value)
    return isinstance(parts.get("data"), str) and parts.keys() <= _OF_DATA


def _as_name(name: str) -> str:
    """Return a name in one line, without the brackets that begin and end a placeholder."""
    safe_name = "".join(char if char.isprintable() and char not in "[]" else "_" for char in name)
    return safe_name[:_LONGEST_NAME].encode("utf-8", "replace").decode()


def _decode_data_url(text: str) -> bytes:
    """Return the bytes in a data URL. Raises `ValueError` if the URL is invalid or too long."""
    if len(text) > _LONGEST_DATA_URL:
        raise ValueError(_explain_too_large(len(text) // 4 * 3))
    head = _DATA_URL.match(text)
    if head is None:
        raise ValueError("a data URL of a file begins with data:TYPE;base64, and this does not")
    try:
        return binascii.a2b_base64(text[head.end() :], strict_mode=True)
    except ValueError as error:
        raise ValueError("the data URL has no valid base64") from error


def _explain_size(data: bytes) -> str:
    return _explain_too_large(len(data)) if data else "it has no bytes"


def _explain_too_large(size: int) -> str:
    return f"it has about {size_text(size)}, and a file may have {size_text(MAX_BYTES)}"


def _invalid_file_error(cls: type[File], why: str) -> PydanticCustomError:
    return PydanticCustomError("bae_file", "{why}", {"why": why, "type": cls.__name__})


def _describe_json(about: str, kind: _Kind, mode: str) -> dict[str, Any]:
    """Return the JSON schema of a file that clients send, or get if `mode` is "serialization". The
    key `format` tells clients that the schema is of a file."""
    hash_schema = {"type": "string", "pattern": f"^{HASH.pattern}$"}
    name_schema = {"type": "string"}
    if mode == "serialization":
        reference = {"hash": hash_schema, "type": {"type": "string"}, "size": {"type": "integer"}}
        return {
            "description": f"{about}, by its hash",
            "type": "object",
            "properties": {**reference, "name": name_schema},
            "required": [*reference],
        }
    return {
        "description": f"{about}: a data URL, or the hash of a file that is known",
        "format": kind,
        "anyOf": [
            {"type": "string", "pattern": "^data:"},
            hash_schema,
            {
                "type": "object",
                "properties": {
                    "data": {"type": "string", "pattern": "^data:"},
                    "name": name_schema,
                },
                "required": ["data"],
            },
            {
                "type": "object",
                "properties": {"hash": hash_schema, "name": name_schema},
                "required": ["hash"],
            },
        ],
    }
