"""`Place`: where in a run a value belongs, and how a place is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

ANY_STEP = -1
"""The step of a place that a person wrote without one."""


class Place(NamedTuple):
    """A node of a run, a field of it, a parameter behind the field, or a part of its value.

    Written `2:Report.summaries[3]`: step 2, class `Report`, field `summaries`, item 3. In a graph
    inside the run, the place of the field that the graph runs for comes first:
    `2:Report.summaries[3]/1:Summary.text`. `1:Day.weather(city)` is the parameter `city` of the
    function behind the field, and `2:Report.sections[0].title` a part of an item of a list.
    """

    path: str = ""
    """The graph: empty for the run itself, otherwise the place of the field that it runs for."""
    step: int = ANY_STEP
    node: str = ""
    """The name of the node class."""
    field: str = ""
    """Empty for the node as a whole."""
    parameter: str = ""
    """The way from the field's function to a parameter, as `(city)` or `(city)(client)`."""
    item: int | None = None
    """The item of a map, or of a list."""
    within: tuple[str | int, ...] = ()
    """The way further into the value: keys of objects, and indices of lists."""

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """The place that a text names; None if it names no place. The step may be left out."""
        path, _, last = text.rpartition("/")
        match = _PLACE.fullmatch(last)
        if match is None:
            return None
        step, node, field, parameter, item, within = match.groups()
        return cls(
            path,
            ANY_STEP if step is None else int(step),
            node,
            field or "",
            parameter or "",
            None if item is None else int(item),
            (*_keys_in(within),) if within else (),
        )

    @property
    def outer(self) -> Place | None:
        """The place of the field that this graph runs for; None in the run itself."""
        return Place.parse(self.path) if self.path else None

    @property
    def parameters(self) -> list[str]:
        """The parameters on the way from the field's function: `(city)(client)` has two."""
        return self.parameter[1:-1].split(")(") if self.parameter else []

    def below(self, parameter: str) -> Place:
        """The place of a parameter of the function whose value this place has."""
        return Place(
            self.path, self.step, self.node, self.field, f"{self.parameter}({parameter})", None
        )

    @property
    def value_text(self) -> str:
        """The field and the way into its value, as `sections[0].title`."""
        item = "" if self.item is None else f"[{self.item}]"
        within = "".join(map(_key_text, self.within)) if self.within else ""
        return f"{self.field}{self.parameter}{item}{within}"

    def __str__(self) -> str:
        before = f"{self.path}/" if self.path else ""
        step = "" if self.step == ANY_STEP else f"{self.step}:"
        field = f".{self.value_text}" if self.field else ""
        return f"{before}{step}{self.node}{field}"


def _key_text(key: str | int) -> str:
    """A key as it is written: a name as `.title`, an index as `[2]`, and any other text as JSON, in
    which a slash is escaped: it separates graphs."""
    if isinstance(key, int):
        return f"[{key}]"
    if _NAME.fullmatch(key):
        return f".{key}"
    return f"[{json.dumps(key).replace('/', _SLASH)}]"


def _keys_in(text: str) -> Iterator[str | int]:
    for name, index, quoted in _KEY.findall(text):
        yield name or (int(index) if index else json.loads(quoted))


_SLASH: Final = "\\u002f"
_NAME: Final = re.compile(r"[^\W\d]\w*")
_KEY: Final = re.compile(r'\.([^\W\d]\w*)|\[([0-9]{1,18})\]|\[("(?:[^"\\]|\\.)*")\]')
_ANY_KEY: Final = r'\.[^\W\d]\w*|\[[0-9]{1,18}\]|\["(?:[^"\\]|\\.)*"\]'
_PLACE: Final = re.compile(
    r"(?:([0-9]{1,18}):)?([^/]+?)"
    r"(?:\.([^.()\[\]:/]+)((?:\([^()]*\))*)(?:\[([0-9]{1,18})\])?"
    rf"((?:{_ANY_KEY})*))?"
)
