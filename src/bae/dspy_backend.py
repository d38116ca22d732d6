"""The module of `DSPyBackend` in bae 3.0. The class is now in `bae.lm`."""

from bae.lm.dspy_backend import DSPyBackend
from bae.rooms import export_lazily

__all__ = ["DSPyBackend"]

__getattr__, __dir__ = export_lazily(__name__, {})
