"""Which answers of a model may be shown while they stream in: none of a run in which something has
a part that can hold secrets, since the text would give them away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from bae.journal.coding.values import kept_type
from bae.plan import plan_of

if TYPE_CHECKING:
    from bae.node import Node


def may_quote(met: Iterable[type[Node]]) -> bool:
    """Whether nothing that was met so far, or that may follow it, can hold a secret: a `SecretStr`
    or the like, however deep, or a field with `repr=False`."""
    for cls in [*met]:
        if any(_holds_secrets(each) for each in (cls, *plan_of(cls).successors)):
            return False
    return True


def _holds_secrets(cls: type[Any]) -> bool:
    found = _known.get(cls)
    if found is None:
        try:
            found = bool(kept_type(cls).facts.secret)
        except Exception:  # nobody can tell what is in it
            found = True
        _known[cls] = found
    return found


_known: Final[WeakKeyDictionary[type, bool]] = WeakKeyDictionary()
