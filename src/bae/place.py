"""`Place`: the place of a value in a run, and its text form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

ANY_STEP = -1
"""The step of a place that a person wrote without a step."""


class Place(NamedTuple):
    """The place of a node, of a field, of a part of a field's value, or of a parameter of the
    function that computes the value.

    The text forms:

    - `2:Report.summaries[3]`: step 2, class `Report`, field `summaries`, item 3.
    - `2:Report.sections[0].title`: the key `title` in item 0 of the field `sections`.
    - `1:Day.weather(city)`: the parameter `city` of the function that computes `weather`.
    - `2:Report.summaries[3]/1:Summary.text`: a field in a graph inside the run. The place of the
      field that the graph runs for comes first.
    """

    path: str = ""
    """For a place in a graph inside the run, the place of the field that the graph runs for. Empty
    in the run itself."""
    step: int = ANY_STEP
    node: str = ""
    """The name of the node class."""
    field: str = ""
    """The name of the field. Empty for the complete node."""
    parameter: str = ""
    """The parameter of the field's function, as `(city)`. `(city)(client)` is the parameter
    `client` of the function that computes `city`."""
    item: int | None = None
    """The number of an item of a map or a list."""
    within: tuple[str | int, ...] = ()
    """The path into the value, or into the item: keys of objects, and indices of lists."""

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """Return the place that a text names, or None if the text is not a place. A text without a
        step gives the step `ANY_STEP`."""
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
            (*_read_keys(within),) if within else (),
        )

    @property
    def outer(self) -> Place | None:
        """The place of the field that this place's graph runs for. None in the run itself."""
        return Place.parse(self.path) if self.path else None

    @property
    def parameters(self) -> list[str]:
        """The names in `parameter`: `city` and `client` for `(city)(client)`."""
        return self.parameter[1:-1].split(")(") if self.parameter else []

    def below(self, parameter: str) -> Place:
        """Return the place of a parameter of the function that computes the value here."""
        return Place(
            self.path, self.step, self.node, self.field, f"{self.parameter}({parameter})", None
        )

    @property
    def value_text(self) -> str:
        """The place inside the node: the field, a parameter, and the path into the value, as
        `sections[0].title`."""
        item = "" if self.item is None else f"[{self.item}]"
        within = "".join(map(_write_key, self.within)) if self.within else ""
        return f"{self.field}{self.parameter}{item}{within}"

    def __str__(self) -> str:
        prefix = f"{self.path}/" if self.path else ""
        step = "" if self.step == ANY_STEP else f"{self.step}:"
        field = f".{self.value_text}" if self.field else ""
        return f"{prefix}{step}{self.node}{field}"


def _write_key(key: str | int) -> str:
    """Return the text of a key: `.title` for a name, `[2]` for an index, and JSON in brackets for
    any other text. A slash in the JSON is escaped, because a slash separates graphs."""
    if isinstance(key, int):
        return f"[{key}]"
    if _NAME.fullmatch(key):
        return f".{key}"
    return f"[{json.dumps(key).replace('/', _SLASH)}]"


def _read_keys(text: str) -> Iterator[str | int]:
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
