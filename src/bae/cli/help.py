"""Examples below the help of a command."""

from bae.cli.options import examples

__all__ = ["examples"]
