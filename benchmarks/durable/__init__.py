"""What does it cost that a run survives? Chains of steps, each kept in SQLite before the next one
begins, by bae's journal, by other libraries and by hand, interleaved on the same checked work:

    python -m benchmarks.durable --help

`contenders/` has one module for each way of keeping steps, `cases/` one for each question;
`samples.py` runs each contender in a process of its own.
"""
