"""HTTP endpoints that plan goals, run tasks and answer planning questions. `add_team_jobs` adds
them to an API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import quote

from pydantic import BaseModel, Field, model_validator

from bae import BaeLMError, GateError
from bae.journal import Journal, RunInfo
from bae.lm import check_lm_name
from bae.serve import API, ApiCall, Endpoint, Form, GateView, InputFault, Refused, User, Value
from bae.tasks import finish_despite_cancel
from bae.team.endpoints import ServedTeam, ServedTeams, get_row, put_row, wait_row
from bae.team.jobs import JobKind, JobStatus, TeamJob, TeamJobs
from bae.team.models import Project
from bae.team.planning import DECIDE, planning

_OTHER_CODE: Final = ("python", "scripted")
"""The kinds of LM names that have the path of a file with code or answers."""


class SpendingLimits(Form):
    """Limits on spending. `cost` is in US dollars."""

    calls: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    tokens: Annotated[int, Field(ge=1, le=1 << 50)] | None = None
    cost: Annotated[float, Field(gt=0, le=1e9)] | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.calls is None and self.tokens is None and self.cost is None:
            raise ValueError("give calls, tokens or cost")
        return self

    @property
    def text(self) -> str:
        """The limits as `bae team run` reads them, such as `calls=200,cost=5`."""
        limits = self.model_dump(exclude_none=True).items()
        return ",".join(f"{name}={value:.15g}" for name, value in limits)


class GoalBody(Form):
    """A goal to plan. If planning of the same goal waits or was interrupted, it continues.

    - `decide`: the LLM asks nothing, and notes its assumptions.
    - `acceptance`: each feature begins with acceptance tests.
    """

    goal: Annotated[str, Field(max_length=200_000, pattern=r"\S")]
    decide: bool = False
    acceptance: bool = True
    lm: Annotated[str, Field(max_length=500)] | None = None


class TeamRunBody(Form):
    """The options of `bae team run` for a run of the approved tasks.

    - `worker`: `claude-code` and `codex` are programs on the server's machine. They need
      `allow_network`.
    - `wait`: the run continues while tasks wait for answers.
    """

    max_agents: Annotated[int, Field(ge=1, le=100)] = 5
    budget: SpendingLimits | None = None
    task_budget: SpendingLimits | None = None
    worker: Literal["auto", "loop", "oneshot", "claude-code", "codex"] = "auto"
    allow_network: bool = False
    review: Literal["advise", "require", "off"] = "advise"
    retries: Annotated[int, Field(ge=0, le=100)] = 1
    timeout: Annotated[float, Field(ge=1, le=1e7)] | None = None
    wait: bool = True
    lm: Annotated[str, Field(max_length=500)] | None = None


class QuestionBody(Form):
    """The `answer` to a planning question. With `decide` instead, the LLM decides, and notes its
    assumptions."""

    answer: Annotated[str, Field(max_length=20_000, pattern=r"\S")] | None = None
    decide: bool = False

    @model_validator(mode="after")
    def _has_one_choice(self) -> Self:
        if (self.answer is None) != self.decide:
            raise ValueError("give an answer, or decide")
        return self


class JobsQuery(Form):
    """How long to wait for a change. The response comes when a job has changed after change number
    `after`, and at the latest after `wait` seconds."""

    after: Annotated[int, Field(ge=-1, le=1 << 53)] = -1
    wait: Annotated[float, Field(ge=0, le=60)] = 0


class JobView(BaseModel):
    """A planning job or a run that this server started.

    - `status`: a "waiting" job waits for answers. A "stopped" job continues when it is started
      again.
    - `command`: the job's command line.
    - `reason`: why the run ended.
    - `output`: the end of the job's stderr.
    """

    kind: JobKind
    status: JobStatus
    command: str
    by: str
    started: float
    ended: float | None = None
    exit_code: int | None = None
    reason: str = ""
    output: str = ""


class JobPage(BaseModel):
    """The newest job of each kind. Pass `change` as `after` to wait for the next change."""

    jobs: list[JobView]
    change: int


class PlanningQuestion(BaseModel):
    """A question about a goal. `answered` is true if the question has an answer that planning has
    not read yet."""

    number: int
    question: str
    answered: bool


class PlanningView(BaseModel):
    """A planning run that waits for answers. `plan` is its run id in the journal of the agents'
    runs."""

    plan: str
    goal: str
    since: float
    questions: list[PlanningQuestion]


class PlanningPage(BaseModel):
    """The planning runs that wait for answers, newest first."""

    plans: list[PlanningView]


class AnsweredView(PlanningView):
    """A planning run after an answer. `continues` is true if the run continues now.

    A run continues when its last open question is answered. If another goal is being planned at
    that time, `POST /plans` with the run's goal continues the run later.
    """

    continues: bool


def add_team_jobs(
    api: API,
    teams: Mapping[str, ServedTeam],
    jobs: TeamJobs,
    *,
    visible: Callable[[User, Project], bool] | None = None,
) -> None:
    """Add endpoints that plan goals and run tasks, for teams that `add_teams` serves with the same
    API. `jobs` must be open. It starts processes on this machine, with the rights of the server."""
    served = _TeamWork(ServedTeams(dict(teams), visible), jobs)
    api.endpoints += served.list_endpoints()
    api.inbox_sources.append(served.list_waiting)
    if any(team.journal is api.journal for team in teams.values()):
        api.hidden_graphs.add(planning.name)


class _TeamWork:
    def __init__(self, teams: ServedTeams, jobs: TeamJobs) -> None:
        self._teams, self._jobs = teams, jobs

    async def list_jobs(self, call: ApiCall) -> JobPage:
        name, query = call.path["team"], call.query
        self._teams.find(call.user, name)
        if query.wait:
            first = asyncio.FIRST_COMPLETED
            tasks = [
                asyncio.create_task(wait)
                for wait in (self._jobs.wait(query.after), call.api.owner.closing.wait())
            ]
            try:
                await asyncio.wait(tasks, timeout=query.wait, return_when=first)
            finally:
                for task in tasks:
                    task.cancel()
                await finish_despite_cancel(asyncio.wait(tasks))
        jobs = [_make_view(job) for job in self._jobs.jobs_of(name)]
        return JobPage(jobs=jobs, change=self._jobs.change)

    async def plan_goal(self, call: ApiCall) -> tuple[int, JobView]:
        body: GoalBody = call.body
        options = [*(["--decide"] if body.decide else [])]
        options += [] if body.acceptance else ["--no-acceptance"]
        return 202, await self._start_planning(
            call, body.goal.strip(), [*options, *self._choose_lm(body.lm)]
        )

    async def _start_planning(self, call: ApiCall, goal: str, options: list[str]) -> JobView:
        name = call.path["team"]
        team = self._teams.find(call.user, name)
        fixed = ["--file", "-", "--json", "--no-ask"]
        job = await self._jobs.start(
            name, team, "plan", [*fixed, *options], by=call.user.name, given=goal
        )
        return _make_view(job)

    async def run_tasks(self, call: ApiCall) -> tuple[int, JobView]:
        name, body = call.path["team"], call.body
        team = self._teams.find(call.user, name)
        options = _make_run_options(body) + self._choose_lm(body.lm)
        job = await self._jobs.start(name, team, "run", options, by=call.user.name)
        return 202, _make_view(job)

    async def stop_job(self, call: ApiCall) -> tuple[int, JobView]:
        name, kind = call.path["team"], call.path["kind"]
        self._teams.find(call.user, name)
        job = self._jobs.stop(name, kind) if kind in ("plan", "run") else None
        if job is None:
            raise Refused(
                404, "bae-team-unknown", f"there is no job {kind[:20]!r}", "list them: /jobs"
            )
        return 202, _make_view(job)

    async def list_plans(self, call: ApiCall) -> PlanningPage:
        team = self._teams.find(call.user, call.path["team"])
        return PlanningPage(plans=await _read_plans(team.journal))

    async def answer_question(self, call: ApiCall) -> AnsweredView:
        name, plan, body = call.path["team"], call.path["plan"], call.body
        journal = self._teams.find(call.user, name).journal
        waiting = {run.run_id: run.waiting for run in await _list_waiting_runs(journal)}
        gates = {str(n): question.address for n, question in enumerate(waiting.get(plan, ()))}
        gate, answer = gates.get(call.path["question"]), DECIDE if body.decide else body.answer
        if gate is None:
            raise Refused(
                404, "bae-team-unknown", "there is no such open question", "list them: /plans"
            )
        try:
            await planning.answer(
                plan, gate, answer, journal=journal, go_on=False, by=call.user.name
            )
        except GateError as error:
            stored = await journal.read_texts(plan)
            before = json.loads(stored.answers.get(gate, "null"))
            if error.code != "bae-gate-answered" or before != answer:
                raise
        plan_view = await _read_plan(journal, plan)
        continues = all(question.answered for question in plan_view.questions)
        if continues:
            try:
                await self._start_planning(call, plan_view.goal, self._choose_lm(None))
            except Refused:  # another goal is being planned, so a later request continues this goal
                continues = False
        return AnsweredView(**plan_view.model_dump(), continues=continues)

    async def list_waiting(self, call: ApiCall) -> list[GateView]:
        """Return the open planning questions as rows of the inbox."""
        rows: list[GateView] = []
        for name, team in self._teams.list_visible(call.user).items():
            for plan in await _read_plans(team.journal):
                for question in plan.questions:
                    if not question.answered:
                        address = f"plans/{quote(plan.plan, safe='')}/questions/{question.number}"
                        row = wait_row(
                            name, address, "question", question.question, plan.since, call
                        )
                        context = {"goal": Value(value=plan.goal[: call.query.cut])}
                        rows.append(row.model_copy(update={"context": context}))
        return rows

    def _choose_lm(self, name: str | None) -> list[str]:
        """Return the `--lm` option. Refuse a name with a file or an address in a request, because
        only the person who starts the server may choose these."""
        if name is None:
            return [] if self._jobs.lm is None else ["--lm", self._jobs.lm]
        kind = name.strip().partition(":")[0]
        problem = _find_name_problem(name)
        if name != self._jobs.lm and (kind in _OTHER_CODE or "@" in name or "://" in name):
            problem = "a request may not name a file or an address: start the server with --lm"
        if problem is not None:
            fault = InputFault(loc=["body", "lm"], msg=problem)
            raise Refused(422, "bae-lm-unknown-name", problem, "bae lm list", errors=[fault])
        return ["--lm", name]

    def list_endpoints(self) -> tuple[Endpoint, ...]:
        team = "/teams/{team}"
        return (
            get_row(f"{team}/jobs", "List the jobs.", self.list_jobs, JobPage, JobsQuery),
            put_row(
                f"{team}/jobs/{{kind}}/stop",
                "run",
                "Stop planning or a run that was started here.",
                self.stop_job,
                Form,
                {202: JobView},
            ),
            put_row(
                f"{team}/runs",
                "run",
                "Run the approved tasks.",
                self.run_tasks,
                TeamRunBody,
                {202: JobView},
            ),
            get_row(
                f"{team}/plans",
                "List planning that waits for answers.",
                self.list_plans,
                PlanningPage,
            ),
            put_row(
                f"{team}/plans", "run", "Plan a goal.", self.plan_goal, GoalBody, {202: JobView}
            ),
            put_row(
                f"{team}/plans/{{plan}}/questions/{{question}}",
                "answer",
                "Answer a question about a goal.",
                self.answer_question,
                QuestionBody,
                {200: AnsweredView},
            ),
        )


def _make_run_options(body: TeamRunBody) -> list[str]:
    options = ["--json", "--max-agents", str(body.max_agents), "--worker", body.worker]
    options += ["--retries", str(body.retries), "--wait" if body.wait else "--no-wait"]
    options += ["--allow-network"] if body.allow_network else []
    options += [] if body.budget is None else ["--budget", body.budget.text]
    options += [] if body.task_budget is None else ["--task-budget", body.task_budget.text]
    options += [] if body.timeout is None else ["--timeout", f"{body.timeout:.15g}"]
    review = {"require": ["--require-review"], "off": ["--no-review"], "advise": list[str]()}
    return options + review[body.review]


def _make_view(job: TeamJob) -> JobView:
    return JobView(
        kind=job.kind,
        status=job.status,
        command=job.line,
        by=job.by,
        started=job.started,
        ended=job.ended,
        exit_code=job.exit_code,
        reason=job.reason,
        output=job.output,
    )


async def _list_waiting_runs(journal: Journal) -> list[RunInfo]:
    return [*await journal.runs(status="waiting", graph=planning.name)]


async def _read_plans(journal: Journal) -> list[PlanningView]:
    return [await _read_plan(journal, info.run_id) for info in await _list_waiting_runs(journal)]


async def _read_plan(journal: Journal, plan: str) -> PlanningView:
    info = (await journal.lines(plan, limit=0)).info
    questions: list[PlanningQuestion] = []
    for number, gate in enumerate(info.waiting):
        place = gate.address.removesuffix(".answer")
        question: Any = (await journal.why(plan, f"{place}.question")).value
        questions.append(
            PlanningQuestion(number=number, question=str(question), answered=gate.answered)
        )
    goal: Any = (await journal.why(plan, "Goal.goal")).value
    return PlanningView(plan=plan, goal=str(goal), since=info.updated, questions=questions)


def _find_name_problem(name: str) -> str | None:
    """Return why no LM has this name. If an LM has it, return None."""
    try:
        check_lm_name(name)
    except BaeLMError as error:
        return error.message
    return None
