"""For tests of journals: lines, runs of them, and what a store says about them."""

from bae.journal import Journal, Line

SHAPE = '{"nodes": []}'


def line(n, data='{"x": 1}', *, kind="StepStarted", at=1000.0, path="", step=0):
    return Line(n, kind, at + n, path, step, data)


def lines(first, end, **fields):
    return [line(n, **fields) for n in range(first, end)]


async def begun(journal: Journal, run_id="run", count=1, *, graph="Trip", **fields):
    """A new run with so many lines, and the claim on it."""
    return await journal.create(run_id, graph, SHAPE, "hash", lines(0, count, **fields))


async def ended(journal: Journal, run_id="run", count=1, *, status="ended", **fields):
    """A run with so many lines that is over."""
    claim = await begun(journal, run_id, count, **fields)
    await journal.release(claim, status, [])


async def numbers(journal: Journal, run_id="run"):
    return [each.n for each in (await journal.read(run_id)).lines]


async def ids(journal: Journal, **wanted):
    return [run.run_id for run in await journal.runs(**wanted)]
