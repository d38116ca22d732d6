"""DSPy's optimizers by name, with their options: bootstrapped few-shot examples, MIPROv2 and GEPA.
They are sync and run in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bae.exceptions import faults
from bae.lm.extras import load_dspy, need
from bae.optimizer.splits import question_of

if TYPE_CHECKING:
    from bae.optimizer.training import Training

Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Accept = Annotated[float, Field(ge=0, le=1)] | None


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Bootstrap(_Options):
    max_bootstrapped_demos: Count = 4
    max_labeled_demos: Count = 8
    max_rounds: AtLeastOne = 1
    max_fruitless: AtLeastOne | None = None
    accept: Accept = None


class _MIPROv2(_Options):
    num_candidates: Annotated[int, Field(ge=2)] = 5
    num_trials: AtLeastOne = 10
    max_bootstrapped_demos: Count = 3
    max_labeled_demos: Count = 4
    validation: Share = 0.5
    minibatch_size: AtLeastOne = 25
    minibatch_full_eval_steps: AtLeastOne = 5
    view_data_batch_size: AtLeastOne = 10
    program_aware_proposer: bool = False
    data_aware_proposer: bool = True
    tip_aware_proposer: bool = True
    fewshot_aware_proposer: bool = True
    accept: Accept = None

    @model_validator(mode="after")
    def _check_demos(self) -> Self:
        if self.max_labeled_demos and not self.max_bootstrapped_demos:
            raise ValueError(
                "max_bootstrapped_demos=0: give 1 or more, or max_labeled_demos=0 as well"
            )
        return self


class _GEPA(_Options):
    max_metric_calls: AtLeastOne | None = None
    reflection_minibatch_size: AtLeastOne = 3
    candidate_selection_strategy: Literal[
        "pareto", "current_best", "epsilon_greedy", "top_k_pareto"
    ] = "pareto"
    validation: Share = 0.5


_MODELS: Final[Mapping[str, type[_Options]]] = {
    "bootstrap": _Bootstrap,
    "miprov2": _MIPROv2,
    "gepa": _GEPA,
}

OPTIMIZERS: Final = tuple(_MODELS)
"""The values for `optimizer=`."""

OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    name: {option: info.default for option, info in model.__pydantic_fields__.items()}
    for name, model in _MODELS.items()
}
"""The options of each optimizer, with their defaults.

- `max_bootstrapped_demos`: the most answers of the teacher that become examples in the prompt.
- `max_labeled_demos`: the most examples in the prompt in total. Answers from the runs are added to
  the teacher's answers up to this number. Each question is shown once, and a corrected answer is
  shown unchanged.
- `max_rounds`: how often the teacher may be asked about an example. It is asked again until its
  answer is good. Each round shows the teacher its examples in another order.
- `accept`: the lowest score of a good answer. The default comes from the metric: 1, or a judge's
  threshold.
- `max_fruitless`: the teacher is asked about at most `max_bootstrapped_demos` + `max_fruitless`
  examples. The default is 3 * `max_bootstrapped_demos` + 4.
- `num_candidates`: how many instructions and sets of examples MIPROv2 combines.
- `num_trials`: how many combinations MIPROv2 tries.
- `validation`: the share of the examples to score candidates on. Candidates are made from the other
  examples. A run and its forks are on the same side, unless there is only one run.
- `max_metric_calls`: how many answers GEPA scores at most. The default is the number of calls in
  the budget, or otherwise six times the number of examples. GEPA ends earlier if an instruction
  scores 1 on all examples.

The other options are DSPy's own.
"""


def checked_options(optimizer: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of an optimizer, and return them with the defaults added."""
    if optimizer not in OPTIMIZERS:
        raise ValueError(
            f"there is no optimizer {optimizer!r}: give one of {', '.join(OPTIMIZERS)}"
        )
    load_dspy("optimize_node")
    try:
        options = _MODELS[optimizer].model_validate(given)
    except ValidationError as error:
        allowed = ", ".join(OPTIONS[optimizer])
        raise ValueError(
            f"{optimizer}: {'; '.join(faults(error))}; its options are {allowed}"
        ) from error
    package = {"miprov2": "optuna", "gepa": "gepa"}.get(optimizer)
    if package is not None:
        need(package, extra="optimize", by=f'optimizer="{optimizer}"')
    return options.model_dump()


def run_optimizer(name: str, training: Training) -> Any:
    """Run an optimizer in this thread and in threads that it starts. Return the optimized
    predictor."""
    return _BY_NAME[name](training)


def _bootstrap(training: Training) -> Any:
    dspy = load_dspy("optimize_node")
    options = training.options
    shuffled = list(training.trained)
    Random(training.seed).shuffle(shuffled)
    # Corrected examples go first, since they are the most reliable.
    labelled = sorted(shuffled, key=lambda example: not training.is_corrected(example))
    teacher = training.predictor.deepcopy()
    teacher.demos = labelled[: options["max_labeled_demos"]]
    teacher._compiled = True  # so that DSPy does not replace these demos
    optimizer = dspy.BootstrapFewShot(
        metric=training.value,
        metric_threshold=training.threshold,
        teacher_settings={"lm": training.teacher},
        max_bootstrapped_demos=options["max_bootstrapped_demos"],
        max_labeled_demos=0,
        # Each round rotates the teacher's examples. More rounds would repeat a prompt.
        max_rounds=max(1, min(options["max_rounds"], len(teacher.demos) - 1)),
        max_errors=_NO_END,
    )
    program = training.predictor.deepcopy()
    bootstrapped: list[Any] = []
    if options["max_bootstrapped_demos"]:
        # Ask the teacher about corrected examples last: their answers are already right.
        questions = sorted(shuffled, key=training.is_corrected)
        wanted = options["max_bootstrapped_demos"]
        questions = questions[: wanted + (options["max_fruitless"] or 3 * wanted + 4)]
        program = optimizer.compile(program, teacher=teacher, trainset=questions)
        bootstrapped = list(program.demos)
    answered = {_question_of_demo(training, demo) for demo in bootstrapped}
    rest = [example for example in labelled if _question_of_demo(training, example) not in answered]
    missing = max(0, options["max_labeled_demos"] - len(bootstrapped))
    program.demos = [*bootstrapped, *rest[:missing]]
    return program


def _question_of_demo(training: Training, demo: Any) -> str:
    """Return the question of a demonstration or an example as text."""
    names = training.predictor.signature.input_fields
    return question_of({name: demo[name] for name in names if name in demo})


def _miprov2(training: Training) -> Any:
    dspy = load_dspy("optimize_node")
    options = training.options
    optimizer = dspy.MIPROv2(
        metric=training.value,
        prompt_model=training.teacher,
        task_model=training.student,
        teacher_settings={"lm": training.teacher},
        max_bootstrapped_demos=options["max_bootstrapped_demos"],
        max_labeled_demos=options["max_labeled_demos"],
        auto=None,
        num_candidates=options["num_candidates"],
        num_threads=training.concurrency,
        max_errors=_NO_END,
        seed=training.seed,
        track_stats=False,
        metric_threshold=training.threshold,
    )
    size = options["minibatch_size"]
    return optimizer.compile(
        training.predictor.deepcopy(),
        trainset=training.trained,
        valset=training.scored,
        num_trials=options["num_trials"],
        minibatch=len(training.scored) > size,
        minibatch_size=min(size, len(training.scored)),
        **{
            name: options[name]
            for name in (
                "minibatch_full_eval_steps",
                "view_data_batch_size",
                "program_aware_proposer",
                "data_aware_proposer",
                "tip_aware_proposer",
                "fewshot_aware_proposer",
            )
        },
    )


def _gepa(training: Training) -> Any:
    dspy = load_dspy("optimize_node")
    options = training.options
    gepa: Any = import_module("dspy.teleprompt.gepa")

    def metric(
        example: Any, given: Any, trace: Any = None, name: Any = None, part: Any = None
    ) -> Any:
        value, why = training.score(example, given, None)
        return dspy.Prediction(score=value, feedback=why or f"This answer scores {value:g} of 1.")

    def is_over(state: Any) -> bool:
        return training.is_over

    optimizer = dspy.GEPA(
        metric,
        max_metric_calls=options["max_metric_calls"]
        or training.calls
        or 6 * (len(training.trained) + len(training.scored)),
        reflection_lm=training.teacher,
        instruction_proposer=gepa.InstructionProposer(adapter=training.adapter),
        reflection_minibatch_size=min(options["reflection_minibatch_size"], len(training.trained)),
        candidate_selection_strategy=options["candidate_selection_strategy"],
        use_merge=False,  # there is one instruction, and nothing to merge
        num_threads=training.concurrency,
        warn_on_score_mismatch=False,
        seed=training.seed,
        gepa_kwargs={"stop_callbacks": [is_over]},
    )
    return optimizer.compile(
        training.predictor.deepcopy(), trainset=training.trained, valset=training.scored
    )


_BY_NAME: Final[Mapping[str, Callable[[Training], Any]]] = {
    "bootstrap": _bootstrap,
    "miprov2": _miprov2,
    "gepa": _gepa,
}

_NO_END: Final = 10**9
"""The number of errors after which DSPy gives up. It is never reached. `Bridge` ends the
optimization on real failures."""
