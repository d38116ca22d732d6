"""Runs carried out at a terminal: `carrying.py` has one begin or go on, with gates asked, signals
and budgets heeded; `outcomes.py` tells how it came out, and `advice.py` what to type then."""
