"""Benchmarks of bae against a hand-written loop and four graph libraries: `python -m benchmarks`.

`work.py` fixes what is computed and what must come out; `contenders/` holds one file per library,
each doing that work its own way; `cases/` measures one question each; `sampling.py` takes the
samples in turn; `report.py` prints them. docs/benchmarks.md carries the last published figures.
"""
