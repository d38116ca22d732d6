"""Names that a package has without importing their modules: each is imported when it is first
asked for, so that `import bae` stays fast and an extra is needed only where it is used."""

import sys
from collections.abc import Callable, Mapping
from typing import Any


def export_lazily(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package. `modules` maps each of its modules to the
    names that the package has from it, with spaces between them."""
    origins = {name: module for module, names in modules.items() for name in names.split()}
    namespace = vars(sys.modules[package])

    def import_name(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{package}.{origins[name]}"), name)
        namespace[name] = value
        return value

    def list_names() -> list[str]:
        return sorted({*namespace, *origins})

    return import_name, list_names
