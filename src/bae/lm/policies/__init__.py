"""Policies: a policy wraps any LM and is an LM itself, so policies nest in any order. Import them
from `bae.lm`."""
