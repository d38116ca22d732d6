"""The module of `OptimizedLM` in bae 3.0. Import the class from `bae.lm` instead."""

from bae.lm.optimized import OptimizedLM

__all__ = ["OptimizedLM"]
