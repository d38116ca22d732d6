"""Policies, which wrap an LM. A policy is itself an LM, so policies nest in any order. Import them
from `bae.lm`."""
