"""One part of a node handed over to one of DSPy's optimisers: it runs in a thread, asks and scores
on the event loop, and what it finds is put into the part's predictor. `optimizing.py` does this for
each part there are enough examples for."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticUndefined

from bae.lm.extras import load_dspy
from bae.optimizer.asking_lm import AskingAdapter, asking_lm
from bae.optimizer.bridging import Bridge, OutOfBudget
from bae.optimizer.by_name import Training, optimized, validating
from bae.optimizer.quiet import QUIET, quiet
from bae.optimizer.same_questions import is_corrected
from bae.optimizer.scoreboard import Scoreboard
from bae.optimizer.teaching import Teaching, most_fruitless

if TYPE_CHECKING:
    from bae.lm.backend import Backend
    from bae.lm.policies.budget import Budget
    from bae.optimizer.calls import CallLog
    from bae.optimizer.metrics import PartMetric
    from bae.optimizer.progress import Telling
    from bae.optimizer.questions import PartQuestions


async def optimize_part(
    asked: PartQuestions,
    examples: list[Any],
    metric: PartMetric,
    backends: Mapping[Any, Backend],
    optimizer: str,
    options: Mapping[str, Any],
    *,
    log: CallLog,
    telling: Telling,
    budget: Budget | None,
    seed: int,
    concurrency: int,
) -> float | None:
    """Optimise the predictor of a part, in place, with examples of which no two ask the same.
    Answers the score of what was found, where it has one: the mean over what candidates are scored
    on, and not made from."""
    dspy = load_dspy("optimize_node")
    bridge = Bridge(budget)
    accept = options.get("accept")
    accept = metric.accept if accept is None else accept
    teaching = Teaching(accept, most_fruitless(options))
    adapter = AskingAdapter(bridge, log, backends, asked, telling, teaching)
    plain = [_without_origin(asked, each) for each in examples]
    places = {id(each): index for index, each in enumerate(plain)}
    board = Scoreboard()

    def score(example: Any, prediction: Any, trace: Any) -> tuple[float, str]:
        answer = asked.answer(dict(prediction))
        candidate, question = adapter.candidate, adapter.question
        place = places[id(example)]

        async def judged() -> tuple[float, str]:
            found = await metric(examples[place], answer, index=place, trace=trace)
            value = found.value
            telling.scored += 1
            if telling.phase == "trying":
                best = board.add(candidate, example, value)
                telling.best = best if apart else None
            elif trace is not None:
                if is_corrected(examples[place]) and answer != asked.answer(dict(example)):
                    value = _NEVER  # nobody's answer is to stand in the place of a person's
                teaching.judged(question, found.value, value >= accept)
            telling.tell()
            return value, found.why

        return bridge.call(judged)

    training = Training(
        predictor=_asked_of(asked),
        examples=plain,
        origins=examples,
        score=score,
        accept=accept,
        student=asking_lm("student"),
        teacher=asking_lm("teacher"),
        adapter=adapter,
        seed=seed,
        concurrency=concurrency,
        calls=None if budget is None else budget.calls,
        is_over=lambda: bridge.spent is not None or board.best == 1.0,
        options=options,
    )
    made, scored = validating(training)
    board.expect(scored)
    # With a single question it is both, and a score of it says nothing.
    apart = not {id(each) for each in made} & {id(each) for each in scored}

    def work() -> Any:
        with dspy.context(
            lm=training.student,
            adapter=adapter,
            trace=None,
            callbacks=[],
            send_stream=None,
            track_usage=False,
            disable_history=True,
            warn_on_type_mismatch=False,
            max_errors=10**9,
            num_threads=concurrency,
            **{QUIET: True},
        ):
            try:
                return optimized(optimizer, training, made, scored)
            except OutOfBudget:
                return None
            except BaseException as error:
                # Bars that DSPy has left open say so when they are let go of: that is to be here,
                # where nobody hears it.
                clear_frames(error.__traceback__)
                raise

    telling.tell()
    with quiet():
        found = await bridge.run(work)
    if bridge.spent is not None:
        telling.note(f"the budget ran out, and this is the best until then: {bridge.spent.message}")
    best: float | None = None
    if adapter.not_taken and not adapter.taken:
        # What was found was never asked, and could not be.
        telling.note(_none_taken(adapter))
    elif found is not None:
        asked.predictor.signature = asked.signature.with_instructions(found.instruction)
        asked.predictor.demos = [_demo(asked, each) for each in found.demos]
        if apart:
            best = board.mean(adapter.candidate_of(found.instruction, found.demos))
        if adapter.not_taken:
            telling.note(_some_not_taken(adapter))
        if note := teaching.note():
            telling.note(note)
    telling.phase = "done"
    telling.tell()
    return best


_NEVER: Final = float("-inf")
"""A score that is never good enough."""


def _none_taken(adapter: AskingAdapter) -> str:
    count = adapter.not_taken.total()
    said = "the only question" if count == 1 else f"any of {count} questions"
    return (
        f"the LM would not take {said}, so it stays as it is: {next(iter(adapter.not_taken))}; if "
        "that is because they are too long, show fewer examples: lower max_labeled_demos and "
        "max_bootstrapped_demos"
    )


def _some_not_taken(adapter: AskingAdapter) -> str:
    count = adapter.not_taken.total()
    said = "1 question was" if count == 1 else f"{count} questions were"
    every = count + adapter.taken
    return f"{said} not taken by the LM, of {every}, and scored 0: {next(iter(adapter.not_taken))}"


def _asked_of(asked: PartQuestions) -> Any:
    """The predictor for DSPy: without defaults, which it would put in where an example has nothing.
    A run does not tell the model of a field whose default stands."""
    fields = {name: copy(field) for name, field in asked.signature.fields.items()}
    for name in asked.signature.input_fields:
        fields[name].default = PydanticUndefined
    predictor = asked.predictor.deepcopy()
    signature = load_dspy("optimize_node").Signature(fields, asked.signature.instructions)
    predictor.signature = signature
    return predictor


def _demo(asked: PartQuestions, demo: Any) -> Any:
    """A demonstration with the fields of the signature, and nothing that DSPy notes beside them."""
    inputs = [name for name in asked.signature.input_fields if name in demo]
    said = {name: demo[name] for name in asked.signature.fields if name in demo}
    return load_dspy("optimize_node").Example(said).with_inputs(*inputs)


def _without_origin(asked: PartQuestions, example: Any) -> Any:
    """The example without where it comes from, which is nothing for a model to see."""
    inputs = list(example.inputs().keys())
    said = {name: value for name, value in example.items() if name in asked.signature.fields}
    return load_dspy("optimize_node").Example(said).with_inputs(*inputs)
