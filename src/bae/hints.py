"""Evaluates type hints on every Python version. The names in a hint may be defined at module level,
inside a function, in another module, or later than the hint. If a name cannot be found, a
`HintError` lists the places where bae looked."""

from __future__ import annotations

import builtins
import functools
import inspect
import linecache
import re
import sys
import typing
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from opcode import opname
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple, cast

from pydantic import BaseModel

from bae.exceptions import HintError, text_of

_FRAME = "__bae_frame__"


class Names(NamedTuple):
    """The scopes in which bae looks up the names of a hint."""

    places: tuple[tuple[str, Mapping[str, Any]], ...]
    """The label of each scope, for messages, and its names. The innermost scope is first."""
    module: dict[str, Any]
    """The names of the module."""
    frame: FrameType | None = None
    """The frame of the function or class body around the definition, if bae still has it."""

    def then(self, other: Names) -> Names:
        """Return these scopes, followed by the scopes of `other`."""
        places = (*self.places, *other.places)
        return Names(places, self.module or other.module, self.frame or other.frame)

    @property
    def known(self) -> Mapping[str, Any]:
        """The meaning of each name. If several scopes have a name, the innermost scope counts."""
        return ChainMap(*(cast("dict[str, Any]", place) for _, place in self.places))


NOWHERE = Names((), {})


def remember_frame(cls: type) -> None:
    """Store on a class the frame of the function or class body that defines it.

    Through the frame, bae finds names that are defined after the class in the same function. Only
    the class refers to the frame, so the garbage collector frees both together. `forget_frame`
    releases the frame once all hints are resolved.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code is not _METACLASS_NEW:
        frame = frame.f_back
    # The frame above the metaclass is the class statement. If pydantic itself made the class, the
    # class statement is above the frames of pydantic.
    while frame is not None and frame.f_globals.get("__name__", "").startswith("pydantic."):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name != "<module>":
        setattr(cls, _FRAME, frame)


def remembers_frame(cls: type) -> bool:
    """Whether a class still has the frame that `remember_frame` stored."""
    return _FRAME in cls.__dict__


def forget_frame(cls: type) -> None:
    """Release the frame that `remember_frame` stored on a class."""
    if remembers_frame(cls):
        delattr(cls, _FRAME)


def names_of_class(cls: type) -> Names:
    """Return the scopes for the names in the hints of a class. The scope of the module is last."""
    frame = cast(FrameType | None, cls.__dict__.get(_FRAME))
    places = [_label_scope(scope) for scope in _find_frames(frame)]
    parameters = {p.__name__: p for p in getattr(cls, "__type_params__", ())}
    if parameters:
        places.append((f"the type parameters of {cls.__name__}", parameters))
    places.append((f"class {cls.__name__}", {cls.__name__: cls}))
    module = _find_module_names(cls)
    if module:
        places.append((f"module {cls.__module__}", module))
    return Names(tuple(places), module, frame)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a callable, without evaluating its annotations, which may contain
    names that only `annotations_of` finds."""
    if sys.version_info < (3, 14):
        return inspect.signature(fn)
    annotationlib = cast(Any, import_module("annotationlib"))
    return inspect.signature(fn, annotation_format=annotationlib.Format.STRING)


def unwrap_callable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose signature and annotations describe a call of `fn`."""
    # A decorator's wrapper may belong to another module, without the names in the annotations.
    fn = inspect.unwrap(fn)
    while isinstance(fn, functools.partial):
        fn = inspect.unwrap(cast("functools.partial[Any]", fn).func)
    if inspect.isclass(fn):
        return fn.__init__
    if isinstance(fn, MethodType):
        return fn.__func__
    if isinstance(fn, FunctionType) or inspect.isbuiltin(fn):
        return fn
    return type(fn).__call__


def annotations_of(fn: Callable[..., Any], names: Names = NOWHERE) -> dict[str, Any]:
    """Return the annotations of a function as types.

    bae looks up names in the function's own scopes first, then in `names`. Pass the scopes of the
    class that uses the function.
    """
    function = unwrap_callable(fn)
    raw = _read_annotations(function)
    if not raw:
        return {}
    scopes = _names_of_function(function, names.frame).then(names)
    return {name: evaluate(value, scopes, function) for name, value in raw.items()}


def evaluate(raw: Any, names: Names, where: object) -> Any:
    """Return an annotation as a type. If the evaluation fails, the error names `where`: the class,
    function or field with the annotation."""
    try:
        if isinstance(raw, str):
            raw = eval(raw, names.module, names.known)
        if raw is not None and _has_forward_reference(raw):
            raw = _resolve_references(raw, names)
    except NameError as error:
        raise _unresolved_error(error, error.name or text_of(error), where, names) from error
    except Exception as error:
        raise _evaluation_error(f"the hint {raw!r}", error, where) from error
    return raw


def rebuild(cls: type[BaseModel]) -> None:
    """Complete a model whose field annotations name classes that are defined after it."""
    if cls.__pydantic_complete__:
        return
    names = names_of_class(cls)
    for base in cls.__mro__[1:]:  # the hint of an inherited field uses names of its base
        if getattr(base, "__pydantic_fields__", None):
            names = names.then(names_of_class(base))
    try:
        cls.model_rebuild(_types_namespace=dict(names.known))
    except NameError as error:
        name = error.name or text_of(error)
        raise _unresolved_error(error, name, _find_field_with(cls, name), names) from error


def is_empty_body(fn: Callable[..., Any]) -> bool:
    """Whether a function does nothing: its body is `...`, `pass`, or only a docstring.

    bae reads the bytecode, because a function in a REPL, in `exec` or in a zip file may have no
    source. A written `return None` has the same instructions as an empty body, but other
    source positions.
    """
    code = getattr(fn, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    loaded = False
    instructions = code.co_code  # pairs of bytes: the operation, and its argument
    for index in range(0, len(instructions), 2):
        name, argument = opname[instructions[index]], instructions[index + 1]
        if name in _BOOKKEEPING:
            continue
        if name == "LOAD_CONST" and code.co_consts[argument] is None and not loaded:
            loaded = True
        elif name == "RETURN_CONST":
            return code.co_consts[argument] is None and not _is_returned(fn, code, index // 2)
        else:
            returns_none = name == "RETURN_VALUE" and loaded
            return returns_none and not _is_returned(fn, code, index // 2)
    return False


def _is_returned(fn: Callable[..., Any], code: CodeType, index: int) -> bool:
    """Whether the instruction that returns None comes from a `return` in the source. If the source
    is missing, only a bare `return` is recognized, by the width of its source position."""
    line, _, start, end = next(islice(code.co_positions(), index, None))
    width = None if start is None or end is None else end - start
    if line is None or width not in (None, *map(len, ("None", "return", "return None"))):
        return False
    linecache.checkcache(code.co_filename)
    text = linecache.getline(code.co_filename, line, getattr(fn, "__globals__", None))
    return bool(_RETURN.match(text)) if text else width == len("return")


_BOOKKEEPING = {
    "RESUME",
    "RETURN_GENERATOR",
    "POP_TOP",
    "NOP",
    "COPY_FREE_VARS",
    "MAKE_CELL",
    "CACHE",
    "EXTENDED_ARG",
    "NOT_TAKEN",
}

_RETURN = re.compile(r"(?:[^#]*[:;])?\s*return(?:[\s(]+None[\s)]*)?\s*;?\s*(?:#.*)?$")
"""A line whose last statement is `return` or `return None`."""

_METACLASS_NEW = cast(Any, type(BaseModel)).__new__.__code__


def _find_field_with(cls: type[BaseModel], name: str) -> str:
    """Return the first field whose hint contains the name, as `Class.field`. If no field does,
    return the name of the class."""
    for field, info in cls.__pydantic_fields__.items():
        if name in re.findall(r"\w+", str(info.annotation)):
            return f"{_label(cls)}.{field}"
    return _label(cls)


def _read_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    if not isinstance(function, FunctionType):
        return cast(dict[str, Any], getattr(function, "__annotations__", {}))
    try:
        return function.__annotations__
    except Exception as error:  # Python 3.14 evaluates the annotations here
        if not isinstance(error, NameError):
            raise _evaluation_error("an annotation", error, function) from error
    # Python has looked in fewer scopes than bae. Return texts, which bae evaluates itself.
    annotationlib = cast(Any, import_module("annotationlib"))
    return annotationlib.get_annotations(function, format=annotationlib.Format.STRING)


def _names_of_function(function: Callable[..., Any], defined_in: FrameType | None) -> Names:
    code = getattr(function, "__code__", None)
    places: list[tuple[str, Mapping[str, Any]]] = []
    qualname = getattr(function, "__qualname__", "")
    if code is not None:
        closure: dict[str, Any] = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                closure[name] = cell.cell_contents
            except ValueError:  # assigned later in the enclosing function, or never
                continue
        if closure:
            places.append((f"the closure of {qualname}()", closure))
    parameters = {p.__name__: p for p in getattr(function, "__type_params__", ())}
    if parameters:
        places.append((f"the type parameters of {qualname}()", parameters))
    module_names = cast(dict[str, Any], getattr(function, "__globals__", {}))
    running = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    outer = _find_enclosing_frame(qualname, module_names, defined_in)
    outer = outer or _find_enclosing_frame(qualname, module_names, running)
    places.extend(_label_scope(scope) for scope in _find_frames(outer))
    if module_names:
        places.append((f"module {module_names.get('__name__', '?')}", module_names))
        places.append(("builtins", vars(builtins)))
    return Names(tuple(places), module_names)


def _find_module_names(cls: type) -> dict[str, Any]:
    # Code in `exec` may have globals of its own. If the class has a `__call__`, take its globals.
    call = inspect.unwrap(cls.__dict__.get("__call__", cls))
    if getattr(call, "__qualname__", "") == f"{cls.__qualname__}.__call__":
        return call.__globals__
    module = sys.modules.get(cls.__module__)
    return {} if module is None else vars(module)


def _label_scope(frame: FrameType) -> tuple[str, Mapping[str, Any]]:
    name = frame.f_code.co_qualname
    label = f"the body of class {name}" if _is_class_body(frame) else f"the locals of {name}()"
    return label.replace("<locals>.", ""), frame.f_locals


def _find_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the frame of a function or class body, then the frames around it."""
    while frame is not None and frame.f_code.co_name != "<module>":
        yield frame
        if _is_class_body(frame):
            frame = frame.f_back
        else:
            frame = _find_enclosing_frame(frame.f_code.co_qualname, frame.f_globals, frame.f_back)


def _is_class_body(frame: FrameType) -> bool:
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED


def _find_enclosing_frame(
    qualname: str, module_names: dict[str, Any], frame: FrameType | None
) -> FrameType | None:
    """Search `frame` and its callers for a call of the function that defines `qualname`. Return the
    frame of the call, or None if the function is not running."""
    if "<locals>" not in qualname:
        return None
    outer = qualname.rpartition(".<locals>")[0]
    while frame is not None:
        if frame.f_code.co_qualname == outer and frame.f_globals is module_names:
            return frame
        frame = frame.f_back
    return None


def _has_forward_reference(hint: Any) -> bool:
    if isinstance(hint, type):
        return False
    if isinstance(hint, str | typing.ForwardRef):
        return True
    if typing.get_origin(hint) is typing.Literal:
        return False
    if typing.get_origin(hint) is typing.Annotated:
        return _has_forward_reference(typing.get_args(hint)[0])
    return any(
        _has_forward_reference(argument)
        for argument in typing.get_args(hint)
        if not isinstance(argument, list)
    )


def _resolve_references(hint: Any, names: Names) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"hint": hint}
    return typing.get_type_hints(holder, names.module, dict(names.known), include_extras=True)[
        "hint"
    ]


def _unresolved_error(error: NameError, name: str, where: object, names: Names) -> HintError:
    from difflib import get_close_matches

    labels = dict.fromkeys(label for label, _ in names.places)
    candidates = [*names.known, *vars(builtins)]
    matches = [candidate for candidate in candidates if candidate.lower() == name.lower()]
    matches = matches or get_close_matches(name, candidates, n=1, cutoff=0.8)
    return HintError(
        f"{_label(where)}: the name {name!r} cannot be resolved",
        code="bae-hint-unresolved",
        path=f"looked in {', '.join(labels)}",
        cause=error,
        fix=(f"did you mean {matches[0]}? Or " if matches else "")
        + f"define or import {name} where that code can see it (an import under "
        "`if TYPE_CHECKING:` is not there at run time)",
    )


def _evaluation_error(subject: str, error: Exception, where: object) -> HintError:
    return HintError(
        f"{_label(where)}: {subject} cannot be evaluated",
        cause=error,
        fix="write a type that exists when the program runs",
    )


def _label(where: object) -> str:
    return str(getattr(where, "__qualname__", where)).replace("<locals>.", "")
