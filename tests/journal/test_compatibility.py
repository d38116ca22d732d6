"""Changed classes and runs that began before the change: runs that resume, runs that are refused
and why, and the report of `bae.journal.check` on a journal before the classes are deployed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bae import Graph
from bae.exceptions import JournalError
from bae.journal import Change, Journal, RunInfo, StoredRun, check
from bae.journal.compatibility import changes_for, refuse_changes
from bae.journal.export import RecordedRuns
from bae.testing import ScriptedLM
from changed_code import CODE, graph
from journal_parts import with_line

pytestmark = pytest.mark.once


def edit_graph(*changes: tuple[str, str], code: str = CODE) -> Graph[Any, Any]:
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    return graph(code)


def lm() -> ScriptedLM:
    return ScriptedLM(
        {
            "Day": lambda _: {"mood": "low", "words": ["a", "b"], "tags": ["t"]},
            "Done": lambda _: {"short": "x"},
            "Outfit": lambda asked: {"top": "a hat", **({"size": 3} if _asks_size(asked) else {})},
        },
        choices=["Outfit"],
    )


def _asks_size(asked: Any) -> bool:
    return "size" in asked.target.model_fields


async def park_run(
    journal: Journal, run_id: str = "r1", day: Graph[Any, Any] | None = None
) -> None:
    """A run that has come as far as the gate of `Outfit`."""
    day = day or graph()
    result = await day.arun(day.start(message="up"), lm(), journal=journal, run_id=run_id)
    assert [gate.place for gate in result.waiting] == ["Outfit.fine"]


async def until(journal: Journal, kind: str, step: int, run_id: str = "r1") -> StoredRun:
    """A run that was interrupted right after a line, as a journal has it then."""
    stored = await journal.read(run_id)
    last = next(
        n for n, e in enumerate(stored.lines) if (e.kind, e.step, e.path) == (kind, step, "")
    )
    info = RunInfo(run_id, "Start", "running", 0.0, 0.0, stored.info.shape)
    return StoredRun(info, stored.shape, stored.lines[: last + 1], {})


def breaking(stored: StoredRun, new: Graph[Any, Any]) -> list[Change]:
    return [change for change in changes_for(stored, new) if change.breaks]


async def goes_on(new: Graph[Any, Any], journal: Journal) -> list[str]:
    """Resume a parked run under other classes, to its end; returns the reported changes."""
    assert await check(new, journal) == []
    result = await new.answer("r1", "Outfit.fine", True, lm=lm(), journal=journal)
    assert type(result.result).__name__ == "Outfit"
    assert result.result.top == "a hat"
    resumed = [e for e in (await journal.read("r1")).lines if e.kind == "RunResumed"]
    return json.loads(resumed[-1].data)["changes"]


async def refused_changes(new: Graph[Any, Any], journal: Journal) -> dict[str, Change]:
    """The changes that keep a parked run from resuming under other classes."""
    (broken,) = await check(new, journal)
    with pytest.raises(JournalError) as raised:
        await new.resume("r1", lm(), journal=journal)
    assert raised.value.code == "bae-run-changed"
    assert raised.value.run_id == "r1"
    for change in broken.changes:
        assert change.breaks
        assert str(change) in raised.value.message
        assert str(change) in str(broken)
        assert change.fix in (raised.value.fix or "")
    assert (await journal.read("r1")).info.status == "waiting"
    return {change.place: change for change in broken.changes}


async def test_unchanged_classes_have_no_changes(journal: Journal):
    await park_run(journal)

    assert refuse_changes(await journal.read("r1"), graph()) == []
    assert await goes_on(graph(), journal) == []


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("    mood: Mood\n", "    mood: Mood\n    size: int = 3\n", "Day.size"),
        ("    mood: Mood\n", "    mood: Mood\n    c: Annotated[str, Dep(get_city)]\n", "Day.c"),
        ("    top: str\n", "    top: str\n    size: int\n", "Outfit.size"),
        ("    top: str\n", "    top: str\n    c: Annotated[str, Dep(get_city)]\n", "Outfit.c"),
        ("    question: str\n", "    question: str\n    why: str\n", "AskBack.why"),
        ("    degrees: float\n", "    degrees: float | str\n", "Day.weather"),
        ("    tags: list[str]\n", "    tags: list[str | int]\n", "Day.tags"),
        ("    tags: list[str]\n", "    tags: tuple[str, ...]\n", "Day.tags"),
        ("    tags: list[str]\n", "    tags: Annotated[list[str], Dep(list)]\n", "Day.tags"),
        ('    high = "high"\n', '    high = "high"\n    odd = "odd"\n', "Day.mood"),
        ('    high = "high"\n', "", "Day.mood"),
        ("get_weather", "ask_weather", "Day.weather"),
        (
            "async def __call__(self) -> Day: ...",
            "async def __call__(self) -> Day:\n        1 / 0",
            "Start",
        ),
        ("class AskBack(Node):", "class Asked(Node):", ""),
        ("    message: str\n", "", "Start.message"),
        ('    loud: Annotated[list[str], Map(shout, over="words")]\n', "", "Day.loud"),
        ('    summaries: Annotated[list[Done], Map(Summary, over="words")]\n', "", "Day.summaries"),
        ("city: Annotated[str, Dep(get_city)]", "", "Day.weather(city)"),
    ],
)
async def test_a_run_resumes_under_classes_that_still_read_its_stored_values(
    journal: Journal, old: str, new: str, place: str
):
    await park_run(journal)
    changes = [(old, new)]
    if "AskBack(Node)" in old:
        changes.append(("Outfit | AskBack", "Outfit | Asked"))

    reported = await goes_on(edit_graph(*changes), journal)

    assert reported
    assert any(change.startswith(place) for change in reported), reported


async def test_a_resumed_run_repeats_no_work(journal: Journal):
    await park_run(journal)
    new = edit_graph(("    mood: Mood\n", "    mood: Mood\n    size: int = 3\n"))

    await goes_on(new, journal)

    assert new.start.__call__.__globals__["called"] == []


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("    mood: Mood\n", "    mood: Mood\n    size: int\n", "Day.size"),
        ("    message: str\n", "    message: str\n    size: int\n", "Start.size"),
        ("    short: str\n", "    short: str\n    size: int\n", "Done.size"),
        ("    degrees: float\n", "    degrees: list[float]\n", "Day.weather"),
        ("    degrees: float\n", "    degrees: float\n    wind: int\n", "Day.weather"),
        ("    tags: list[str]\n", "    tags: list[int]\n", "Day.tags"),
        ('    low = "low"\n', "", "Day.mood"),
        (
            "    message: str\n",
            "    message: Annotated[str, Field(min_length=9)]\n",
            "Start.message",
        ),
        ("Day", "Evening", "Day"),
        ("Done", "Finished", "Done"),
        (
            "loud: Annotated[list[str], Map(shout",
            "loud: Annotated[list[int], Map(len",
            "Day.loud",
        ),
    ],
)
async def test_a_run_is_refused_under_classes_that_cannot_read_its_stored_values(
    journal: Journal, old: str, new: str, place: str
):
    await park_run(journal)

    changes = await refused_changes(edit_graph((old, new)), journal)

    assert list(changes) == [place]
    assert changes[place].fix


async def test_all_breaking_changes_are_reported_together(journal: Journal):
    await park_run(journal)
    new = edit_graph(
        ("    mood: Mood\n", "    mood: Mood\n    size: int\n"),
        ("    tags: list[str]\n", "    tags: list[int]\n"),
        ("    short: str\n", "    short: int\n"),
        ("    question: str\n", "    question: int\n"),
    )

    assert set(await refused_changes(new, journal)) == {"Day.size", "Day.tags", "Done.short"}


async def test_a_validator_that_reads_the_old_form_lets_a_run_resume(journal: Journal):
    await park_run(journal)
    new = edit_graph(
        (
            "    tags: list[str]\n",
            "    tags: list[int]\n"
            "    @field_validator('tags', mode='before')\n"
            "    def _old(cls, value):\n"
            "        return [len(each) if isinstance(each, str) else each for each in value]\n",
        ),
    )

    assert any(change.startswith("Day.tags") for change in await goes_on(new, journal))


@pytest.mark.parametrize("said", ["raise ValueError('not today')", "return self"])
async def test_a_new_validator_breaks_a_run_only_if_it_refuses_stored_values(
    journal: Journal, said: str
):
    await park_run(journal)
    new = edit_graph(
        (
            "    words: list[str]\n",
            f"    words: list[str]\n    @model_validator(mode='after')\n"
            f"    def _judge(self):\n        {said}\n",
        )
    )

    if said == "return self":
        assert await goes_on(new, journal) == ["Day has the rule _judge now"]
    else:
        assert [str(change) for change in (await refused_changes(new, journal)).values()] == [
            "Day has the rule _judge now: Value error, not today"
        ]


async def test_removing_the_route_of_a_made_choice_breaks_the_run(journal: Journal):
    await park_run(journal)
    new = edit_graph(
        ("Outfit | AskBack", "AskBack | Day"), ("-> Start: ...", "-> Start | Outfit: ...")
    )

    changes = await refused_changes(new, journal)

    assert list(changes) == ["Day -> Outfit"]
    assert changes["Day -> Outfit"].kind == "gone"


async def test_changes_to_classes_that_a_run_has_not_reached_do_not_break_it(journal: Journal):
    await park_run(journal)
    new = edit_graph(
        ("    mood: Mood\n", "    mood: Mood\n    size: int\n"),
        ("    degrees: float\n", "    degrees: list[float]\n"),
    )

    early = await until(journal, "StepStarted", 0)
    assert breaking(early, new) == []
    assert {c.place for c in changes_for(early, new)} == {"Day.size", "Day.weather"}
    assert not any(change.means or change.fix for change in changes_for(early, new))
    weather = await until(journal, "FillStarted", 1)
    assert [c.place for c in breaking(weather, new)] == ["Day.weather"]
    filled = await until(journal, "FillEnded", 1)
    assert {c.place for c in breaking(filled, new)} == {"Day.size", "Day.weather"}


async def test_a_stored_answer_to_a_gate_is_read_before_the_run_resumes(journal: Journal):
    await park_run(journal)
    await graph().answer("r1", "Outfit.fine", True, lm=lm(), journal=journal, go_on=False)
    new = edit_graph(("Annotated[bool, Gate", "Annotated[Literal['yes', 'no'], Gate"))

    assert list(await refused_changes(new, journal)) == ["Outfit.fine"]


async def test_the_type_of_an_unanswered_gate_may_change(journal: Journal):
    await park_run(journal)
    new = edit_graph(("Annotated[bool, Gate", "Annotated[Literal['yes', 'no'], Gate"))

    result = await new.answer("r1", "Outfit.fine", "yes", lm=lm(), journal=journal)

    assert result.result.fine == "yes"


async def test_a_run_does_not_wait_for_a_removed_gate(journal: Journal):
    await park_run(journal)
    new = edit_graph(('    fine: Annotated[bool, Gate("Fine?")]\n', ""))

    assert await check(new, journal) == []
    result = await new.resume("r1", lm(), journal=journal)

    assert result.result.top == "a hat"


async def test_secrets_missing_in_the_journal_are_not_reported_as_changes(journal: Journal):
    code = CODE.replace("    message: str\n", "    message: str\n    token: SecretStr\n")
    old = graph(code)
    start = old.start(message="up", token="hidden")
    await old.arun(start, lm(), journal=journal, run_id="r1")

    new = edit_graph(("    mood: Mood\n", "    mood: Mood\n    size: int\n"), code=code)
    (broken,) = await check(new, journal)

    assert [change.place for change in broken.changes] == ["Day.size"]
    assert (
        await check(edit_graph(("    top: str\n", "    top: str = ''\n"), code=code), journal) == []
    )


# A whole journal.


BREAKS = ("    mood: Mood\n", "    mood: Mood\n    size: int\n")


async def test_only_unfinished_runs_of_the_graph_are_listed(journal: Journal):
    await park_run(journal, "waiting")
    await park_run(journal, "ended")
    await graph().answer("ended", "Outfit.fine", True, lm=lm(), journal=journal)
    await park_run(journal, "other", graph(name="other"))

    assert [run.run_id for run in await check(edit_graph(BREAKS), journal)] == ["waiting"]
    assert await check(graph(), journal) == []


async def test_a_run_that_failed_or_was_interrupted_is_listed(journal: Journal):
    day = graph()
    failing = ScriptedLM(
        {"Day": lambda _: {"mood": "low", "words": [], "tags": []}}, choices=["Outfit"]
    )
    result = await day.arun(day.start(message="up"), failing, journal=journal, run_id="r1")
    assert result.waiting
    with pytest.raises(Exception, match="Outfit"):
        await day.answer("r1", "Outfit.fine", True, lm=failing, journal=journal)
    assert (await journal.read("r1")).info.status == "failed"

    (broken,) = await check(edit_graph(BREAKS), journal)

    assert broken.run_id == "r1"
    assert "r1 (Start, failed since 20" in str(broken)
    assert "fix: give Day.size a default, or a source" in str(broken)


async def test_a_renamed_graph_is_found_under_its_old_name(journal: Journal):
    await park_run(journal, "r1", graph(name="before"))
    new = graph(CODE.replace(*BREAKS), name="after")

    assert await check(new, journal) == []
    assert [run.run_id for run in await check(new, journal, was="before")] == ["r1"]
    assert [run.run_id for run in await check(new, journal, was=["x", "before"])] == ["r1"]
    assert await check(graph(name="after"), journal, was="before") == []


async def test_a_renamed_start_class_breaks_the_runs_of_the_old_one(journal: Journal):
    await park_run(journal)
    new = graph(CODE.replace("Start", "Begin"), "Begin")

    (broken,) = await check(new, journal, was="Start")

    assert [change.place for change in broken.changes] == ["Start"]


@pytest.mark.parametrize("shape", ["", "{", '{"format": 99}'])
async def test_a_run_with_an_unreadable_shape_is_checked_by_its_stored_values(
    journal: Journal, shape: str
):
    await park_run(journal)
    stored = await journal.read("r1")
    info = replace(stored.info, shape="of a newer bae")
    recorded = RecordedRuns([StoredRun(info, shape, stored.lines, {})])

    assert await check(graph(), recorded) == []
    (broken,) = await check(edit_graph(BREAKS), recorded)
    assert [change.place for change in broken.changes] == ["Day.size"]


async def test_a_run_with_damaged_lines_is_listed_as_broken(journal: Journal):
    await park_run(journal)
    stored = await journal.read("r1")
    await with_line(journal, "r1", stored.lines[8]._replace(data="{}"))

    (broken,) = await check(edit_graph(BREAKS), journal)

    assert broken.changes[0].place == "the run"
    assert "line 8" in broken.changes[0].what


async def test_a_class_that_forbids_extra_fields_refuses_a_removed_field(journal: Journal):
    await park_run(journal)
    new = edit_graph(("    tags: list[str]\n", "    model_config = {'extra': 'forbid'}\n"))

    assert list(await refused_changes(new, journal)) == ["Day.tags"]
