"""Where bae 3.0 had `DSPyBackend`; it is in `bae.lm`."""

from bae.lm.dspy_backend import DSPyBackend

__all__ = ["DSPyBackend"]
