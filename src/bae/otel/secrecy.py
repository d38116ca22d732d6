"""Which LM calls may be shown with what was asked and answered: none in which something has a part
that can hold secrets, whether or not the text would give them away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from bae.calls import MISSING, every_call
from bae.journal.coding.values import kept_type
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.node import Node


def no_secrets_in(classes: Iterable[type]) -> bool:
    """Whether no node of these classes can hold a secret: a `SecretStr` or the like, however deep,
    or a field with `repr=False`."""
    return not any(_holds_secrets(cls) for cls in classes if cls is not type(None))


def all_after(classes: Iterable[type[Node]]) -> set[type]:
    """Node classes, with those that their bodies may go on to, and so may ask an LM for."""
    found: set[type] = set()
    for cls in classes:
        found |= {cls, *plan_of(cls).offered}
    return found


def hides(cls: type[Node], field: str) -> bool:
    """Whether a function behind a field, or behind a parameter of it, may return a secret."""
    known = _of_fields.setdefault(cls, {})
    if field not in known:
        call = plan_of(cls).fields[field].call
        returned = [] if call is None else [each.returns for each in every_call(call)]
        known[field] = any(_is_secret(each) for each in returned if each is not MISSING)
    return known[field]


def _holds_secrets(cls: Any) -> bool:
    found = _of_classes.get(cls)
    if found is None:
        found = _of_classes[cls] = _is_secret(cls)
    return found


def _is_secret(declared: Any) -> bool:
    try:
        return bool(kept_type(declared).facts.secret)
    except Exception:  # nobody can tell what is in it
        return True


_of_classes: Final[WeakKeyDictionary[type, bool]] = WeakKeyDictionary()
_of_fields: Final[WeakKeyDictionary[type, dict[str, bool]]] = WeakKeyDictionary()
