"""Why `bae eval` fails: it exits with 0 where every case was run and scored, and each score is as
high as it was to be. `eval.py` says it, and exits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bae.cli.texts import in_one_line

if TYPE_CHECKING:
    from bae.evals.report import Contender, Evaluation


def reasons_to_fail(evaluation: Evaluation, fail_under: float | None) -> Iterator[str]:
    """Why an evaluation fails, a sentence for each reason; none where it does not."""
    from bae.cli.live.wording import count

    every = evaluation.contenders
    if all(result.failed for each in every for result in each.cases):
        yield "every case failed"
    if evaluation.stopped:
        yield f"not every case was run: {evaluation.stopped}"
    unscored = [result for each in every for result in each.unscored]
    if unscored:
        said = f"{count(len(unscored), 'case')} could not be scored"
        why = in_one_line(unscored[0].error).removeprefix("it could not be scored: ")
        yield f"{said}, so the scores are of the others alone: {why}"
    elif evaluation.metric_errors:
        yield f"a metric failed {count(evaluation.metric_errors, 'time')}: {_first_error(every)}"
    if fail_under is not None:
        for each in every:
            yield from _too_low(each, fail_under)


def _first_error(contenders: list[Contender]) -> str:
    results = (result for each in contenders for result in each.cases)
    return in_one_line(next(result.metric_error for result in results if result.metric_error))


def _too_low(contender: Contender, fail_under: float) -> Iterator[str]:
    score = contender.total.score
    name = in_one_line(contender.name)
    if score is None:
        yield f"{name} has no score, and --fail-under {fail_under:g} wants one"
    elif score.mean < fail_under:
        said = next(
            text
            for text in (*(f"{score.mean:.{digits}g}" for digits in (4, 8, 12)), repr(score.mean))
            if float(text) < fail_under
        )
        yield f"{name} scores {said}, which is less than --fail-under {fail_under:g}"
