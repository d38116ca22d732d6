"""Scores and metrics: `Score`, the built-in comparison of fields, and calls of a user's metric."""

from __future__ import annotations

import math
import re
import typing
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from inspect import isawaitable, iscoroutinefunction
from types import NoneType
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel

from bae.assignable import union_members
from bae.draft import validate_values
from bae.exceptions import BaeError
from bae.node import Node
from bae.prompts.values import list_fields_to_fill
from bae.secrets import secret_fields
from bae.threads import in_thread

N = TypeVar("N", bound=Node)


@dataclass(frozen=True, slots=True)
class Score:
    """How good an answer is. Return it from a metric to give a reason. Tables show the reason, and
    an optimizer that writes instructions reads it."""

    value: float
    """The score, from 0 to 1."""
    why: str = ""
    """The reason, such as what was wrong."""


NodeMetric = Callable[[N, N], float | bool | Score | Awaitable[float | bool | Score]]
"""A function, async or not, that takes the expected and the given node and returns a score."""


def fields_metric(
    expected: Node | Mapping[str, Any],
    given: Node | Mapping[str, Any],
) -> Score:
    """Compare expected and given fields. The score is the mean over the fields, and its reason
    names the fields that differ.

    Which fields are compared depends on `expected`. For a node, these are the fields that an LLM
    fills. For a mapping, all fields are compared, and for a DSPy example its outputs. If one side
    is a node, its class validates the values of the other side.

    - Text scores by token F1: the share of common words, ignoring case and punctuation.
    - Lists score by their items in order. The sum is divided by the longer length.
    - Sets score by their items, models and mappings by their fields.
    - A `Literal`, an enum and any other value scores 0 or 1.
    """
    expected, given = _read_fields(expected, "expected"), _read_fields(given, "given")
    if isinstance(expected, Node) and isinstance(given, Node) and type(expected) is not type(given):
        difference = f"{type(given).__name__}, where {type(expected).__name__} was expected"
        return Score(0.0, difference)
    cls = next((type(side) for side in (expected, given) if isinstance(side, Node)), None)
    hidden = () if cls is None else secret_fields(cls)
    scores: list[float] = []
    different: list[str] = []
    for name in list_fields_to_fill(type(expected)) if isinstance(expected, Node) else expected:
        expected_value, given_value = (
            _read_field(expected, name, cls),
            _read_field(given, name, cls),
        )
        declared = cls.__pydantic_fields__.get(name) if cls is not None else None
        scores.append(
            _score_likeness(
                expected_value, given_value, Any if declared is None else declared.annotation
            )
        )
        if scores[-1] < 1:
            difference = f": {short(given_value)}, where {short(expected_value)} was expected"
            different.append(f"{name} differs" if name in hidden else f"{name}{difference}")
    return Score(_mean(scores), "; ".join(different[:_MOST_REASONS]))


def node_transition_metric(example: Any, prediction: Any, trace: Any = None) -> float | bool:
    """Whether a prediction continues at the same node as the example.

    Use it as a DSPy metric for examples and predictions with `next_node_type` or `choice`. Both
    arguments may also be a name, a node, a node class, or None for the end of a run. If the
    `choice` of a prediction is "None", the run ends. If the `choice` is None, the prediction is
    wrong, because DSPy uses None for an answer that it could not read.

    Returns 1.0 or 0.0. If DSPy passes a `trace` to bootstrap demonstrations, returns a bool.
    """
    expected, given = _next_node(example), _next_node(prediction, read=True)
    if expected is None:
        raise ValueError(
            "node_transition_metric: the example has neither next_node_type nor choice; give it "
            "examples as trace_to_examples makes them"
        )
    is_same = expected == given
    return float(is_same) if trace is None else is_same


async def call_metric(metric: Callable[..., Any], *given: Any, where: str, fix: str = "") -> Score:
    """Call a metric, sync or async, and return its score. Errors are as in `call_scorer`. `where`
    and the metric's name begin their messages."""
    what = f"{where}: the metric {_name(metric)}"
    fix = fix or "fix the metric; it may return 0 for what it cannot judge"
    return read_score(await call_scorer(metric, *given, what=what, fix=fix), where=what)


async def call_scorer(scorer: Callable[..., Any], *given: Any, what: str, fix: str) -> Any:
    """Call a user's function and return its result. A function that is not async runs in a thread.

    An exception becomes a `BaeError` (`bae-metric-failed`), whose message begins with `what`. An
    error of bae, such as a spent budget or a failed LM call, is raised unchanged.
    """
    called = getattr(scorer, "__call__", None)  # noqa: B004  to see whether it is async
    try:
        if iscoroutinefunction(scorer) or iscoroutinefunction(called):
            return await scorer(*given)
        returned: Any = await in_thread(scorer, *given)
        return await returned if isawaitable(returned) else returned
    except BaeError:
        raise
    except Exception as error:
        raise BaeError(
            f"{what} raised {type(error).__name__}", code="bae-metric-failed", cause=error, fix=fix
        ) from error


def read_score(returned: Any, *, where: str) -> Score:
    """Convert the result of a metric to a score.

    The result may be a `Score`, a bool, or a number from 0 to 1, of Python or numpy. It may also be
    an object or a mapping with `score` and an optional `feedback`, such as DSPy's predictions.
    """
    why: Any = ""
    value: Any = returned
    if isinstance(returned, Score):
        value, why = returned.value, returned.why
    elif isinstance(value, Mapping):
        data = cast(Mapping[str, Any], value)
        value, why = data.get("score"), data.get("feedback", "")
    elif not _is_number(returned) or hasattr(returned, "score"):  # a Prediction is a number too
        value, why = getattr(returned, "score", None), getattr(returned, "feedback", "")
    try:
        number = float(value) if _is_number(value) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None:
        what = f"returned {short(cast(object, returned))}"
        expected = "a number from 0 to 1, or a Score"
    elif not -_ROUNDING <= number <= 1 + _ROUNDING:
        what = f"gave the score {number!r}"
        expected = "scores from 0 to 1: divide by the most that can be reached"
    else:
        return Score(min(1.0, max(0.0, number)), str(why or "")[:_LONGEST_REASON])
    raise BaeError(
        f"{where} {what}, which is no score",
        code="bae-metric-score",
        fix=f"let it return {expected}",
    )


def short(value: object, longest: int = 120) -> str:
    """Return the repr of a value, cut if it is long."""
    try:
        text = repr(value)
    except Exception:  # the repr of a user's object may raise anything
        text = f"a {type(value).__name__}"
    return text if len(text) <= longest else f"{text[:longest]}…"


def is_json(value: object) -> bool:
    """Whether a value consists of JSON types only."""
    if type(value) is dict:
        given = cast(dict[Any, Any], value)
        return all(type(k) is str and is_json(v) for k, v in given.items())
    if type(value) is list:
        return all(is_json(item) for item in cast(list[Any], value))
    return value is None or type(value) in (str, int, float, bool)


_LONGEST_REASON: Final = 2000
_MOST_REASONS: Final = 12
_MOST_PAIRS: Final = 10_000
"""The most pairs of items to compare when two lists are aligned. Longer lists are compared by
position."""
_ROUNDING: Final = 1e-6
"""How far a score may be outside 0 to 1. Because of rounding, the mean of ones is not always
exactly 1."""
_TOKEN: Final = re.compile(
    r"[-+]?\d+(?:[.,]\d+)*|[\u3040-\u30ff\u3400-\u9fff]|[^\W\d\u3040-\u9fff]\w*"
)
"""Matches a number, a Chinese or Japanese character (these scripts have no spaces), or a word."""


def _is_number(value: object) -> bool:
    return not isinstance(value, str | bytes) and hasattr(value, "__float__")


def _name(metric: object) -> str:
    return str(getattr(metric, "__qualname__", "") or type(metric).__qualname__)


def _mean(parts: Sequence[float]) -> float:
    return math.fsum(parts) / len(parts) if parts else 1.0


# --- how alike two values are -----------------------------------------------------------------


def _score_likeness(expected: object, given: object, declared: Any = Any) -> float:
    declared = _without_none(declared)
    if isinstance(expected, Enum) or isinstance(given, Enum):
        return float(getattr(expected, "value", expected) == getattr(given, "value", given))
    if isinstance(expected, str) and isinstance(given, str):
        exact = typing.get_origin(declared) is typing.Literal
        return float(expected == given) if exact else _token_f1(expected, given)
    parts, others = _parts(expected), _parts(given)
    if parts is not None and others is not None:
        if not isinstance(expected, Mapping | type(given)) and not isinstance(given, Mapping):
            return 0.0  # models of different classes are never equal
        return _mean([*_by_name(parts, others, declared)])
    inside = next(iter(typing.get_args(declared)), Any)
    one: Any = expected
    other: Any = given
    if all(isinstance(side, Set) for side in (one, other)):
        return 2 * len(one & other) / (len(one) + len(other)) if one or other else 1.0
    if _is_list(one) and _is_list(other):
        return _align_score(list(one), list(other), inside)
    return float(_are_equal(one, other))


def _without_none(declared: Any) -> Any:
    members = [member for member in union_members(declared) if member is not NoneType]
    return members[0] if len(members) == 1 else declared


def _token_f1(expected: str, given: str) -> float:
    one, other = (
        Counter(_TOKEN.findall(unicodedata.normalize("NFKC", text).casefold()))
        for text in (expected, given)
    )
    if not one and not other:  # both consist of punctuation
        return float(expected.strip() == given.strip())
    return 2 * (one & other).total() / (one.total() + other.total())


def _parts(value: object) -> dict[str, tuple[Any, Any]] | None:
    """Return the values of a model or a mapping by name, with their declared types. None for other
    values."""
    if isinstance(value, BaseModel):
        declared = type(value).__pydantic_fields__
        return {
            name: (item, declared[name].annotation if name in declared else Any)
            for name, item in value
        }
    if isinstance(value, Mapping):
        return {str(name): (item, Any) for name, item in cast(Mapping[Any, Any], value).items()}
    return None


def _by_name(
    one: dict[str, tuple[Any, Any]], other: dict[str, tuple[Any, Any]], declared: Any
) -> Iterator[float]:
    inside = (*typing.get_args(declared), Any, Any)[1]  # the value type of a mapping
    for name in one.keys() | other.keys():
        expected, kind = one.get(name, (None, Any))
        given, other_kind = other.get(name, (None, Any))
        declared_types = [kind_ for kind_ in (kind, other_kind, inside) if kind_ is not Any]
        yield _score_likeness(expected, given, declared_types[0] if declared_types else Any)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _align_score(one: list[Any], other: list[Any], declared: Any) -> float:
    """Return the best sum of likenesses of items that are paired in order, divided by the longer
    length."""
    longest = max(len(one), len(other))
    if len(one) * len(other) > _MOST_PAIRS:
        pairs = zip(one, other, strict=False)
        return math.fsum(_score_likeness(x, y, declared) for x, y in pairs) / longest
    best = [0.0] * (len(other) + 1)  # the best score using the first k items of `other`
    for item in one:
        row = [0.0]
        for place, candidate in enumerate(other):
            paired = best[place] + _score_likeness(item, candidate, declared)
            row.append(max(paired, best[place + 1], row[place]))
        best = row
    return min(1.0, best[-1] / longest) if longest else 1.0


def _are_equal(one: object, other: object) -> bool:
    if isinstance(one, bool) != isinstance(other, bool):
        return False  # in Python, True equals 1
    try:
        if isinstance(one, float) and isinstance(other, int | float):
            return one == other or math.isclose(one, other)
        return one is other or bool(one == other)
    except Exception:  # the values' own comparison may raise anything
        return False


# --- the fields to compare --------------------------------------------------------------------


def _read_fields(fields: Any, name: str) -> Node | Mapping[str, Any]:
    """Return the fields as a node or a mapping. For a DSPy example or prediction, return its
    outputs."""
    if isinstance(fields, Node | Mapping):
        return cast("Node | Mapping[str, Any]", fields)
    if not hasattr(fields, "toDict"):
        raise TypeError(f"fields_metric({name}={short(fields)}): give a node or a mapping")
    try:
        asked = fields.labels()
    except (ValueError, AttributeError):  # a prediction, which declares no inputs
        asked = fields
    return {key: value for key, value in asked.items() if key != "bae"}


def _read_field(holder: Node | Mapping[str, Any], name: str, cls: type[Node] | None) -> Any:
    if isinstance(holder, Node):
        return getattr(holder, name, None)
    value = holder.get(name)
    if cls is None or name not in cls.__pydantic_fields__:
        return value
    if name not in holder:
        info = cls.__pydantic_fields__[name]
        if info.is_required() or info.default_factory_takes_validated_data:
            return None
        return info.get_default(call_default_factory=True)
    try:
        return validate_values(cls, {name: value}, frozenset({name}) if is_json(value) else None)[
            name
        ]
    except Exception:  # compare an invalid value unchanged
        return value


def _next_node(given: Any, read: bool = False) -> str | None:
    """Return the name of the next node that `given` chooses, or the text "None" if it chooses to
    end the run. Return None if `given` is no choice. If `read`, `given` is a prediction that DSPy
    read from an answer, and its keys with the value None are ignored."""
    if given is None or given is NoneType:
        return "None"
    if isinstance(given, str):
        return given.strip()
    if isinstance(given, type | Node):
        return (given if isinstance(given, type) else type(given)).__name__
    for name in ("next_node_type", "choice"):
        try:
            has_name = name in given
            value = given[name] if has_name else None
        except TypeError:  # no mapping
            has_name, value = hasattr(given, name), getattr(given, name, None)
        if has_name and not (read and value is None):
            return _next_node(value)
    return None
