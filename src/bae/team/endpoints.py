"""Serves teams over HTTP. `add_teams` adds endpoints, a feed and inbox rows for teams to an API of
`bae.serve`. Tasks, approvals and blockers come from a team's store. The activity of agents comes
from the journal of the agents' runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final
from urllib.parse import quote

from pydantic import BaseModel
from starlette.responses import Response

from bae.journal import FeedItem, Journal
from bae.serve import (
    API,
    ApiCall,
    Endpoint,
    Form,
    GateView,
    InputFault,
    Refused,
    ServedFeed,
    User,
    Value,
    Verb,
    draw_boxes,
)
from bae.team.budgets import Spent, read_run_spending, read_spent, read_spent_by_task
from bae.team.delivery import diff_attempt, diff_task
from bae.team.endpoint_views import (
    CUT,
    ActionBody,
    ActionView,
    AddBody,
    ApproveBody,
    ApprovedView,
    AttemptPage,
    AttemptRow,
    AttemptView,
    BlockerBody,
    BlockerPage,
    BlockersQuery,
    BlockerView,
    CutQuery,
    DiffQuery,
    DiffView,
    EditBody,
    EventPage,
    EventsQuery,
    LeftTask,
    LogPage,
    LogQuery,
    LogView,
    PlanView,
    RequestView,
    ReviewPage,
    TaskDetails,
    TaskPage,
    TaskRow,
    TasksQuery,
    TeamDetails,
    TeamPage,
    TeamRow,
    TestsView,
    cut_report,
    cut_text,
)
from bae.team.events import BlockerCreated, StoredEvent
from bae.team.feed import unknown_event
from bae.team.git import Repository
from bae.team.models import (
    Blocker,
    PlannedTask,
    Project,
    Task,
    TaskAttempt,
    TaskStatus,
    TeamError,
    headline,
)
from bae.team.planning import planning
from bae.team.sandbox import protection
from bae.team.schedule import plan_dry_run
from bae.team.standing import Doing, Standing, read_doing, read_standings
from bae.team.steering import change_task, check_files, find_task, steer
from bae.team.store import Store
from bae.team.task_log import read_task_log
from bae.team.team_run import is_running, open_requests, read_held, read_paused
from bae.team.unified_diffs import ChangedFile, read_changed_files
from bae.team.worker_graph import worker_graph

LINES_OF_ALL: Final = 20_000
"""The most lines that one response has for the diffs of all files together."""
BOX: Final = (200, 64)
"""The size of a task in a picture, in pixels."""
_STATUS_BY_CODE: Final = {
    "bae-team-unknown": 404,
    "bae-team-transition": 409,
    "bae-team-git": 409,
    "bae-team-store": 503,
}
"""The HTTP status for each code of a TeamError. For any other code the status is 422, because the
body of the request is wrong."""
_WRITE: Final = (400, 404, 409, 413, 415, 422, 503)
_READ: Final = (404, 422, 503)


@dataclass(frozen=True)
class ServedTeam:
    """A team that `add_teams` serves."""

    store: Store
    """The team's store. It must be open while the API serves the team."""
    project: Project
    repository: Repository
    journal: Journal
    """The journal of the runs of the team's agents."""


def add_teams(
    api: API,
    teams: Mapping[str, ServedTeam],
    *,
    visible: Callable[[User, Project], bool] | None = None,
) -> None:
    """Serve teams with an API. `teams` has the teams by name. The API gets endpoints below
    `/teams`, the feed `team/NAME` on its WebSocket, and inbox rows for what waits for a person.
    `visible` decides which teams a user may see. The API's own `visible` decides which runs of the
    agents a user may see."""
    served = ServedTeams(dict(teams), visible)
    api.endpoints += served.list_endpoints()
    api.feed_kinds["team"] = served.open_feed
    api.inbox_sources.append(served.list_waiting)
    if any(team.journal is api.journal for team in teams.values()):
        # The inbox shows a worker's question as a blocker, so it must not show the gate too.
        api.hidden_graphs.add(worker_graph.name)


class ServedTeams:
    """The teams that an API serves, with the handlers of their endpoints."""

    def __init__(
        self, teams: dict[str, ServedTeam], visible: Callable[[User, Project], bool] | None
    ) -> None:
        self._teams = teams
        self._visible = visible
        self._goals: dict[str, tuple[str, str]] = {}
        """The id of the run that planned a team's last goal, and the goal, by team name."""

    # Look up the team, task or attempt of a request

    def list_visible(self, user: User) -> dict[str, ServedTeam]:
        """Return the teams that a user may see, by name."""
        return {
            name: team
            for name, team in self._teams.items()
            if self._visible is None or self._visible(user, team.project)
        }

    def find(self, user: User, name: str) -> ServedTeam:
        """Return the team with this name. Raises `Refused` if the user may not see the team, or if
        there is no such team."""
        team = self.list_visible(user).get(name)
        if team is None:
            raise Refused(
                404, "bae-team-unknown", f"there is no team {name[:100]!r}", "list them: /teams"
            )
        return team

    async def _find_task(self, call: ApiCall) -> tuple[ServedTeam, Task]:
        team = self.find(call.user, call.path["team"])
        return team, await find_task(team.store, team.project.id, call.path["task"])

    async def _find_attempt(self, call: ApiCall) -> tuple[ServedTeam, Task, TaskAttempt]:
        team, task = await self._find_task(call)
        number = call.path["attempt"]
        for attempt in await team.store.attempts(task.id):
            if str(attempt.number) == number:
                return team, task, attempt
        raise Refused(404, "bae-team-unknown", f"{task.key} has no attempt {number[:20]!r}")

    # Teams

    async def list_teams(self, call: ApiCall) -> TeamPage:
        visible_teams = self.list_visible(call.user)
        return TeamPage(
            teams=[TeamRow(**await _summarize_team(n, team)) for n, team in visible_teams.items()]
        )

    async def show_team(self, call: ApiCall) -> TeamDetails:
        name = call.path["team"]
        team = self.find(call.user, name)
        agents = await team.store.agents(team.project.id)
        # Planning may have changed the requirements since `team.project` was read.
        project = await team.store.project(team.project.id)
        return TeamDetails(
            **await _summarize_team(name, team),
            root=team.project.root,
            goal=await self._find_goal(name, team),
            sandbox=await protection(),
            requests=await _read_requests(team),
            run=await read_run_spending(team.store, team.project.id),
            requirements=cut_text(project.requirements, CUT),
            agents=[agent for agent in agents if agent.status != "retired"],
        )

    async def _find_goal(self, name: str, team: ServedTeam) -> str:
        """Return the last goal that was planned. Empty if the journal has no planning run."""
        for info in await team.journal.runs(graph=planning.name, limit=1):
            if self._goals.get(name, ("",))[0] != info.run_id:
                provenance = await team.journal.why(info.run_id, "Goal.goal")
                self._goals[name] = info.run_id, cut_text(str(provenance.value), CUT)
            return self._goals[name][1]
        return ""

    async def list_events(self, call: ApiCall) -> EventPage:
        team, query = self.find(call.user, call.path["team"]), call.query
        events = await team.store.events(team.project.id, query.after, most=query.limit)
        last = events[-1].number if events else await team.store.last_event(team.project.id)
        if last < query.after:
            raise unknown_event(query.after, last)
        return EventPage(events=[event.to_message() for event in events], last=last)

    async def open_feed(self, api: API, user: User, name: str) -> ServedFeed:
        """Return the feed of the team with this name."""
        team = self.find(user, name)
        return ServedFeed(team.store.feed(team.project.id), encode_event)

    # The plan

    async def list_tasks(self, call: ApiCall) -> TaskPage:
        team, query = self.find(call.user, call.path["team"]), call.query
        spent = await read_spent_by_task(team.store, team.project.id)
        tasks = [
            task
            for task in await team.store.tasks(team.project.id)
            if task.id > query.after and query.status in (None, task.status)
        ]
        rows = await _make_rows(team, tasks[: query.limit], spent)
        return TaskPage(tasks=rows, next=rows[-1].id if len(tasks) > len(rows) else None)

    async def add_tasks(self, call: ApiCall) -> tuple[int, TaskPage]:
        team, body = self.find(call.user, call.path["team"]), call.body
        if body.approve and "answer" not in call.user.can:
            raise Refused(
                403,
                "bae-serve-verb",
                f"{call.user.name} may not answer, so this user may not approve tasks",
                "leave approve out, and ask another user to approve the tasks",
            )
        await check_files(team.store, team.repository, team.project, body.tasks)
        added_tasks = await team.store.add_tasks(
            team.project.id, body.tasks, approved=body.approve, by=call.user.name
        )
        return 201, TaskPage(tasks=await _make_rows(team, added_tasks, {}))

    async def edit_task(self, call: ApiCall) -> TaskDetails:
        team, task = await self._find_task(call)
        fields = call.body.model_dump(exclude_none=True)
        planned = change_task(task, fields)
        if "files" in fields or "new_files" in fields:
            await check_files(team.store, team.repository, team.project, [planned])
        may_approve = "answer" in call.user.can
        await team.store.edit_task(task.id, planned, approved=may_approve, by=call.user.name)
        return await _read_details(team, await team.store.task(task.id))

    async def drop_task(self, call: ApiCall) -> Response:
        team, task = await self._find_task(call)
        await team.store.drop_task(task.id, by=call.user.name)
        return Response(status_code=204)

    async def show_plan(self, call: ApiCall) -> PlanView:
        return await _read_plan(call.api, self.find(call.user, call.path["team"]))

    async def approve(self, call: ApiCall) -> ApprovedView:
        team, body = self.find(call.user, call.path["team"]), call.body
        if body.tasks is None:
            ids = [task.id for task in await team.store.tasks(team.project.id)]
        else:
            ids = [(await find_task(team.store, team.project.id, task)).id for task in body.tasks]
        approve, by = team.store.approve_tasks, call.user.name
        count = await approve(ids, by=by)
        if body.without_tests:
            count += await approve(ids, without_tests=True, by=by)
        return ApprovedView(approved=count, plan=await _read_plan(call.api, team))

    async def act(self, call: ApiCall) -> tuple[int, ActionView]:
        team, body = self.find(call.user, call.path["team"]), call.body
        team_parts = team.store, team.repository, team.project.id
        options = {"text": body.text, "by": call.user.name}
        steered = await steer(*team_parts, body.action, body.task, **options)
        if steered is None:
            raise Refused(409, "bae-team-transition", "no run is in progress")
        return 202, ActionView(
            action=body.action,
            task=steered.task and steered.task.key,
            running=steered.is_running,
            request=steered.request and steered.request.id,
        )

    # A task

    async def show_task(self, call: ApiCall) -> TaskDetails:
        return await _read_details(*await self._find_task(call))

    async def show_log(self, call: ApiCall) -> LogPage:
        team, task = await self._find_task(call)
        api, user, query = call.api, call.user, call.query
        log = await read_task_log(
            team.store, team.journal, task, shows=lambda run: api.may_see(user, run)
        )
        end = query.start + query.limit
        entries = [LogView.of(entry, query.cut) for entry in log.entries[query.start : end]]
        total = len(log.entries)
        return LogPage(entries=entries, total=total, next=end if end < total else None)

    async def show_task_diff(self, call: ApiCall) -> DiffView:
        team, task = await self._find_task(call)
        return await _view_diff(call, await diff_task(team.project, team.repository, task))

    async def show_tests(self, call: ApiCall) -> TestsView:
        team, task = await self._find_task(call)
        cut = call.query.cut
        tested_attempts = [
            attempt for attempt in await team.store.attempts(task.id) if attempt.report is not None
        ]
        last = tested_attempts[-1] if tested_attempts else None
        flaky = await team.store.flaky_tests(team.project.id)
        merged = [cut_report(report, cut) for report in await team.store.merge_reports(task.id)]
        return TestsView(
            attempt=last and last.number,
            report=cut_report(last.report if last else None, cut),
            merged=[test_report for test_report in merged if test_report is not None],
            flaky=flaky.get(task.id, ()),
        )

    async def list_reviews(self, call: ApiCall) -> ReviewPage:
        team, task = await self._find_task(call)
        reviews = await team.store.reviews(team.project.id)
        return ReviewPage(reviews=[*reviews.get(task.id, ())])

    async def list_attempts(self, call: ApiCall) -> AttemptPage:
        team, task = await self._find_task(call)
        attempts = await team.store.attempts(task.id)
        return AttemptPage(
            attempts=[AttemptRow.of(attempt, call.query.cut) for attempt in attempts]
        )

    async def show_attempt(self, call: ApiCall) -> AttemptView:
        *_, attempt = await self._find_attempt(call)
        row = AttemptRow.of(attempt, call.query.cut)
        return AttemptView(**row.model_dump(), report=cut_report(attempt.report, call.query.cut))

    async def show_attempt_diff(self, call: ApiCall) -> DiffView:
        team, task, attempt = await self._find_attempt(call)
        text = await diff_attempt(team.project, team.repository, task, attempt)
        return await _view_diff(call, text)

    # Questions

    async def list_blockers(self, call: ApiCall) -> BlockerPage:
        name, query = call.path["team"], call.query
        team = self.find(call.user, name)
        blockers = await _read_blockers(name, team, open_only=not query.all)
        cut = [
            blocker.model_copy(update={"question": cut_text(blocker.question, query.cut)})
            for blocker in blockers
        ]
        return BlockerPage(blockers=cut)

    async def answer_blocker(self, call: ApiCall) -> BlockerView:
        name, answer = call.path["team"], call.body.answer
        team = self.find(call.user, name)
        blocker = _find_blocker(await _read_blockers(name, team), call.path["blocker"])
        if blocker.answer is None:
            try:
                await team.store.answer_blocker(blocker.id, answer, by=call.user.name)
            except TeamError as error:  # another user was faster
                if error.code != "bae-team-transition":
                    raise
            blocker = _find_blocker(await _read_blockers(name, team), str(blocker.id))
        if blocker.answer != answer:
            who = f" by {blocker.answered_by}" if blocker.answered_by else ""
            refused = Refused(
                409,
                "bae-team-transition",
                f"blocker {blocker.id} was answered{who}: {headline(blocker.answer or '')}",
                "add a note to the task instead: the action note",
            )
            refused.body.answered_by = blocker.answered_by
            refused.body.answer = Value(value=blocker.answer).model_dump(exclude_none=True)
            raise refused
        return blocker

    async def list_waiting(self, call: ApiCall) -> list[GateView]:
        """Return the blockers and plans that wait for a person, as rows of the inbox."""
        waiting: list[GateView] = []
        for name, team in self.list_visible(call.user).items():
            tasks = await team.store.tasks(team.project.id)
            tasks_by_id = {task.id: task for task in tasks}
            for blocker in await _read_blockers(name, team, open_only=True):
                address = f"blockers/{blocker.id}"
                row = wait_row(name, address, "blocker", blocker.question, blocker.since, call)
                context = _describe_task(tasks_by_id.get(blocker.task_id), call.query.cut)
                waiting.append(row.model_copy(update={"task": blocker.task, "context": context}))
            unapproved = [task for task in tasks if not task.approved]
            if unapproved:
                since = await team.store.unapproved_since(team.project.id)
                count = f"{len(unapproved)} task{'' if len(unapproved) == 1 else 's'}"
                row = wait_row(name, "approve", "plan", f"Approve {count}?", since, call)
                titles = {task.key: Value(value=task.title) for task in unapproved[:100]}
                waiting.append(row.model_copy(update={"context": titles}))
        return waiting

    # Endpoints

    def list_endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints of all teams."""
        team, task = "/teams/{team}", "/teams/{team}/tasks/{task}"
        attempt = f"{task}/attempts/{{attempt}}"
        return (
            get_row("/teams", "List teams.", self.list_teams, TeamPage),
            get_row(team, "Show a team.", self.show_team, TeamDetails),
            get_row(f"{team}/events", "List events.", self.list_events, EventPage, EventsQuery),
            get_row(f"{team}/plan", "Show what waits for approval.", self.show_plan, PlanView),
            put_row(
                f"{team}/approve",
                "answer",
                "Approve tasks.",
                self.approve,
                ApproveBody,
                {200: ApprovedView},
            ),
            put_row(
                f"{team}/actions",
                "run",
                "Ask the team to do something.",
                self.act,
                ActionBody,
                {202: ActionView},
            ),
            get_row(f"{team}/tasks", "List tasks.", self.list_tasks, TaskPage, TasksQuery),
            put_row(
                f"{team}/tasks", "edit", "Add tasks.", self.add_tasks, AddBody, {201: TaskPage}
            ),
            get_row(task, "Show a task.", self.show_task, TaskDetails),
            put_row(
                task,
                "edit",
                "Edit a task.",
                self.edit_task,
                EditBody,
                {200: TaskDetails},
                method="PATCH",
            ),
            Endpoint(
                "DELETE",
                task,
                "edit",
                "Drop a task.",
                _with_refusals(self.drop_task),
                {204: ""},
                refusals=(404, 409, 503),
            ),
            get_row(f"{task}/log", "Show what was done.", self.show_log, LogPage, LogQuery),
            get_row(f"{task}/diff", "Show the change.", self.show_task_diff, DiffView, DiffQuery),
            get_row(f"{task}/tests", "Show test results.", self.show_tests, TestsView, CutQuery),
            get_row(f"{task}/reviews", "List reviews.", self.list_reviews, ReviewPage),
            get_row(
                f"{task}/attempts", "List attempts.", self.list_attempts, AttemptPage, CutQuery
            ),
            get_row(attempt, "Show an attempt.", self.show_attempt, AttemptView, CutQuery),
            get_row(
                f"{attempt}/diff",
                "Show the change of an attempt.",
                self.show_attempt_diff,
                DiffView,
                DiffQuery,
            ),
            get_row(
                f"{team}/blockers",
                "List questions.",
                self.list_blockers,
                BlockerPage,
                BlockersQuery,
            ),
            put_row(
                f"{team}/blockers/{{blocker}}",
                "answer",
                "Answer a question.",
                self.answer_blocker,
                BlockerBody,
                {200: BlockerView},
            ),
        )


_Handle = Callable[[ApiCall], Awaitable[Any]]


def get_row(
    path: str, about: str, handler: _Handle, answer: type[BaseModel], query: type[Form] = Form
) -> Endpoint:
    """Return an endpoint for GET requests. `about` is its summary in the OpenAPI document."""
    refusals = (409, *_READ) if path.endswith("/diff") else _READ
    return Endpoint(
        "GET", path, "read", about, _with_refusals(handler), {200: answer}, query, refusals=refusals
    )


def put_row(
    path: str,
    verb: Verb,
    about: str,
    handler: _Handle,
    body: type[Form],
    answers: Mapping[int, type[BaseModel] | str],
    *,
    method: str = "POST",
) -> Endpoint:
    """Return an endpoint for requests that change something. `about` is its summary in the OpenAPI
    document."""
    return Endpoint(
        method, path, verb, about, _with_refusals(handler), answers, body=body, refusals=_WRITE
    )


def _with_refusals(handler: _Handle) -> _Handle:
    """Return a handler that turns a TeamError into a refusal with an HTTP status."""

    @wraps(handler)
    async def handle(call: ApiCall) -> Any:
        try:
            return await handler(call)
        except TeamError as error:
            status = _STATUS_BY_CODE.get(error.code, 422)
            faults = [
                InputFault(loc=["body", problem.place], msg=problem.message)
                for problem in error.problems
            ]
            if status == 503:  # only the log may have the error: it names a file on the server
                message = "the state of the team cannot be used now: the log of the server says why"
                raise Refused(503, error.code, message, headers={"retry-after": "5"}) from error
            raise Refused(
                status, error.code, error.message, error.fix or "", errors=faults
            ) from error

    return handle


def encode_event(item: FeedItem[StoredEvent]) -> str:
    """Return the JSON of an event. It is encoded once for all subscribers."""
    if not item.encoded:
        item.encoded = json.dumps(item.value.to_message())
    return item.encoded


async def _summarize_team(name: str, team: ServedTeam) -> dict[str, Any]:
    store, project_id = team.store, team.project.id
    # Read this number before the tasks. A client that follows the feed from this number then gets
    # every later change of the tasks.
    last = await store.last_event(project_id)
    tasks = await store.tasks(project_id)
    return {
        "team": name,
        "branch": team.project.branch,
        "running": await is_running(team.repository),
        "paused": None in await read_paused(store, project_id),
        "counts": dict(Counter(task.status for task in tasks)),
        "blockers": len(await store.blockers(project_id, open_only=True)),
        "unapproved": sum(not task.approved for task in tasks),
        "spent": await read_spent(store, project_id=project_id),
        "last": last,
    }


async def _make_rows(
    team: ServedTeam, tasks: Sequence[Task], spent: Mapping[int, Spent]
) -> list[TaskRow]:
    paused = await read_paused(team.store, team.project.id)
    standings = await read_standings(team.store, team.project.id)
    doing: dict[int, Doing] = {}
    working = {task.id for task in tasks if task.status is TaskStatus.IN_PROGRESS}
    if working and await is_running(team.repository):
        doing = await read_doing(team.journal, working)
        for number in working:
            activity = standings.get(number, Standing()).activity
            if activity is not None and (number not in doing or activity.at > doing[number].at):
                run = doing[number].run if number in doing else ""
                doing[number] = activity.model_copy(update={"run": run})
    names = {*TaskRow.model_fields} & {*Task.model_fields} - {"reason"}
    return [
        TaskRow(
            **task.model_dump(include=names),
            reason=headline(task.reason),
            spent=spent.get(task.id, Spent()),
            paused=task.id in paused,
            doing=doing.get(task.id),
            **standings.get(task.id, Standing()).model_dump(exclude={"activity"}),
        )
        for task in tasks
    ]


async def _read_requests(team: ServedTeam) -> list[RequestView]:
    requests = await open_requests(team.store, team.project.id)
    keys = (
        {task.id: task.key for task in await team.store.tasks(team.project.id)} if requests else {}
    )
    return [
        RequestView(id=request.id, action=request.action, task=keys.get(request.task_id or 0))
        for request in requests
        if request.action not in ("pause", "resume")  # these wait for no run: `paused` shows them
    ]


async def _read_details(team: ServedTeam, task: Task) -> TaskDetails:
    blockers = await team.store.blockers(team.project.id)
    attempts = await team.store.attempts(task.id)
    return TaskDetails(
        task=task,
        spent=await read_spent(team.store, task_id=task.id),
        attempts=[AttemptRow.of(attempt, 300) for attempt in attempts],
        blockers=[blocker for blocker in blockers if blocker.task_id == task.id],
        reviews=len((await team.store.reviews(team.project.id)).get(task.id, ())),
    )


async def _read_plan(api: API, team: ServedTeam) -> PlanView:
    tasks = await team.store.tasks(team.project.id)
    unapproved = [task for task in tasks if not task.approved]
    held_tasks = await read_held(team.store, team.project.id)
    approved = [task.model_copy(update={"approved": True}) for task in tasks]
    plan = plan_dry_run(approved, held=held_tasks, max_agents=max(1, len(tasks)))
    picture = await api.fold(_draw_tasks, tasks)
    return PlanView(
        unapproved=[task.key for task in unapproved],
        without_tests=[task.key for task in unapproved if task.proof == "none"],
        rounds=[[task.key for task in round_] for round_ in plan.rounds],
        critical_path=[task.key for task in plan.critical_path],
        left=[
            LeftTask(task=task.key, reason=headline(task.reason) or task.status.label)
            for task in plan.left
        ],
        **picture,
        task_schema=PlannedTask.model_json_schema(),
    )


def _draw_tasks(tasks: Sequence[Task]) -> dict[str, Any]:
    """Return a picture of the tasks as boxes and edges, with prerequisites on the left."""
    positions = {task.key: place for place, task in enumerate(tasks)}
    links = [
        (positions[key], positions[task.key])
        for task in tasks
        for key in task.depends_on
        if key in positions
    ]
    boxes, edges = draw_boxes([task.key for task in tasks], links, *BOX)
    return {"boxes": boxes, "edges": edges}


async def _read_blockers(
    name: str, team: ServedTeam, *, open_only: bool = False
) -> list[BlockerView]:
    project_id = team.project.id
    blockers: list[Blocker] = await team.store.blockers(project_id, open_only=open_only)
    if not blockers:
        return []
    keys = {task.id: task.key for task in await team.store.tasks(project_id)}
    asked_at: dict[int, float] = {}
    for stored in await team.store.events_of(project_id, BlockerCreated):
        if isinstance(stored.event, BlockerCreated):
            asked_at[stored.event.blocker_id] = stored.at
    return [
        BlockerView(
            **blocker.model_dump(),
            team=name,
            task=keys.get(blocker.task_id, ""),
            since=asked_at.get(blocker.id, 0.0),
        )
        for blocker in blockers
    ]


def _find_blocker(blockers: list[BlockerView], number: str) -> BlockerView:
    for blocker in blockers:
        if str(blocker.id) == number:
            return blocker
    raise Refused(404, "bae-team-unknown", f"there is no blocker {number[:20]!r}")


def wait_row(
    team: str, address: str, kind: str, question: str, since: float, call: ApiCall
) -> GateView:
    """Return a row of the inbox. `address` is the path, below the team's path, of the endpoint that
    takes the answer."""
    return GateView(
        run_id="",
        graph="",
        gate=f"teams/{quote(team, safe='')}/{address}",
        place="",
        question=cut_text(question, call.query.cut),
        kind=kind,
        since=since,
        answer_schema=None if kind == "plan" else {"type": "string"},
        context={},
        team=team,
    )


def _describe_task(task: Task | None, cut: int) -> dict[str, Value]:
    """Return the title and the description of a question's task, as the context of an inbox row."""
    if task is None:  # the task was added after the tasks were read
        return {}
    fields = {"title": task.title, "description": task.description}
    return {name: Value(value=cut_text(text, cut)) for name, text in fields.items() if text}


async def _view_diff(call: ApiCall, text: str) -> DiffView:
    query = call.query
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    most_of_all = 0 if query.path is not None or not query.lines else LINES_OF_ALL
    lines = query.lines
    files: list[ChangedFile] = await call.api.fold(read_changed_files, readable, lines, most_of_all)
    if query.path is not None:
        files = [file for file in files if query.path in (file.path, file.old_path)]
        if not files:
            raise Refused(404, "bae-team-unknown", f"the change has no file {query.path[:200]!r}")
    return DiffView(files=files)
