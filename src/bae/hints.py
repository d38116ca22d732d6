"""Type hints as objects, whatever the Python and wherever the names are defined: at module level,
inside functions, across modules, now or later. `plan.py` and `calls.py` ask here, once per class
or function; a name that cannot be found is a `HintError` that says where it was looked for."""

from __future__ import annotations

import builtins
import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, cast

from pydantic import BaseModel

from bae.exceptions import HintError

_FRAME = "__bae_frame__"


class Names(Mapping[str, Any]):
    """The places a name is looked for in, innermost first, each with a label for messages."""

    def __init__(
        self,
        places: list[tuple[str, Mapping[str, Any]]],
        module: dict[str, Any] | None = None,
    ) -> None:
        self.places = places
        self.module: dict[str, Any] = {} if module is None else module

    def __getitem__(self, name: str) -> Any:
        for _, place in self.places:
            if name in place:
                return place[name]
        raise KeyError(name)

    def __iter__(self) -> typing.Iterator[str]:
        return iter({name: None for _, place in self.places for name in place})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def then(self, other: Names) -> Names:
        """These places, then the other's."""
        return Names([*self.places, *other.places], self.module or other.module)

    def labels(self) -> str:
        return ", ".join(dict.fromkeys(label for label, _ in self.places))


NOWHERE = Names([])


def remember_frame(cls: type) -> None:
    """Keep the frame a class inside a function was defined in, until its hints are resolved.

    Later definitions of that function are seen through it. The frame hangs on the class alone, so
    both are collected together.
    """
    if "." not in cls.__qualname__:
        return
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code is not _METACLASS_NEW:
        frame = frame.f_back
    # Above the metaclass stands the class statement, unless pydantic itself made the class.
    while frame is not None and frame.f_globals.get("__name__", "").startswith("pydantic."):
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name != "<module>":
        setattr(cls, _FRAME, frame)


def forget_frame(cls: type) -> None:
    """Let go of the frame once everything is resolved."""
    if _FRAME in cls.__dict__:
        delattr(cls, _FRAME)


def names_of_class(cls: type) -> Names:
    """Where the names in the hints of `cls` are looked for, before its module."""
    places: list[tuple[str, Mapping[str, Any]]] = []
    frame = cast(FrameType | None, cls.__dict__.get(_FRAME))
    while frame is not None and frame.f_code.co_name != "<module>":
        body = not frame.f_code.co_flags & inspect.CO_OPTIMIZED
        kind = "the body of class" if body else "the locals of"
        ending = "" if body else "()"
        places.append((f"{kind} {frame.f_code.co_qualname}{ending}", frame.f_locals))
        frame = frame.f_back if body else None
    parameters = {p.__name__: p for p in getattr(cls, "__type_params__", ())}
    if parameters:
        places.append((f"the type parameters of {cls.__name__}", parameters))
    places.append((f"class {cls.__name__}", {cls.__name__: cls}))
    module = sys.modules.get(cls.__module__)
    if module is None:
        return Names(places)
    return Names([*places, (f"module {cls.__module__}", vars(module))], vars(module))


def function_behind(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose signature and annotations describe calling `fn`."""
    # A decorator's wrapper carries the annotations but not the module they were written in.
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


def annotations_of(
    fn: Callable[..., Any], names: Names = NOWHERE, only: str | None = None
) -> dict[str, Any]:
    """The annotations of a function as types; `only` one of them where named.

    `names` is looked in after the function's own scopes: pass what the class that uses the
    function can see.
    """
    function = function_behind(fn)
    try:
        raw = cast(dict[str, Any], getattr(function, "__annotations__", {}))
    except NameError as error:  # Python 3.14 evaluates here
        scopes = _names_of_function(function).then(names)
        raise _unresolved(error, str(error.name), function, scopes) from error
    wanted = raw if only is None else {only: raw[only]} if only in raw else {}
    if not wanted:
        return {}
    scopes = _names_of_function(function).then(names)
    return {name: evaluate(value, scopes, function) for name, value in wanted.items()}


def evaluate(raw: Any, names: Names, where: object) -> Any:
    """One annotation as a type; `where` is named in the error when that fails."""
    try:
        if isinstance(raw, str):
            # A lone name is by far the commonest hint, and looking it up needs no compiler.
            raw = names[raw] if raw in names else eval(raw, names.module, names)
        if raw is not None and not isinstance(raw, type) and _has_forward_reference(raw):
            raw = _settle(raw, names)
    except NameError as error:
        raise _unresolved(error, error.name or str(error), where, names) from error
    except Exception as error:
        raise HintError(
            f"{_label(where)}: the hint {raw!r} cannot be evaluated",
            cause=error,
            fix="write a type that exists when the program runs",
        ) from error
    return raw


def rebuild(cls: type[BaseModel]) -> None:
    """Finish a model whose field annotations named classes that were defined after it."""
    if cls.__pydantic_complete__:
        return
    names = names_of_class(cls)
    try:
        cls.model_rebuild(_types_namespace=dict(names))
    except NameError as error:
        raise _unresolved(error, error.name or str(error), cls, names) from error


def is_empty_body(fn: Callable[..., Any]) -> bool:
    """Whether a function does nothing: `...`, `pass`, a docstring alone.

    Read from its bytecode, which is there in a REPL, in exec'd and in zipped code too.
    """
    import dis

    code = getattr(fn, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    loaded = False
    for instruction in dis.get_instructions(code):
        if instruction.opname in _BOOKKEEPING:
            continue
        if instruction.opname == "LOAD_CONST" and instruction.argval is None and not loaded:
            loaded = True
        elif instruction.opname == "RETURN_CONST":
            return instruction.argval is None
        else:
            return instruction.opname == "RETURN_VALUE" and loaded
    return False


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

_METACLASS_NEW = cast(Any, type(BaseModel)).__new__.__code__


def _names_of_function(function: Callable[..., Any]) -> Names:
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
    outer = _enclosing_frame(qualname, module_names)
    if outer is not None:
        places.append((f"the locals of {outer.f_code.co_qualname}()", outer.f_locals))
    if module_names:
        places.append((f"module {module_names.get('__name__', '?')}", module_names))
        places.append(("builtins", vars(builtins)))
    return Names(places, module_names)


def _enclosing_frame(qualname: str, module_names: dict[str, Any]) -> FrameType | None:
    """The running call of the function that `qualname` is defined in, if it is on the stack."""
    if "<locals>" not in qualname:
        return None
    outer = qualname.rpartition(".<locals>")[0]
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if frame.f_code.co_qualname == outer and frame.f_globals is module_names:
            return frame
        frame = frame.f_back
    return None


def _has_forward_reference(hint: Any) -> bool:
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
    return typing.get_type_hints(holder, names.module, dict(names), include_extras=True)["hint"]


def _unresolved(error: NameError, name: str, where: object, names: Names) -> HintError:
    return HintError(
        f"{_label(where)}: the name {name!r} cannot be resolved",
        code="bae-hint-unresolved",
        path=f"looked in {names.labels()}",
        cause=error,
        fix=f"define or import {name} where that code can see it (an import under "
        "`if TYPE_CHECKING:` is not there at run time)",
    )


def _label(where: object) -> str:
    return str(getattr(where, "__qualname__", where)).replace("<locals>.", "")
