"""Static questions about types: may a value declared as one type stand where another is declared?
The proof asks before a run, to say which Dep cannot feed its field; `could_hold` is the shallow
twin for run time. The answer is True, False, or None where the types do not tell. Arguments of
generics are compared covariantly (`list[int]` fits `list[int | str]`), because pydantic looks at
the value that arrives, and nothing writes back through the field it came from."""

import collections
import collections.abc as abc
import itertools
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import GenericAlias, NoneType, UnionType
from typing import Any, Literal, LiteralString, NewType, TypeVar, Union, cast, get_args, get_origin


def assignable(source: Any, target: Any) -> bool | None:
    """Say whether every value of type `source` is fine where `target` is declared.

    Report an error on False only: a type checker would complain too. None means that the types do
    not tell (Any, a bare generic, an unresolved name, a protocol that cannot be checked); leave
    that case to run time.
    """
    return _fits(source, target, _Trail())


def type_name(tp: Any) -> str:
    """Spell a type the way its author would, without modules: `list[Weather]`, `Weather | None`."""
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
    """List the members of a union, flat and in order; a type that is no union is its one member.

    Aliases are looked through, Annotated and qualifiers like Final are stripped from every member,
    and None is spelled `type(None)`.
    """
    if isinstance(tp, type):
        return (tp,)
    if isinstance(tp, UnionType) and all(isinstance(member, type) for member in tp.__args__):
        return tp.__args__  # by far the commonest, and flat as it is
    members: list[Any] = []
    for member in _flatten(tp, ()):
        if not any(_same(member, known) for known in members):
            members.append(member)
    return tuple(members) or (tp,)


def could_hold(value: Any, tp: Any) -> bool:
    """Say whether `value` might be a `tp`, judged by its class alone; elements are not looked at.

    Forms without a class are True. Unlike in `assignable`, an int is not a float here.
    """
    return any(_could_be(value, member) for member in union_members(tp))


_UNIONS = (Union, UnionType)
_NEVER = (typing.Never, typing.NoReturn)
_QUALIFIERS = ("Final", "ClassVar", "Required", "NotRequired", "ReadOnly")
_MAX_DEPTH, _MAX_STEPS = 60, 5_000

# What only typeshed says of the standard classes: the items of those without arguments, ...
_ITEMS = {str: str, bytes: int, bytearray: int, memoryview: int, range: int}
# ... and where the rule "the first arguments are those of the base too" does not hold.
_BASE_ARGUMENTS: dict[Any, abc.Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
    abc.Coroutine: lambda args: args[2:],
    abc.ItemsView: lambda args: (GenericAlias(tuple, args),),
    collections.Counter: lambda args: (*args, int),
    tuple: lambda args: (_union(arg for arg in args if arg is not ...),),
}
# Generics that take some of their arguments instead of giving them.
_OPAQUE = (get_origin(abc.Callable[..., Any]), abc.Generator, abc.AsyncGenerator, abc.Coroutine)


@dataclass
class _Trail:
    """The questions being answered right now, so that a recursive type meets itself and stops."""

    open: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    steps: int = 0


def _fits(source: Any, target: Any, trail: _Trail) -> bool | None:
    if source is target:
        return True
    # Two recursive types fit unless some finite path shows a misfit, and a question that leads
    # back to itself has found none.
    if any(_same(source, s) and _same(target, t) for s, t in trail.open):
        return True
    trail.steps += 1
    if trail.steps > _MAX_STEPS or len(trail.open) > _MAX_DEPTH:
        return None  # an alias that grows as it unrolls never meets itself
    trail.open.append((source, target))
    fits = _all(_member_fits(member, target, trail) for member in _alternatives(source))
    trail.open.pop()
    return fits


def _member_fits(source: Any, target: Any, trail: _Trail) -> bool | None:
    return _any(_one_fits(source, member, trail) for member in union_members(target))


def _one_fits(source: Any, target: Any, trail: _Trail) -> bool | None:
    if target is Any or target is object or source in _NEVER or _same(source, target):
        return True
    if isinstance(source, NewType):
        return _fits(source.__supertype__, target, trail)
    literal = get_origin(target) is Literal
    if get_origin(source) is Literal:
        value = get_args(source)[0]
        return _among(value, get_args(target)) if literal else _fits(type(value), target, trail)
    cls = _split(source)[0]
    if source is Any or not isinstance(cls, type):
        return None
    if isinstance(_split(target)[0], type):
        return _class_fits(source, target, trail)
    if issubclass(cls, (bool, Enum, NoneType)) and any(
        isinstance(v, cls) for v in get_args(target)
    ):
        return None  # all of its few values may be listed
    # These take only values that were declared to be one.
    return False if literal or target in _NEVER or isinstance(target, NewType) else None


def _class_fits(source: Any, target: Any, trail: _Trail) -> bool | None:
    cls, (wanted, wanted_args) = _split(source)[0], _split(target)
    related = _is_subclass(cls, wanted)
    if related is not True:
        # The keys of a TypedDict are left to pydantic.
        return _is_subclass(cls, abc.Mapping) and None if _is_typed_dict(wanted) else related
    if wanted_args is None or wanted in _OPAQUE:
        return True if wanted_args in (None, (..., Any)) else None
    seen = _seen_as(source, wanted, len(wanted_args))
    if wanted is tuple:
        return _tuple_fits((Any, ...) if seen is None else seen, wanted_args, trail)
    fits = _arguments_fit(wanted, seen or (Any,) * len(wanted_args), wanted_args, trail)
    # A type checker takes a str for a Sequence[str]; pydantic never does.
    text = issubclass(cls, (str, bytes, bytearray))
    return None if fits and text and wanted in (abc.Sequence, abc.MutableSequence) else fits


def _arguments_fit(
    cls: type, args: tuple[Any, ...], wanted: tuple[Any, ...], trail: _Trail
) -> bool | None:
    params = _parameters(cls)
    if len(args) != len(wanted) or not all(isinstance(param, TypeVar) for param in params):
        return None
    fits = _all(_fits(arg, want, trail) for arg, want in zip(args, wanted, strict=True))
    # Only a type checker infers the variance of `class Sink[T]`; a model has fields alone.
    taken = any(
        param.__contravariant__ or getattr(param, "__infer_variance__", False) for param in params
    )
    return None if fits is False and taken and not _generic(cls) else fits


def _tuple_fits(args: tuple[Any, ...], wanted: tuple[Any, ...], trail: _Trail) -> bool | None:
    if any(_is_unpacked(arg) for arg in (*args, *wanted)):
        return None
    if wanted[1:] == (...,):
        return _all(_fits(arg, wanted[0], trail) for arg in args if arg is not ...)
    if args[1:] == (...,):
        return None if args[0] is Any else False
    if len(args) != len(wanted):
        return False
    return _all(_fits(arg, want, trail) for arg, want in zip(args, wanted, strict=True))


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
    except Exception:  # a protocol that cannot be checked, or a metaclass with opinions
        return True


def _seen_as(tp: Any, wanted: type, count: int) -> tuple[Any, ...] | None:
    """The `count` arguments `tp` has when looked at as its base `wanted`; None if unknown."""
    cls, args = _split(tp)
    if cls is wanted:
        return args
    if _is_standard(cls) and _is_standard(wanted):
        if cls in _ITEMS:
            return (_ITEMS[cls],)
        if args is not None:
            return _BASE_ARGUMENTS.get(cls, lambda args: args)(args)[:count]
    for base in _bases(cls):
        origin = _split(base)[0]
        if isinstance(origin, type) and _is_subclass(origin, wanted) is True:
            seen = _seen_as(_substitute(base, _parameters(cls), args), wanted, count)
            if seen is not None:
                return seen
    return None


def _bases(cls: Any) -> Iterable[Any]:
    own = cast("dict[str, Any]", vars(cls))
    if "_fields" in own and tuple in cls.__bases__:
        return (GenericAlias(tuple, tuple(_hints(cls, cls._fields).values())),)
    return own.get("__orig_bases__", cls.__bases__)


def _hints(cls: Any, names: Iterable[str]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # a name that is not there yet fails in whatever way its annotation can
        hints = {}
    return {name: hints.get(name, Any) for name in names}


def _substitute(tp: Any, params: tuple[Any, ...], args: tuple[Any, ...] | None) -> Any:
    known = dict.fromkeys(params, Any) | dict(zip(params, args or (), strict=False))
    if isinstance(tp, TypeVar):
        return known.get(tp, tp)
    model = _generic(tp)
    if model.get("parameters"):  # pydantic makes Box[T] the bare Box if T is its own parameter
        filled = (_substitute(arg, params, args) for arg in model["args"] or model["parameters"])
        return GenericAlias(model["origin"] or tp, tuple(filled))
    inner = getattr(tp, "__parameters__", ())
    variadic = not all(isinstance(param, TypeVar) for param in params)
    if isinstance(tp, type) or variadic or not inner:
        return tp
    try:
        return tp[tuple(known.get(param, param) for param in inner)]
    except TypeError:  # Generic[T], or a union of what cannot be hashed
        return tp


def _parameters(cls: Any) -> tuple[Any, ...]:
    own = _generic(cls).get("parameters") or getattr(cls, "__parameters__", None)
    # `class Bag(list[T])` is generic too, though only a type checker says so.
    of_bases = (getattr(base, "__parameters__", ()) for base in _bases(cls)) if own is None else ()
    return tuple(dict.fromkeys(itertools.chain(*of_bases))) if own is None else own


def _generic(tp: Any) -> dict[str, Any]:
    """What pydantic notes on a generic model and on its parametrised subclasses."""
    return getattr(tp, "__pydantic_generic_metadata__", {}) if isinstance(tp, type) else {}


def _is_standard(cls: type) -> bool:
    # Code run by exec may claim to be in builtins, but its generics name their bases.
    standard = cls.__module__ in ("builtins", "collections", "collections.abc", "types")
    return standard and "__orig_bases__" not in vars(cls)


def _is_subclass(cls: type, wanted: type) -> bool | None:
    try:
        return wanted in cls.__mro__ or _is_promoted(cls, wanted) or issubclass(cls, wanted)
    except Exception:  # a protocol that cannot be checked, or a metaclass with opinions
        return None


def _is_promoted(cls: Any, wanted: Any) -> bool:
    narrower = (int, float) if wanted is complex else int if wanted is float else ()
    return isinstance(cls, type) and issubclass(cls, narrower)


def _is_typed_dict(tp: Any) -> bool:
    return isinstance(tp, type) and hasattr(tp, "__required_keys__")


def _is_unpacked(tp: Any) -> bool:
    return _form(tp) == "Unpack" or getattr(tp, "__unpacked__", False) is True


def _split(tp: Any) -> tuple[Any, tuple[Any, ...] | None]:
    """Origin and arguments of a type; the arguments are None, and not (), where none are given."""
    if origin := _generic(tp).get("origin"):
        return origin, _generic(tp)["args"]
    if get_origin(tp) is None:
        return tp, None
    return get_origin(tp), get_args(tp) if hasattr(tp, "__args__") else None


def _strip(tp: Any) -> Any:
    while get_origin(tp) is typing.Annotated or _form(tp) in _QUALIFIERS:
        tp = get_args(tp)[0]
    return NoneType if tp is None else str if tp is LiteralString else tp


def _form(tp: Any) -> str | None:
    # By name, because typing_extensions has forms of its own where typing lacks them.
    return getattr(get_origin(tp), "_name", None)


def _flatten(tp: Any, inside: tuple[Any, ...]) -> Iterator[Any]:
    tp = _strip(tp)
    origin, args = get_origin(tp) or tp, get_args(tp)
    if type(origin).__name__ == "TypeAliasType":  # typing_extensions has one of its own
        if origin in inside:
            return  # a union that names itself as a member adds nothing by it
        # The arguments wait until the body is flat: Maybe[Maybe[int]] does not name itself.
        for member in _flatten(_alias_value(origin), (*inside, origin)):
            yield from _flatten(_substitute(member, origin.__type_params__, args), inside)
    elif origin in _UNIONS:
        for member in args:
            yield from _flatten(member, inside)
    else:
        yield tp


def _alias_value(alias: Any) -> Any:
    try:
        return alias.__value__
    except Exception:  # evaluated only now, so anything in it may fail
        return typing.ForwardRef(alias.__name__)


def _union(members: Iterable[Any]) -> Any:
    known = tuple(Any if _is_unpacked(member) else member for member in members)
    try:
        return cast("Any", Union)[known] if known else typing.Never
    except TypeError:  # metadata inside cannot be hashed
        return Any


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
    except Exception:  # metadata inside may compare as it likes
        return False


def _all(answers: Iterable[bool | None]) -> bool | None:
    found = set(answers)
    return False if False in found else None if None in found else True


def _any(answers: Iterable[bool | None]) -> bool | None:
    found = set(answers)
    return True if True in found else None if None in found else False
