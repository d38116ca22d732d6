"""Where bae 3.0 had `OptimizedLM`; it is in `bae.lm`."""

from bae.lm.optimized import OptimizedLM

__all__ = ["OptimizedLM"]
