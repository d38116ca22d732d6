"""Features: acceptance tests first, on a branch that is merged into the team's branch in one
piece."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from bae.team.base_check import read_check
from bae.team.delivery import clean_branches, diff_task, find_delivery
from bae.team.features import Features
from bae.team.git import Repository
from bae.team.models import PlannedTask, TaskStatus, TeamError
from bae.team.store import Store
from bae.team.team_run import add_request
from bounded import BOUND
from git_repositories import TEAM, git
from team_parts import PYTEST, PYTHON, a_project, edits
from team_scripts import TeamScript, run_team

STUB = "def {0}(price: int) -> int:\n    raise NotImplementedError\n"
DONE = "def {0}(price: int) -> int:\n    return price {1} 2\n"
TEST = "from {0} import {0}\n\n\ndef test_{0}():\n    assert {0}(10) == {1}\n"
TESTS = {
    "tests/test_half.py": TEST.format("half", 5),
    "tests/test_twice.py": TEST.format("twice", 20),
}
STUBS = {"half.py": STUB.format("half"), "twice.py": STUB.format("twice")}
ACCEPT = edits({**TESTS, **STUBS})
HALF, TWICE = (
    edits({"half.py": DONE.format("half", "//")}),
    edits({"twice.py": DONE.format("twice", "*")}),
)
TEST_USE = "from use import QUARTER\n\n\ndef test_use():\n    assert QUARTER == 1\n"
USE = edits(
    {
        "use.py": "from half import half\n\nQUARTER = half(half(4))\n",
        "tests/test_use.py": TEST_USE,
    }
)
SHOP = """from calc import add

LIMIT = 10


class Base:
    def limit(self):
        return LIMIT


class Shop(Base):
    pass
"""
ANSWERS = {"accept": ACCEPT, "half": HALF, "twice": TWICE, "use": USE}


def a_part(key: str) -> PlannedTask:
    return PlannedTask(
        key=key,
        title=f"Compute {key}",
        files=(f"{key}.py",),
        tests=(f"tests/test_{key}.py",),
        depends_on=("accept",),
        feature="prices",
    )


ACCEPTANCE = PlannedTask(
    key="accept", title="Test prices", kind="test", proof="failing-tests", feature="prices"
)
FEATURE = (ACCEPTANCE, a_part("half"), a_part("twice"))
OUTSIDE = PlannedTask(key="use", title="Use prices", depends_on=("half",))


def a_team(tmp_path: Path, *tasks: PlannedTask) -> Any:
    return a_project(tmp_path, *(tasks or FEATURE), files=PYTHON, command=PYTEST)


async def statuses(store: Store) -> dict[str, str]:
    return {task.key: str(task.status) for task in await store.tasks(1)}


def names_of(root: Path, branch: str) -> set[str]:
    return set(git(root, "ls-tree", "-r", "--name-only", branch).split())


async def test_a_feature_reaches_the_teams_branch_in_one_merge(
    tmp_path: Path,
):
    async with a_team(tmp_path, *FEATURE, OUTSIDE) as (store, project, _):
        root = Path(project.root)
        seen: dict[str, set[str]] = {}

        async def look(key: str, attempt: int) -> None:
            seen[key] = names_of(root, TEAM)

        lm = TeamScript(ANSWERS, look)
        summary = await run_team(project, store, lm, max_agents=2)
        assert summary.done, summary.tasks
        for key in ("half", "twice"):
            assert not seen[key] & {*TESTS, *STUBS}  # while it was worked on
        assert seen["use"] >= {*TESTS, *STUBS}
        assert (lm.asked[0][0], lm.asked[-1][0]) == ("accept", "use")
        # One merge commit, with a commit of each task below it.
        subjects = git(root, "log", "--first-parent", "--format=%s", TEAM).splitlines()
        assert subjects[:2] == ["Use prices", "Merge the feature prices"]
        delivery = await find_delivery(project, await _open(project), store)
        proved = {task.task.key: task.tests for task in delivery.tasks}
        assert proved["accept"] == (
            "tests/test_half.py::test_half",
            "tests/test_twice.py::test_twice",
        )
        half = next(task for task in summary.tasks if task.key == "half")
        diff = await diff_task(project, await _open(project), half)
        assert "half.py" in diff
        assert "test" not in diff
        cleaned = await clean_branches(project, await _open(project), store)
        assert "bae/feature-prices" in cleaned
        assert len(cleaned) == 5
        check = read_check(store.path.parent)
        assert check is not None
        assert check.failed == ()  # the acceptance tests did not fail before any work


async def _open(project: Any) -> Any:
    return await Repository.open(Path(project.root))


async def test_a_failed_task_keeps_its_feature_out_of_the_teams_branch(tmp_path: Path):
    async with a_team(tmp_path, *FEATURE, OUTSIDE) as (store, project, tasks):
        root = Path(project.root)
        asks = {**ANSWERS, "twice": "QUESTION: Twice of what?"}
        summary = await run_team(project, store, TeamScript(asks))
        assert await statuses(store) == {
            "accept": "staged",
            "half": "staged",
            "twice": "blocked",
            "use": "pending",
        }
        assert not summary.done
        assert names_of(root, TEAM) == {*PYTHON}
        delivery = await find_delivery(project, await _open(project), store)
        assert delivery.tasks == ()
        # A staged task is as fixed as a merged one.
        with pytest.raises(TeamError, match="cannot be edited"):
            await store.edit_task(tasks[1].id, a_part("half"))

        [asked] = await store.blockers(project.id, open_only=True)
        await store.answer_blocker(asked.id, "Of the price.")
        assert (await run_team(project, store, TeamScript(ANSWERS))).done
        assert names_of(root, TEAM) >= {*TESTS, *STUBS, "use.py"}


async def test_workers_cannot_change_the_acceptance_tests_of_their_feature(
    tmp_path: Path,
):
    cheat = edits(
        {"half.py": DONE.format("half", "+"), "tests/test_half.py": TEST.format("half", 12)}
    )
    async with a_team(tmp_path) as (store, project, tasks):
        right = edits(
            {
                "half.py": DONE.format("half", "//"),
                "tests/test_half.py": TESTS["tests/test_half.py"],
            }
        )
        answers = {**ANSWERS, "half": [cheat, right]}
        assert (await run_team(project, store, TeamScript(answers))).done
        first, second = await store.attempts(tasks[1].id)
        assert first.outcome in ("refused", "failed")
        assert "tests/test_half.py" in first.failure
        assert second.outcome == "passed"


async def test_a_kill_between_the_last_merge_and_the_delivery_is_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Killed(BaseException):
        pass

    async def die(self: Features, task: Any) -> None:
        if await self.is_undelivered(task):
            raise Killed

    async with a_team(tmp_path) as (store, project, _):
        root = Path(project.root)
        with monkeypatch.context() as at, pytest.raises(BaseException):  # noqa: B017
            at.setattr(Features, "deliver", die)
            await run_team(project, store, TeamScript(ANSWERS), max_agents=1)
        assert names_of(root, TEAM) == {*PYTHON}
        assert names_of(root, "bae/feature-prices") >= {*TESTS, *STUBS}
        assert "completed" not in (await statuses(store)).values()
        lm = TeamScript({})
        summary = await run_team(project, store, lm)
        assert summary.done
        assert lm.asked == []  # nothing is paid for again
        assert names_of(root, TEAM) >= {*TESTS, *STUBS}


async def test_skipping_the_last_open_task_delivers_the_feature(tmp_path: Path):
    extra = a_part("extra").model_copy(update={"tests": ("tests/test_half.py",), "files": ()})
    async with a_team(tmp_path, *FEATURE, extra) as (store, project, tasks):
        asks = {**ANSWERS, "extra": "QUESTION: Which?"}
        await run_team(project, store, TeamScript(asks))
        assert (await statuses(store))["half"] == "staged"
        await add_request(store, project.id, "skip", tasks[-1].id)
        lm = TeamScript({})
        assert (await run_team(project, store, lm)).done
        assert lm.asked == []
        assert names_of(Path(project.root), TEAM) >= {*TESTS, *STUBS}


async def skip_the_second_task(store: Store, project: Any, tasks: Any) -> None:
    """The first task is merged into the branch of the feature, and the second is skipped."""
    asks = {**ANSWERS, "twice": "QUESTION: Twice of what?"}
    await run_team(project, store, TeamScript(asks))
    await add_request(store, project.id, "skip", tasks[-1].id)


async def test_a_person_decides_about_failed_tests_of_a_skipped_task(tmp_path: Path):
    async with a_team(tmp_path) as (store, project, tasks):
        await skip_the_second_task(store, project, tasks)
        lm = TeamScript(ANSWERS)
        assert not (await run_team(project, store, lm)).done
        assert lm.asked == []  # the author of other work has nothing to correct
        [asked] = await store.blockers(project.id, open_only=True)
        assert "tests/test_twice.py::test_twice" in asked.question
        assert "bae team retry twice" in asked.question
        assert names_of(Path(project.root), TEAM) == {*PYTHON}
        await add_request(store, project.id, "retry", tasks[-1].id)
        assert (await run_team(project, store, lm)).done
        assert [key for key, _ in lm.asked] == ["twice"]
        assert {*(await statuses(store)).values()} == {"completed"}
        assert names_of(Path(project.root), TEAM) >= {*TESTS, *STUBS}


async def test_a_person_can_remove_tests_to_deliver_a_feature(tmp_path: Path):
    async with a_team(tmp_path) as (store, project, tasks):
        await skip_the_second_task(store, project, tasks)
        lm = TeamScript({})
        await run_team(project, store, lm)
        [asked] = await store.blockers(project.id, open_only=True)
        root = Path(project.root)
        git(root, "switch", "-q", "bae/feature-prices")
        git(root, "rm", "-q", "tests/test_twice.py")
        git(root, "commit", "-qm", "Without twice")
        git(root, "switch", "-q", "-")
        await store.answer_blocker(asked.id, "yes")
        assert (await run_team(project, store, lm)).done
        assert names_of(root, TEAM) >= {"half.py", "tests/test_half.py"}
        assert "tests/test_twice.py" not in names_of(root, TEAM)


async def test_a_reverted_correction_does_not_block_a_feature(tmp_path: Path):
    rule = "import os\n\n\ndef test_docs():\n    assert os.path.exists('docs.md')\n"
    rule = rule.replace("assert", "assert not os.path.exists('twice.py') or")
    async with a_team(tmp_path) as (store, project, tasks):
        root = Path(project.root)
        asks = {**ANSWERS, "twice": "QUESTION: Twice of what?"}
        await run_team(project, store, TeamScript(asks))

        def commit(name: str, text: str) -> None:
            """A person's commit in the team's branch."""
            git(root, "switch", "-q", TEAM)
            (root / name).write_text(text)
            git(root, "add", "-A")
            git(root, "commit", "-qm", name)
            git(root, "switch", "-q", "-")

        async def answer(text: str) -> None:
            [asked] = await store.blockers(project.id, open_only=True)
            await store.answer_blocker(asked.id, text)

        commit("tests/test_docs.py", rule)
        await answer("Of the price.")
        worse = edits({"twice.py": DONE.format("twice", "+")})
        lm = TeamScript({**ANSWERS, "twice": [TWICE, worse, TWICE, "QUESTION: How?"]})
        assert not (await run_team(project, store, lm)).done
        first = (await store.attempts(tasks[-1].id))[0].failure
        assert "test_docs" in first  # in the team's branch, where it passed
        assert "not counted" not in first
        commit("docs.md", "Twice.\n")
        await answer("It is documented now.")
        asked = len(lm.asked)
        assert (await run_team(project, store, lm)).done
        assert len(lm.asked) == asked
        assert {*(await statuses(store)).values()} == {"completed"}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (TESTS, "fails before it tests anything"),
        ({**TESTS, **STUBS, "half.py": DONE.format("half", "//")}, "half.py: half has behavior"),
        (
            {**TESTS, **STUBS, "tests/test_ok.py": "def test_ok():\n    assert True\n"},
            "pass without",
        ),
        (
            {**TESTS, **STUBS, "calc.py": "def add(a, b):\n    raise NotImplementedError\n"},
            "test_add",
        ),
        (STUBS, "There is no new test"),
        (
            {
                **TESTS,
                **STUBS,
                "tests/test_more.py": "import half\n\n\ndef test_more():\n    half.more()\n",
            },
            "fails before it tests anything",
        ),
        ({**TESTS, **STUBS, "shop.py": SHOP.replace("10", "20")}, "loses `LIMIT = 10`"),
        ({**TESTS, **STUBS, "shop.py": SHOP.replace("(Base)", "")}, "loses `class Shop(Base):`"),
        (
            {
                **TESTS,
                **STUBS,
                "shop.py": SHOP.replace("return LIMIT", "raise NotImplementedError"),
            },
            "changes Base.limit",
        ),
    ],
    ids=[
        *("no-stub", "behavior", "passes", "breaks", "no-test"),
        *("no-name", "constant", "base", "existing-function"),
    ],
)
async def test_acceptance_tests_must_fail_and_stubs_must_be_empty(
    tmp_path: Path, files: dict[str, str], said: str
):
    existing = {**PYTHON, "shop.py": SHOP}
    async with a_project(tmp_path, ACCEPTANCE, files=existing, command=PYTEST) as team:
        store, project, [task] = team
        await run_team(project, store, TeamScript({"accept": edits(files)}), corrections=0)
        [first] = await store.attempts(task.id)
        assert said in first.failure
        assert await statuses(store) == {"accept": "blocked"}


async def test_stubs_may_add_members_imports_and_names_to_existing_code(tmp_path: Path):
    more = SHOP.replace("import add", "import __name__ as calc, add").replace(
        "    pass\n", "    tax: int = 5\n\n    def total(self) -> int:\n        ...\n"
    )
    files = {**TESTS, **STUBS, "shop.py": f'"""The shop."""\n\n{more}\n\nRATE = 2\n'}
    existing = {**PYTHON, "shop.py": SHOP}
    async with a_project(tmp_path, ACCEPTANCE, files=existing, command=PYTEST) as team:
        store, project, [task] = team
        await run_team(project, store, TeamScript({"accept": edits(files)}), corrections=0)
        assert [attempt.failure for attempt in await store.attempts(task.id)] == [""]
        assert await statuses(store) == {"accept": "staged"}


async def test_acceptance_tests_wait_for_approval_if_configured(tmp_path: Path):
    async with a_team(tmp_path) as (store, project, _):
        lm = TeamScript(ANSWERS)
        await run_team(project, store, lm, approve_tests=True)
        [asked] = await store.blockers(project.id, open_only=True)
        assert "acceptance tests of prices" in asked.question
        assert "+    assert half(10) == 5" in asked.question
        assert await statuses(store) == {"accept": "blocked", "half": "blocked", "twice": "blocked"}
        await store.answer_blocker(asked.id, "yes")
        assert (await run_team(project, store, lm, approve_tests=True)).done
        assert [key for key, _ in lm.asked].count("accept") == 1


async def test_a_conflicting_feature_is_corrected_by_its_last_task(
    tmp_path: Path,
):
    documented = "import os\n\n\ndef test_documented():\n    name = 'twice.py'\n"
    documented += '    assert not os.path.exists(name) or \'"""\' in open(name).read()\n'
    other = PlannedTask(key="docs", title="Document", tests=("tests/test_calc.py",))
    async with a_team(tmp_path, *FEATURE, other) as (store, project, tasks):
        started, stored = asyncio.Event(), asyncio.Event()
        store.on_event(stored.set)

        async def let_the_other_be_first(key: str, attempt: int) -> None:
            if key == "docs":
                await started.wait()
            if key == "twice" and attempt == 1:
                started.set()
                while (await statuses(store))["docs"] != "completed":
                    stored.clear()
                    await stored.wait()

        right = DONE.format("twice", "*").replace(":\n", ':\n    """Double it."""\n')
        answers = {
            **ANSWERS,
            "twice": [TWICE, edits({"twice.py": right})],
            "docs": edits({"tests/test_documented.py": documented}),
        }
        lm = TeamScript(answers, let_the_other_be_first)
        summary = await asyncio.wait_for(run_team(project, store, lm, max_agents=3), BOUND)
        assert summary.done
        failed, last = await store.attempts(tasks[2].id)
        assert (failed.outcome, last.outcome) == ("failed", "passed")
        assert "test_documented" in failed.failure
        assert '"""Double it."""' in git(Path(project.root), "show", f"{TEAM}:twice.py")


def test_an_acceptance_task_needs_a_feature():
    with pytest.raises(ValueError, match="needs a feature"):
        PlannedTask(key="a", title="A", proof="failing-tests")


async def test_features_that_wait_for_each_other_are_refused(tmp_path: Path):
    one = PlannedTask(key="one", title="One", feature="a")
    two = PlannedTask(key="two", title="Two", feature="b", depends_on=("one",))
    three = PlannedTask(key="three", title="Three", feature="a", depends_on=("two",))
    async with a_team(tmp_path, ACCEPTANCE) as (store, project, _):
        with pytest.raises(TeamError, match="depends on itself"):
            await store.add_tasks(project.id, [one, two, three])


def test_staged_is_a_separate_status():
    assert TaskStatus.STAGED.label == "staged"
