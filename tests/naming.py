"""Names of test cases: the same in every process, so that several can share the suite."""

import re


def describe_value(value: object) -> str:
    """How a value shows itself, without where it is in memory, and sets in order."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__} of {', '.join(sorted(map(describe_value, value)))}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def shortly(value: object) -> str:
    """The beginning of that."""
    return describe_value(value)[:40]
