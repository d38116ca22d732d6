"""`bae team`: a team that turns a goal into merged, tested code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bae.cli import exits, team_review, team_run, team_steer, team_tasks
from bae.cli.exits import Misuse, refusal
from bae.cli.later import call_later
from bae.cli.options import AsJSON, LMName, NoAsk, examples
from bae.cli.team_project import (
    Allow,
    AllowUnsandboxed,
    Team,
    UpdateCheckout,
    Workers,
    answer_at_terminal,
    ask,
    can_ask,
    find_folder,
    find_lm,
    find_work_tree,
    load_workers,
    read_file,
    run_async,
    split_command,
    team_command,
    with_settings,
)

if TYPE_CHECKING:
    from bae.cli.printing import note, out, print_json
    from bae.cli.team_output import (
        as_data,
        print_blockers,
        print_fields,
        print_next,
        print_project,
        print_tasks,
    )
    from bae.cli.wording import count, in_lines
    from bae.journal import Journal, Record
    from bae.run import GateAnswerer
    from bae.team.git import Repository
    from bae.team.models import Project, Review, Task
    from bae.team.project import Detected
    from bae.team.store import Store
else:
    note, out, print_json = call_later("bae.cli.printing", "note out print_json")
    as_data, print_blockers, print_fields, print_next, print_project, print_tasks = call_later(
        "bae.cli.team_output",
        "as_data print_blockers print_fields print_next print_project print_tasks",
    )
    count, in_lines = call_later("bae.cli.wording", "count in_lines")

group = typer.Typer(
    no_args_is_help=True,
    help="A team of agents that turns a goal into merged, tested code.\n\n"
    "Set it up in a git repository with `init`, plan a goal with `plan`, review and approve the "
    "tasks with `tasks`, and start the work with `run`. Each worker writes in its own worktree; "
    "work that passes its tests is merged into the branch `bae/team`.",
    epilog=examples(
        "bae team init",
        "bae team plan 'A command line tool that counts words'",
        "bae team tasks approve",
        "bae team run",
        "bae team watch",
    ),
)

_QUESTIONS: Final = "questions.md"


@group.command(
    epilog=examples(
        "bae team init",
        "bae team init shop --test 'python -m pytest -q'",
        "bae team init web --test 'node --test' --setup 'npm ci'",
        "bae team init --setup 'python -m venv .venv && .venv/bin/pip install -e .[test]' "
        "--test '.venv/bin/python -m pytest'",
        "bae team init --test 'npx mocha --reporter mocha-junit-reporter' "
        "--report junit:test-results.xml",
        "bae team init --folder packages/api",
    )
)
def init(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            show_default=False,
            help=(
                "A directory of the project. Default: the current one. If it is in no git "
                "repository, one is created."
            ),
        ),
    ] = ".",
    test: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help=(
                "The command that runs the tests: pytest, `node --test`, vitest, jest or `go "
                "test`, or any program with --report. Default: detected from the files of the "
                "project."
            ),
        ),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="junit:PATH",
            help=(
                "The JUnit file that any other test program writes, or a pattern for several "
                "files, such as `junit:reports/*.xml`."
            ),
        ),
    ] = None,
    folder: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help=(
                "The folder of the repository that tests and setup run in, such as `packages/api`. "
                "An empty text means the root."
            ),
        ),
    ] = None,
    setup: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help=(
                "A command that installs what tests need, such as `npm ci`; `&&` joins several. It "
                "runs with the network for your newest commit, and worktrees get a copy of the "
                "result. Default: detected from the files of the project. An empty text means no "
                "setup."
            ),
        ),
    ] = None,
    branch: Annotated[
        str | None, typer.Option(metavar="NAME", help="The team's branch. Default: bae/team.")
    ] = None,
    update_checkout: UpdateCheckout = None,
    allow: Allow = None,
    allow_unsandboxed: AllowUnsandboxed = None,
    no_check: Annotated[
        bool,
        typer.Option(
            "--no-check", help="Do not run the tests now. `bae team run` runs them first."
        ),
    ] = False,
    no_ask: NoAsk = False,
) -> None:
    """Set up a team for a project.

    Languages, the test command and the setup command are detected from the files. You are asked
    about unclear points. The tests run once, as the team will run them. If the tests cannot run,
    the likely cause and a command that fixes it are printed, and the exit code is 1. The state is
    stored beside the repository, in `.NAME.team`. Run `init` again to change the settings.
    """
    settings: dict[str, Any] = {
        "update_checkout": update_checkout,
        "allow": allow,
        "allow_unsandboxed": allow_unsandboxed,
    }
    arguments = directory, test, report, folder, setup, branch
    run_async(lambda: _init(*arguments, not no_ask, settings, not no_check))


async def _init(
    directory: str,
    test: str | None,
    report: str | None,
    folder: str | None,
    setup: str | None,
    branch: str | None,
    asks: bool,
    settings: dict[str, Any],
    checks: bool,
) -> None:
    import asyncio

    from bae.team.git import Repository, split_paths
    from bae.team.project import detect, find_command_problems, find_setup_problems
    from bae.team.store import Store, store_path

    path = Path(directory)
    tree = find_work_tree(path)
    repository = await Repository.open(path) if tree is not None else None
    if repository is None and await asyncio.to_thread(path.is_dir):
        await Repository.refuse_bare(path)
    if repository is not None:
        await repository.commit_id("HEAD")  # raises if there is no commit to start from
    root = repository.root if repository is not None else path
    root = await asyncio.to_thread(root.resolve)
    state = store_path(root)
    existing = None
    if state.exists():
        async with await Store.open(state) as store:
            existing = await _find_project(store, root)
    subfolder = (
        find_folder(root, folder) if folder is not None else existing.folder if existing else ""
    )
    committed = None
    if repository is not None:
        committed = split_paths((await repository.run_git("ls-files", "-z"))[1])
    detected = await asyncio.to_thread(detect, root, subfolder, committed)
    command = split_command(test)
    if existing is not None and existing.folder == subfolder:
        command = command or existing.test_command
    if report is None:  # the stored report belongs to the stored command
        report = existing.report if existing and command == existing.test_command else ""
    if not command:
        command = await _ask_test_command(detected, asks)
    project = detected.project(
        branch=branch or (existing.branch if existing else "bae/team"),
        test_command=command,
        setup=split_command(setup) if setup is not None else (existing and existing.setup) or None,
        requirements=existing.requirements if existing else "",
        report=report,
    )
    test_folder = root / subfolder
    problems = await asyncio.to_thread(
        find_command_problems, command, test_folder, report, project.setup
    )
    if problems:
        raise refusal("\n".join(problems), fix="name a test command with --test")
    if problems := await asyncio.to_thread(find_setup_problems, project.setup, test_folder):
        raise refusal("\n".join(problems), fix="name a setup command with --setup")
    if repository is None:
        repository = await Repository.create(path)
        note(f"made a git repository in {directory}")
    if existing is not None:
        stored_fields = {"id", "update_checkout", "allow", "allow_unsandboxed"}
        project = project.model_copy(
            update={name: getattr(existing, name) for name in stored_fields}
        )
        if existing.root != project.root:
            note(f"moved here from {existing.root}, with its tasks")
    project = with_settings(project, **settings)
    async with await Store.open(state) as store:
        project = await store.save_project(project)
        await print_project(project, state)
        changes = (await repository.git("status", "--porcelain")).splitlines()
        if changes:
            names = ", ".join(line[3:] for line in changes[:3]) + (
                ", …" if len(changes) > 3 else ""
            )
            note(f"not committed, so the team does not see it: {names}")
        if checks:
            await _check_base(project, repository, store)
    print_next("bae team plan 'WHAT TO BUILD'")


async def _check_base(project: Project, repository: Repository, store: Store) -> None:
    """Run the tests once on the commit that tasks would start from. Raise BaseError if the tests
    cannot run."""
    from bae.team.git import BRANCHES
    from bae.team.workbench import open_reports
    from bae.team.workspaces import ManifestError, WorkspaceError

    commit = await repository.commit_id("HEAD")
    team_commit = await repository.resolve(BRANCHES + project.branch)
    if team_commit is not None and not await repository.contains(commit, team_commit):
        commit = team_commit
    note("running the tests once …")
    tasks = await store.tasks(project.id)
    names = [name for task in tasks for name in task.tests]
    try:
        check = await open_reports(project, repository, store, {}).check(commit, names)
    except ManifestError as error:  # there is no task yet that could ask a person about it
        fix = "commit the manifests on your branch, and run `bae team init` again"
        raise WorkspaceError(error.message, fix=fix) from error
    check.raise_problem()
    print_fields({"base": check.text})


async def _find_project(store: Store, root: Path) -> Project | None:
    """Return the project of a repository. If there is none, return a project whose repository is no
    longer at its stored path: the repository was probably moved."""
    import asyncio

    projects = await store.projects()
    at_root = [project for project in projects if project.root == str(root)]
    moved = [
        project for project in projects if not await asyncio.to_thread(Path(project.root).exists)
    ]
    return next(iter(at_root or moved), None)


async def _ask_test_command(detected: Detected, asks: bool) -> tuple[str, ...]:
    """Return the detected test command. If the detection is unsure, ask at the terminal. Without an
    answer, print the question as a note. Raise an error if there is no command to return."""
    from bae.team.test_runs import write_command

    if not detected.questions:
        return detected.test_command
    if asks and can_ask():
        default = write_command(detected.test_command)
        with suppress(EOFError):
            return split_command(await ask(detected.questions[0], default))
    if detected.test_command:
        note(detected.questions[0])
        return detected.test_command
    raise refusal(
        f"the test command of this project is not known. {detected.questions[0]}",
        fix="name it: bae team init --test COMMAND, and --report junit:PATH for a program that "
        "writes a JUnit file",
    )


@team_command(
    group,
    "bae team plan 'A command line tool that counts words'",
    "bae team plan --file prd.md --lm anthropic",
    "bae team plan --file prd.md --answers answers.md",
)
async def plan(
    team: Team,
    goal: Annotated[
        str | None, typer.Argument(metavar="GOAL", help="What to build, in your words.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="A file with the goal; `-` reads stdin."),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=(
                "A file with the answers. Each question is a heading, and its answer is below. If "
                "questions are open, this command writes such a file."
            ),
        ),
    ] = None,
    acceptance: Annotated[
        bool,
        typer.Option(
            "--acceptance/--no-acceptance",
            help="Whether features begin with acceptance tests, on a branch of their own.",
        ),
    ] = True,
    decide: Annotated[
        bool,
        typer.Option(
            "--decide", help="Leave all questions to the LLM, which notes its assumptions."
        ),
    ] = False,
    workers: Workers = None,
    lm: LMName = None,
    as_json: AsJSON = False,
    no_ask: NoAsk = False,
) -> None:
    """Plan a goal: requirements, and tasks to approve.

    The LLM reads the repository first, and asks only what it cannot decide. At a terminal you are
    asked at once. Otherwise the questions are written into a file for `--answers`, and the exit
    code is 3. Nothing runs before you approve the tasks.
    """
    from bae.observers import observing
    from bae.team.planning import format_questions, plan_tasks

    async with team.store.journal() as journal:
        goal_text = await _find_goal(goal, file, journal)
        answer = _make_answer(answers, decide, not no_ask)
        kinds = load_workers(team, workers)
        model = find_lm(lm)
        with observing(_note_step):
            planned = await plan_tasks(
                goal_text,
                team.project,
                team.store,
                model,
                journal=journal,
                answer=answer,
                kinds=kinds,
                acceptance=acceptance,
            )
    if planned.questions:
        path = team.store.path.with_name(_QUESTIONS)
        path.write_text(format_questions(planned.questions), encoding="utf-8")
        if as_json:
            print_json({"questions": planned.questions, "file": str(path)})
        else:
            note("\n".join(("These questions are open:", *planned.questions)))
            note(f"write the answers below the questions in {path}")
            print_next(f"bae team plan --answers {path}")
        raise typer.Exit(exits.WAITING)
    if as_json:
        print_json({"requirements": planned.requirements, "tasks": as_data(planned.tasks)})
    else:
        print_tasks(await team.tasks())
        print_next("bae team requirements", "bae team tasks show KEY", "bae team tasks approve")


def _note_step(run: object, record: Record) -> None:
    """Print each step of planning, and the errors of answers that bae refused."""
    from bae.journal import AnswerJudged, FillStarted

    if isinstance(record, FillStarted) and record.target.__name__ in _STEPS:
        note(f"{_STEPS[record.target.__name__]} …")
    elif isinstance(record, AnswerJudged) and record.attempt.verdict == "invalid":
        errors = record.attempt.errors
        note("\n".join(("the answer is not valid, and bae asks again:", *errors)))


_STEPS: Final = {
    "OpenQuestions": "looking for open questions",
    "Requirements": "writing the requirements",
    "Plan": "planning the tasks",
}


async def _find_goal(goal: str | None, file: str | None, journal: Journal) -> str:
    from bae.team.planning import open_goals

    if goal is not None and file is not None:
        raise Misuse("there are two goals", fix="give the goal, or --file")
    if goal is not None or file is not None:
        text = goal if goal is not None else read_file(file or "")
        if not text.strip():
            raise refusal("the goal is empty", fix="name what to build")
        return text.strip()
    waiting = await open_goals(journal)
    if not waiting:
        raise Misuse("there is no goal", fix="bae team plan 'WHAT TO BUILD', or --file prd.md")
    return waiting[0]


def _make_answer(file: str | None, decide: bool, asks: bool) -> GateAnswerer | None:
    from bae.team.planning import FromAnswers, decide_yourself

    if decide:
        fallback = decide_yourself
    else:
        fallback = answer_at_terminal() if asks and can_ask() else None
    return FromAnswers(read_file(file), fallback) if file is not None else fallback


@team_command(group, "bae team requirements", "bae team requirements --file better.md")
async def requirements(
    team: Team,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="Replace the document by this file."),
    ] = None,
) -> None:
    """Print or replace the requirements document.

    Every worker reads this document.
    """
    if file is None:
        out().print(in_lines(team.project.requirements), markup=False, soft_wrap=True)
        return
    changed = team.project.model_copy(update={"requirements": read_file(file)})
    await team.store.save_project(changed)


@team_command(group, "bae team status", "bae team status --json")
async def status(team: Team, as_json: AsJSON = False) -> None:
    """Show the tasks, open questions and spending."""
    import asyncio
    from dataclasses import asdict

    from bae.cli.team_output import INTERRUPTED, counts_text, spent_text
    from bae.team.base_check import read_check
    from bae.team.budgets import Spent, read_spent, read_spent_by_task
    from bae.team.models import summary
    from bae.team.reports import list_names
    from bae.team.team_run import read_paused

    tasks = await team.tasks()
    spent = await read_spent(team.store, project_id=team.project.id)
    by_task = await read_spent_by_task(team.store, team.project.id)
    paused = await read_paused(team.store, team.project.id)
    running, interrupted = await team.is_running(), await team.is_interrupted()
    blockers = await team.store.blockers(team.project.id, open_only=True)
    counts = summary(task.status for task in tasks)
    unapproved = sum(not task.approved for task in tasks)
    check = await asyncio.to_thread(read_check, team.store.path.parent)
    flaky_by_task = await team.store.flaky_tests(team.project.id)
    flaky = list(dict.fromkeys(name for names in flaky_by_task.values() for name in names))
    reviews = await team.store.reviews(team.project.id)
    newest_reviews = {task_id: task_reviews[-1] for task_id, task_reviews in reviews.items()}
    if as_json:
        print_json(
            {
                "project": team.project.model_dump(mode="json"),
                "base": check.model_dump(mode="json") if check else None,
                "flaky": flaky,
                "running": running,
                "interrupted": interrupted,
                "counts": counts,
                "not_approved": unapproved,
                "paused": [task.key for task in tasks if {task.id, None} & paused],
                "spent": asdict(spent),
                "tasks": [
                    task.model_dump(mode="json")
                    | {
                        "branch": task.branch,
                        "spent": asdict(by_task.get(task.id, Spent())),
                        "findings": len(newest_reviews[task.id].findings)
                        if task.id in newest_reviews
                        else None,
                    }
                    for task in tasks
                ],
                "blockers": as_data(blockers),
            }
        )
        return
    await print_project(team.project, team.store.path)
    paused_keys = [task.key for task in tasks if task.id in paused]
    print_fields(
        {
            "base": check.text if check else "",
            "try": check.fix if check else "",
            "flaky tests": list_names(flaky),
            "run": "in progress"
            if running
            else f"{INTERRUPTED}: `bae team run` continues it"
            if interrupted
            else "",
            "tasks": counts_text(counts, INTERRUPTED if interrupted else ""),
            "not approved": str(unapproved or ""),
            "paused": "the run" if None in paused else ", ".join(paused_keys),
            "spent": spent_text(spent),
            "questions": str(len(blockers) or ""),
            "reviews": _describe_reviews(newest_reviews, tasks),
        }
    )
    costs = {task_id: spent_text(task_spent) for task_id, task_spent in by_task.items()}
    print_tasks(tasks, blockers, interrupted=interrupted, spent=costs)
    print_blockers(blockers, tasks)


def _describe_reviews(newest: Mapping[int, Review], tasks: Sequence[Task]) -> str:
    """Describe the findings in the newest review of each task."""
    if not newest:
        return ""
    findings = [finding for review in newest.values() for finding in review.findings]
    blocking = sum(finding.blocking for finding in findings)
    failed = sum(bool(review.error) for review in newest.values())
    facts = [f"{count(len(findings), 'finding')} in {count(len(newest), 'task')}"]
    facts += [f"{blocking} blocking"] if blocking else []
    facts += [f"{failed} failed"] if failed else []
    keys = [task.key for task in tasks if task.id in newest and newest[task.id].findings]
    hint = f": bae team tasks show {keys[0]}" if keys else ""
    return f"{', '.join(facts)}{hint}"


group.add_typer(team_run.group)
group.add_typer(team_steer.group)
group.add_typer(team_review.group)
group.add_typer(team_tasks.group, name="tasks")
