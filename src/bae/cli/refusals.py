"""The errors of a command line that cannot be carried out."""

from bae.cli.exits import Misuse, refused

__all__ = ["Misuse", "refused"]
