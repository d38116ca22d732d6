"""Type hints as objects, on every Python version and wherever their names are defined: at module
level, inside functions, across modules, now or later. A name that cannot be found is a `HintError`
that lists where it was looked for."""

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
    """The places where a name is looked for, innermost first, each with a label for messages; and
    the frame of the function around them."""

    places: tuple[tuple[str, Mapping[str, Any]], ...]
    module: dict[str, Any]
    frame: FrameType | None = None

    def then(self, other: Names) -> Names:
        """These places, followed by the other's."""
        places = (*self.places, *other.places)
        return Names(places, self.module or other.module, self.frame or other.frame)

    @property
    def known(self) -> Mapping[str, Any]:
        """What each name means."""
        return ChainMap(*(cast("dict[str, Any]", place) for _, place in self.places))


NOWHERE = Names((), {})


def remember_frame(cls: type) -> None:
    """Keep the frame of the function or class that a class is defined in, until its hints are
    resolved.

    Definitions that follow later in that function are found through the frame. Only the class
    refers to the frame, so both are collected together.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code is not _METACLASS_NEW:
        frame = frame.f_back
    # The frame above the metaclass is the class statement, unless pydantic itself made the class.
    while frame is not None and frame.f_globals.get("__name__", "").startswith("pydantic."):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name != "<module>":
        setattr(cls, _FRAME, frame)


def remembers_frame(cls: type) -> bool:
    """Whether a class still keeps the frame it was defined in."""
    return _FRAME in cls.__dict__


def forget_frame(cls: type) -> None:
    """Release the frame once everything is resolved."""
    if remembers_frame(cls):
        delattr(cls, _FRAME)


def names_of_class(cls: type) -> Names:
    """Where the names in the hints of `cls` are looked for, before its module."""
    frame = cast(FrameType | None, cls.__dict__.get(_FRAME))
    places = [_place(scope) for scope in _scopes(frame)]
    parameters = {p.__name__: p for p in getattr(cls, "__type_params__", ())}
    if parameters:
        places.append((f"the type parameters of {cls.__name__}", parameters))
    places.append((f"class {cls.__name__}", {cls.__name__: cls}))
    module = _module_names(cls)
    if module:
        places.append((f"module {cls.__module__}", module))
    return Names(tuple(places), module, frame)


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """The parameters of a callable. Python 3.14 would evaluate their annotations, which may have
    names that only `annotations_of` finds."""
    if sys.version_info < (3, 14):
        return inspect.signature(fn)
    annotationlib = cast(Any, import_module("annotationlib"))
    return inspect.signature(fn, annotation_format=annotationlib.Format.STRING)


def function_behind(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose signature and annotations describe calling `fn`."""
    # A decorator's wrapper has the annotations, but not the module in which they were written.
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
    """The annotations of a function as types.

    `names` is looked in after the function's own scopes: pass the names that are visible to the
    class that uses the function.
    """
    function = function_behind(fn)
    raw = _raw_annotations(function)
    if not raw:
        return {}
    scopes = _names_of_function(function, names.frame).then(names)
    return {name: evaluate(value, scopes, function) for name, value in raw.items()}


def evaluate(raw: Any, names: Names, where: object) -> Any:
    """One annotation as a type; `where` is named in the error if that fails."""
    try:
        if isinstance(raw, str):
            raw = eval(raw, names.module, names.known)
        if raw is not None and _has_forward_reference(raw):
            raw = _settle(raw, names)
    except NameError as error:
        raise _unresolved_error(error, error.name or text_of(error), where, names) from error
    except Exception as error:
        raise _not_a_type(f"the hint {raw!r}", error, where) from error
    return raw


def rebuild(cls: type[BaseModel]) -> None:
    """Finish a model whose field annotations named classes that were defined after it."""
    if cls.__pydantic_complete__:
        return
    names = names_of_class(cls)
    for base in cls.__mro__[1:]:  # an inherited field uses the names visible to its own class
        if getattr(base, "__pydantic_fields__", None):
            names = names.then(names_of_class(base))
    try:
        cls.model_rebuild(_types_namespace=dict(names.known))
    except NameError as error:
        name = error.name or text_of(error)
        raise _unresolved_error(error, name, _field_naming(cls, name), names) from error


def is_empty_body(fn: Callable[..., Any]) -> bool:
    """Whether a function does nothing: `...`, `pass`, or only a docstring.

    It is read from the bytecode, which also exists in a REPL, and for exec'd and zipped code. A
    written `return None` differs only in its position.
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
            done = name == "RETURN_VALUE" and loaded
            return done and not _is_returned(fn, code, index // 2)
    return False


def _is_returned(fn: Callable[..., Any], code: CodeType, index: int) -> bool:
    """Whether the instruction that returns None comes from a `return` in the source. If there is no
    source, a bare `return` is recognized by its width."""
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
"""A line that ends in a bare `return`."""

_METACLASS_NEW = cast(Any, type(BaseModel)).__new__.__code__


def _field_naming(cls: type[BaseModel], name: str) -> str:
    """The field whose hint has the name in it, as `Class.field`; the class if there is none."""
    for field, info in cls.__pydantic_fields__.items():
        if name in re.findall(r"\w+", str(info.annotation)):
            return f"{_label(cls)}.{field}"
    return _label(cls)


def _raw_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    if not isinstance(function, FunctionType):
        return cast(dict[str, Any], getattr(function, "__annotations__", {}))
    try:
        return function.__annotations__
    except Exception as error:  # Python 3.14 evaluates here
        if not isinstance(error, NameError):
            raise _not_a_type("an annotation", error, function) from error
    # The name may be in a place where Python does not look; a text is looked up everywhere.
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
    outer = _enclosing_frame(qualname, module_names, defined_in)
    outer = outer or _enclosing_frame(qualname, module_names, running)
    places.extend(_place(scope) for scope in _scopes(outer))
    if module_names:
        places.append((f"module {module_names.get('__name__', '?')}", module_names))
        places.append(("builtins", vars(builtins)))
    return Names(tuple(places), module_names)


def _module_names(cls: type) -> dict[str, Any]:
    # Code that exec runs has globals of its own, which need not be those of a module.
    call = inspect.unwrap(cls.__dict__.get("__call__", cls))
    if getattr(call, "__qualname__", "") == f"{cls.__qualname__}.__call__":
        return call.__globals__
    module = sys.modules.get(cls.__module__)
    return {} if module is None else vars(module)


def _place(frame: FrameType) -> tuple[str, Mapping[str, Any]]:
    name = frame.f_code.co_qualname
    label = f"the body of class {name}" if _is_class_body(frame) else f"the locals of {name}()"
    return label.replace("<locals>.", ""), frame.f_locals


def _scopes(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame of a function or class body, then the frames around it."""
    while frame is not None and frame.f_code.co_name != "<module>":
        yield frame
        if _is_class_body(frame):
            frame = frame.f_back
        else:
            frame = _enclosing_frame(frame.f_code.co_qualname, frame.f_globals, frame.f_back)


def _is_class_body(frame: FrameType) -> bool:
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED


def _enclosing_frame(
    qualname: str, module_names: dict[str, Any], frame: FrameType | None
) -> FrameType | None:
    """The call of the function that `qualname` is defined in: `frame` or a frame that called it."""
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


def _settle(hint: Any, names: Names) -> Any:
    def holder() -> None: ...

    holder.__annotations__ = {"hint": hint}
    return typing.get_type_hints(holder, names.module, dict(names.known), include_extras=True)[
        "hint"
    ]


def _unresolved_error(error: NameError, name: str, where: object, names: Names) -> HintError:
    from difflib import get_close_matches

    labels = dict.fromkeys(label for label, _ in names.places)
    known = [*names.known, *vars(builtins)]
    near = [each for each in known if each.lower() == name.lower()]
    near = near or get_close_matches(name, known, n=1, cutoff=0.8)
    return HintError(
        f"{_label(where)}: the name {name!r} cannot be resolved",
        code="bae-hint-unresolved",
        path=f"looked in {', '.join(labels)}",
        cause=error,
        fix=(f"did you mean {near[0]}? Or " if near else "")
        + f"define or import {name} where that code can see it (an import under "
        "`if TYPE_CHECKING:` is not there at run time)",
    )


def _not_a_type(what: str, error: Exception, where: object) -> HintError:
    return HintError(
        f"{_label(where)}: {what} cannot be evaluated",
        cause=error,
        fix="write a type that exists when the program runs",
    )


def _label(where: object) -> str:
    return str(getattr(where, "__qualname__", where)).replace("<locals>.", "")
