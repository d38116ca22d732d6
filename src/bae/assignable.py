"""Compares types: does every value of one type fit where another type is declared?

The proof uses `assignable` before a run, to report a dependency that does not fit its field.
`could_hold` checks a value at run time. Arguments of generics are compared covariantly, so
`list[int]` fits `list[int | str]`. That is safe here, because pydantic validates each value, and no
code writes to the value through the field that it came from."""

import collections.abc as abc
import typing
from collections.abc import Iterable, Iterator
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, NewType, TypeVar, Union, cast, get_args, get_origin


def assignable(source: Any, target: Any) -> bool | None:
    """Return whether every value of type `source` fits where `target` is declared; None if the
    types do not tell.

    Report an error only for False, which a type checker would report too. The types do not tell for
    Any, a bare generic, an unresolved name, a protocol that cannot be checked, and a subclass of a
    generic.
    """
    return _fits(source, target, ())


def type_name(tp: Any) -> str:
    """Write a type as its author would, without modules: `list[Weather]`, `Weather | None`."""
    tp = _strip(tp)
    if isinstance(tp, (str, typing.ForwardRef)):
        return tp if isinstance(tp, str) else tp.__forward_arg__
    if isinstance(tp, (list, tuple)):  # the parameters of a Callable
        return f"[{', '.join(type_name(arg) for arg in cast('list[Any]', tp))}]"
    if tp is NoneType or tp is ...:
        return "None" if tp is NoneType else "..."
    origin, args = _split(tp)
    if origin is Literal:
        return f"Literal[{', '.join(_literal_name(value) for value in args or ())}]"
    names = [type_name(arg) for arg in args or ()]
    if origin in _UNIONS:
        return " | ".join(names)
    name: str = getattr(origin, "__name__", None) or repr(origin).removeprefix("typing.")
    return name if args is None else f"{name}[{', '.join(names) or '()'}]"


def union_members(tp: Any) -> tuple[Any, ...]:
    """Return the members of a union in order, without nested unions. Any other type is the only
    member.

    Type aliases are resolved, every member is without `Annotated`, and None is `type(None)`.
    """
    if isinstance(tp, type):
        return (tp,)
    members: list[Any] = []
    for member in _flatten(tp, ()):
        if not any(_same(member, earlier) for earlier in members):
            members.append(member)
    return tuple(members) or (tp,)


def could_hold(value: Any, tp: Any) -> bool:
    """Return whether `value` may be of type `tp`. Only the class of the value is checked, not its
    elements.

    A type without a class, such as `Any`, accepts every value. Unlike in `assignable`, an int is no
    float.
    """
    return any(_could_be(value, member) for member in union_members(tp))


_UNIONS = (Union, UnionType)
_NEVER = (typing.Never, typing.NoReturn)
_DEEPEST = 8
"""How many levels of a recursive alias are followed. Some aliases never lead back to themselves."""

# Generics whose arguments do not match the arguments of their base classes one by one.
_OPAQUE = (
    *(get_origin(abc.Callable[..., Any]), abc.Generator, abc.AsyncGenerator),
    *(abc.Coroutine, abc.ItemsView),
)

_Open = tuple[tuple[Any, Any], ...]
"""The pairs of types that are being compared. A recursive type leads back to one of these pairs,
and there the comparison ends."""


def _fits(source: Any, target: Any, around: _Open) -> bool | None:
    # A comparison that leads back to itself has found no misfit, so two recursive types fit.
    if source is target or any(_same(source, s) and _same(target, t) for s, t in around):
        return True
    if len(around) > _DEEPEST:
        return None
    here = (*around, (source, target))
    return _all(
        _any(_one_fits(alternative, member, here) for member in union_members(target))
        for alternative in _alternatives(source)
    )


def _one_fits(source: Any, target: Any, around: _Open) -> bool | None:
    if target is Any or target is object or source in _NEVER or _same(source, target):
        return True
    if isinstance(source, NewType):
        return _fits(source.__supertype__, target, around)
    literal = get_origin(target) is Literal
    if get_origin(source) is Literal:
        value = get_args(source)[0]
        return _among(value, get_args(target)) if literal else _fits(type(value), target, around)
    cls = _split(source)[0]
    if source is Any or not isinstance(cls, type):
        return None
    if isinstance(_split(target)[0], type):
        return _class_fits(source, target, around)
    if issubclass(cls, (bool, Enum, NoneType)) and any(
        isinstance(v, cls) for v in get_args(target)
    ):
        return None  # the target may list all values of this class
    # Never, a Literal and a NewType take only values that are declared as such.
    return False if literal or target in _NEVER or isinstance(target, NewType) else None


def _class_fits(source: Any, target: Any, around: _Open) -> bool | None:
    (cls, args), (expected, expected_args) = _split(source), _split(target)
    related = _is_subclass(cls, expected)
    if related is not True:
        # The keys of a TypedDict are left to pydantic.
        return _is_subclass(cls, abc.Mapping) and None if _is_typed_dict(expected) else related
    if expected_args is None:
        return True
    if (
        expected in _OPAQUE
        or cls in _OPAQUE
        or any(map(_is_unpacked, (*(args or ()), *expected_args)))
    ):
        return None
    if cls is not expected and not (_is_standard(cls) and _is_standard(expected)):
        # A subclass of a parametrized generic model has the parametrized model among its bases.
        bases = (_split(base) for base in cls.__mro__)
        args = next((base_args for origin, base_args in bases if origin is expected), None)
    if expected is tuple:
        return _tuple_fits(args or (Any, ...), expected_args, around)
    if args and cls is tuple:
        return _all(_fits(arg, expected_args[0], around) for arg in args if arg is not ...)
    args = (args or (Any,) * len(expected_args))[: len(expected_args)]
    if len(args) != len(expected_args):
        return None
    fits = _all(_fits(arg, want, around) for arg, want in zip(args, expected_args, strict=True))
    # A user's generic class may be contravariant, so a misfit of its arguments proves nothing. A
    # generic model has only fields.
    return None if fits is False and not (_is_standard(expected) or _generic(expected)) else fits


def _tuple_fits(args: tuple[Any, ...], expected: tuple[Any, ...], around: _Open) -> bool | None:
    if expected[1:] == (...,):
        return _all(_fits(arg, expected[0], around) for arg in args if arg is not ...)
    if args[1:] == (...,):
        return None if args[0] is Any else False
    if len(args) != len(expected):
        return False
    return _all(_fits(arg, want, around) for arg, want in zip(args, expected, strict=True))


def _could_be(value: Any, tp: Any) -> bool:
    if isinstance(tp, NewType):
        return could_hold(value, tp.__supertype__)
    origin, args = _split(tp)
    if origin is Literal:
        return _among(value, args or ())
    cls = dict if _is_typed_dict(origin) else origin
    if tp is Any or not isinstance(cls, type):
        return tp not in _NEVER
    try:
        return isinstance(value, cls)
    except Exception:  # a protocol that cannot be checked, or an unusual metaclass
        return True


def _generic(tp: Any) -> dict[str, Any]:
    """Return pydantic's metadata of a generic model or of its parametrized class."""
    return getattr(tp, "__pydantic_generic_metadata__", {}) if isinstance(tp, type) else {}


def _is_standard(cls: type) -> bool:
    # A user's class that `exec` makes may have the module `builtins`. If the class is generic, its
    # `__orig_bases__` tell it from a standard class.
    standard = cls.__module__ in ("builtins", "collections", "collections.abc")
    return standard and "__orig_bases__" not in vars(cls)


def _is_subclass(cls: type, expected: type) -> bool | None:
    narrower = (int, float) if expected is complex else int if expected is float else ()
    try:
        return expected in cls.__mro__ or issubclass(cls, narrower) or issubclass(cls, expected)
    except Exception:  # a protocol that cannot be checked, or an unusual metaclass
        return None


def _is_typed_dict(tp: Any) -> bool:
    return isinstance(tp, type) and hasattr(tp, "__required_keys__")


def _is_unpacked(tp: Any) -> bool:
    return get_origin(tp) is typing.Unpack or getattr(tp, "__unpacked__", False) is True


def _split(tp: Any) -> tuple[Any, tuple[Any, ...] | None]:
    """Return the origin and the arguments of a type. The arguments are None if the type is not
    parametrized."""
    if origin := _generic(tp).get("origin"):
        return origin, _generic(tp)["args"]
    if get_origin(tp) is None:
        return tp, None
    return get_origin(tp), get_args(tp) if hasattr(tp, "__args__") else None


def _strip(tp: Any) -> Any:
    while get_origin(tp) is typing.Annotated:
        tp = get_args(tp)[0]
    return NoneType if tp is None else tp


def _flatten(tp: Any, inside: tuple[Any, ...]) -> Iterator[Any]:
    tp = _strip(tp)
    origin, args = get_origin(tp) or tp, get_args(tp)
    if type(origin).__name__ == "TypeAliasType":  # typing_extensions has its own class of this name
        # An alias that names itself as a member of its union adds no new member.
        if tp not in inside and len(inside) <= _DEEPEST:
            yield from _flatten(_alias_value(origin, args), (*inside, tp))
    elif origin in _UNIONS:
        for member in args:
            yield from _flatten(member, inside)
    else:
        yield tp


def _alias_value(alias: Any, args: tuple[Any, ...]) -> Any:
    """Return the type that an alias stands for. Parameters without an argument become Any."""
    try:
        value, params = alias.__value__, alias.__type_params__
        if not all(isinstance(param, TypeVar) for param in params):
            return typing.ForwardRef(alias.__name__)
        arguments = dict.fromkeys(params, Any) | dict(zip(params, args, strict=False))
        if isinstance(value, TypeVar):
            return arguments[value]
        inner = getattr(value, "__parameters__", ())
        return value[tuple(arguments.get(param, param) for param in inner)] if inner else value
    except Exception:  # the alias is evaluated only here, so a name in it may be missing
        return typing.ForwardRef(alias.__name__)


def _alternatives(tp: Any) -> Iterator[Any]:
    for member in union_members(tp):
        if get_origin(member) is Literal:
            yield from (cast("Any", Literal)[value] for value in get_args(member))
        else:
            yield member


def _literal_name(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


def _among(value: Any, options: tuple[Any, ...]) -> bool:
    return any(type(option) is type(value) and option == value for option in options)


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # metadata in `Annotated` may compare in its own way
        return False


def _all(answers: Iterable[bool | None]) -> bool | None:
    kinds = set(answers)
    return False if False in kinds else None if None in kinds else True


def _any(answers: Iterable[bool | None]) -> bool | None:
    kinds = set(answers)
    return True if True in kinds else None if None in kinds else False
