"""`Place`: where in a run a value belongs, and how that is written."""

from __future__ import annotations

import re
from typing import NamedTuple

ANY_STEP = -1
"""The step of a place that a person wrote without one."""


class Place(NamedTuple):
    """A node of a run, a field of it, a parameter behind the field, or one item of a map.

    Written `2:Report.summaries[3]`: step 2, class `Report`, field `summaries`, item 3. A place in a
    graph that runs inside the run has the place of the field it runs for in front:
    `2:Report.summaries[3]/1:Summary.text`. `1:Day.weather(city)` is the parameter `city` of the
    function behind the field.
    """

    path: str = ""
    """The graph: empty for the run itself, else the place of the field that the graph runs for."""
    step: int = ANY_STEP
    node: str = ""
    """The name of the node class."""
    field: str = ""
    """Empty for the node as a whole."""
    parameter: str = ""
    """The way from the field's function to a parameter, as `(city)` or `(city)(client)`."""
    item: int | None = None

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """The place that a text names, or None if it names none. The step may be left out."""
        path, _, last = text.rpartition("/")
        found = _PLACE.fullmatch(last)
        if found is None:
            return None
        step, node, field, parameter, item = found.groups()
        return cls(
            path,
            ANY_STEP if step is None else int(step),
            node,
            field or "",
            parameter or "",
            None if item is None else int(item),
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
        """The place of a parameter of the function that this is the value of."""
        return Place(
            self.path, self.step, self.node, self.field, f"{self.parameter}({parameter})", None
        )

    def __str__(self) -> str:
        before = f"{self.path}/" if self.path else ""
        step = "" if self.step == ANY_STEP else f"{self.step}:"
        field = f".{self.field}{self.parameter}" if self.field else ""
        item = "" if self.item is None else f"[{self.item}]"
        return f"{before}{step}{self.node}{field}{item}"


_PLACE = re.compile(
    r"(?:([0-9]{1,18}):)?([^/]+?)"
    r"(?:\.([^.()\[\]:/]+)((?:\([^()]*\))*)(?:\[([0-9]{1,18})\])?)?"
)
