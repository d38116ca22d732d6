"""Case e: building a graph of two hundred node types, apart from defining the types.

Every sample gets new types, because a framework may cache its analysis of a class. The cost of
defining the types is shown beside it, so that work moved into the class statement is visible too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

from benchmarks.contenders import BAE, FLOOR, Contender, Definition
from benchmarks.report import DASH, Result, Verdict, figure, notes_of, spread
from benchmarks.sampling import Samples, Settings, turns
from benchmarks.work import FANOUT, GRAPH_SIZE, expect

MOST_MILLISECONDS = 30.0
MOST_OF_MODELS = 1.3
ROUNDS = 11
DEFINES_NO_TYPES = ("burr", "langgraph")
"""Their nodes are plain functions, so there is nothing to define before the build."""


def measure(case: str, contenders: Mapping[str, Contender], settings: Settings) -> Result:
    field = {key: one.define for key, one in contenders.items() if one.define}
    define = {key: Samples() for key in field}
    build = {key: Samples() for key in field}
    validate = {key: Samples() for key in field}
    for make in field.values():
        _validate_completely(make())
    for order in turns(list(field), min(settings.rounds, ROUNDS)):
        for key in order:
            gc.collect()
            start = time.perf_counter()
            definition = field[key]()
            defined = time.perf_counter()
            size = definition.build()
            built = time.perf_counter()
            if definition.validate:
                definition.validate()
                validate[key].append(time.perf_counter() - built)
            define[key].append(defined - start)
            build[key].append(built - defined)
            expect(f"nodes that {key} built", size, GRAPH_SIZE)

    rows = [
        [
            contenders[key].name,
            DASH if key in DEFINES_NO_TYPES else figure(define[key].median * 1e3),
            DASH if key == FLOOR else figure(build[key].median * 1e3),
            DASH if key == FLOOR else spread(build[key], 1e3),
            figure(validate[key].median * 1e3) if validate[key] else DASH,
        ]
        for key in field
    ]
    quick = f"bae builds a graph of {GRAPH_SIZE} node types in under {MOST_MILLISECONDS:g} ms"
    cheap = f"defining and building takes at most {MOST_OF_MODELS:g} × defining the models"
    if BAE in build:
        took = build[BAE].median * 1e3
        both = Samples(map(sum, zip(define[BAE], build[BAE], strict=True)))
        ratio = both.ratio_to(define[FLOOR])
        verdicts = [
            Verdict(case, quick, f"{took:.1f} ms", took < MOST_MILLISECONDS),
            Verdict(case, cheap, f"{ratio:.2f} ×", ratio <= MOST_OF_MODELS),
        ]
    else:
        verdicts = [Verdict(case, target, "bae did not run", None) for target in (quick, cheap)]
    return Result(
        case=case,
        title=f"e. Building a graph of {GRAPH_SIZE} node types with {FANOUT} successors each (ms)",
        header=["", "defining", "building", "lowest–highest", "validating"],
        rows=rows,
        verdicts=verdicts,
        notes=[
            "Where validating has no figure of its own it is part of building.",
            *notes_of(contenders.values(), case),
        ],
        samples={"define": define, "build": build, "validate": validate},
    )


def _validate_completely(definition: Definition) -> None:
    definition.build()
    if definition.validate:
        definition.validate()
