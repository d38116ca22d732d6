// Written by tools/studio_types.py from the OpenAPI document. Do not edit.

/** What a person asks of a task, or of the whole run where no `task` is named. A note has a `text` and a task. */
export interface ActionBody {
  "action": "stop" | "kill" | "pause" | "resume" | "retry" | "skip" | "note";
  "task"?: string | null;
  "text"?: string;
}

/** What was asked for. With `running`, the run takes it now; otherwise the next one does. */
export interface ActionView {
  "action": string;
  "task": string | null;
  "running": boolean;
  "request": number | null;
}

/** Tasks to add: all or none. They wait for approval, unless the user may `answer` and says `approve`. */
export interface AddBody {
  "tasks": (PlannedTask)[];
  "approve"?: boolean;
}

/** A worker of the pool. */
export interface AgentInfo {
  "id": string;
  "kind": string;
  "status": "idle" | "working" | "retired";
  "task_id": number | null;
  /** how many tasks it has completed */
  "completed": number;
  /** how many tasks it has failed at */
  "failed": number;
}

/** The input of an AG-UI 1.0 run: the thread, the id of the run, the messages, and answers to interrupts. `forwardedProps` and `state` give fields of the start node besides the message. `tools` and `context` are not used. */
export interface AgentRequest {
  "threadId": string;
  "runId": string;
  "protocolVersion"?: string | null;
  "messages": (AnyMessage)[];
  "tools"?: (unknown)[] | null;
  "context"?: (unknown)[] | null;
  "state"?: unknown;
  "forwardedProps"?: unknown;
  "resume"?: (ResumeEntry)[] | null;
}

/** An answer to a gate: a `value`, or a `decision` about a tool call. "edit" needs all `arguments` of the call. An approval with the scope "run" holds for all calls of the tool in the run, and with "thread" also in other turns of the thread. */
export interface AnswerBody {
  "gate": string;
  "value"?: unknown;
  "decision"?: "approve" | "edit" | "refuse" | null;
  "arguments"?: Record<string, unknown> | null;
  "reason"?: string;
  "scope"?: "call" | "run" | "thread";
}

/** The same after an answer. It `continues` if that was the last one. While another goal is planned it does not: `POST /plans` with the goal has it continue. */
export interface AnsweredView {
  "plan": string;
  "goal": string;
  "since": number;
  "questions": (PlanningQuestion)[];
  "continues": boolean;
}

/** A message of the client. Only the content of the last message is read. */
export interface AnyMessage {
  "id": string;
  "role": string;
  "content"?: unknown;
}

/** Approvals of all calls of a tool, the oldest first in each run. */
export interface ApprovalPage {
  "approvals": (ApprovalView)[];
}

/** An approval of all calls of a tool: the run that asked, and the address of its gate. */
export interface ApprovalView {
  "tool": string;
  "place": string;
  "address": string;
  "revoked": boolean;
  "scope": "run" | "thread";
  "run_id": string;
}

/** Tasks to approve, by keys or numbers; None is all. A task that no test proves is approved `without_tests`, and only by its name. */
export interface ApproveBody {
  "tasks"?: (string)[] | null;
  "without_tests"?: boolean;
}

/** How many tasks were approved, and those that still wait. */
export interface ApprovedView {
  "approved": number;
  "plan": PlanView;
}

/** The attempts at a task, in order. */
export interface AttemptPage {
  "attempts": (AttemptRow)[];
}

/** An attempt at a task: what became of it, and how many tests had each outcome. A `cost` of null is unknown. */
export interface AttemptRow {
  "number": number;
  "outcome": string;
  "failure": string;
  "files": (string)[];
  "commit": string;
  "tests": Record<string, number> | null;
  "calls": number;
  "tokens": number;
  "cost": number | null;
}

/** An attempt with what its tests have shown. */
export interface AttemptView {
  "number": number;
  "outcome": string;
  "failure": string;
  "files": (string)[];
  "commit": string;
  "tests": Record<string, number> | null;
  "calls": number;
  "tokens": number;
  "cost": number | null;
  "report": TestReport | null;
}

/** A piece of work in a timeline. `depth` counts the work around it. `critical` has the times when the run waited for this work alone, and `slack` the seconds that it could have taken longer; both are missing for work that the critical path does not include. */
export interface BarView {
  "kind": string;
  "place": string;
  "name": string;
  "depth": number;
  "spans": (Span)[];
  "outcome": string;
  "error": string;
  "note": string;
  "items": number;
  "waits": boolean;
  "critical": (Span)[];
  "slack": number | null;
}

/** A question that a task waits for. */
export interface Blocker {
  "id": number;
  "task_id": number;
  "question": string;
  "answer": string | null;
  /** of the content that the answer `yes` lets in, if that is asked */
  "digest": string | null;
  /** who answered: the user; None where a run did so itself */
  "answered_by": string | null;
}

/** The answer to a question. */
export interface BlockerBody {
  "answer": string;
}

/** Questions, in the order in which they were asked. */
export interface BlockerPage {
  "blockers": (BlockerView)[];
}

/** A question of a task, and when it was asked. */
export interface BlockerView {
  "id": number;
  "task_id": number;
  "question": string;
  "answer": string | null;
  /** of the content that the answer `yes` lets in, if that is asked */
  "digest": string | null;
  /** who answered: the user; None where a run did so itself */
  "answered_by": string | null;
  "team": string;
  "task": string;
  "since": number;
}

/** The box of a node in a picture of the graph: its upper left corner and size, in pixels. */
export interface BoxView {
  "node": string;
  "x": number;
  "y": number;
  "width": number;
  "height": number;
}

/** Questions to LMs in order, without their texts. */
export interface CallPage {
  "calls": (CallView)[];
  "total": number;
}

/** A question to an LM, with its answers, their verdicts and the rounds of tool calls. `asked` is the text at the start of a conversation with tools; each answer has its own text. */
export interface CallView {
  "number": number;
  "by": string;
  "place": string;
  "at": number;
  "seconds": number;
  "outcome": string;
  "error": string;
  "usage": UsageView;
  "asked": string;
  "answers": (Record<string, unknown>)[] | null;
  "rounds": (Record<string, unknown>)[] | null;
}

/** What a diff of git does to one file, to be shown. `hunks` are cut where `is_cut`; `added` and `removed` count all lines. `mode` is that of git where it is new, as 100755 of a program and 120000 of a link. A byte of a path that is no UTF-8 is shown as `�`. */
export interface ChangedFile {
  "path": string;
  "old_path": string;
  "change": "changed" | "added" | "deleted" | "renamed";
  "mode": string;
  "is_binary": boolean;
  "added": number;
  "removed": number;
  "is_cut": boolean;
  "hunks": (ChangedLines)[];
}

/** Lines of a diff as people see them, each with ` `, `-` or `+` before it, and the numbers of the first line before and after. `heading` is what git writes behind the numbers. */
export interface ChangedLines {
  "old": number;
  "new": number;
  "heading": string;
  "lines": (string)[];
}

/** A field of a node class. `source` is "given", "code", "lm" or the kind of its source. `origin` names the origin of the value, if the source alone does not. */
export interface ClassFieldView {
  "name": string;
  "type": string;
  "source": string;
  "origin": string;
  "description": string;
  "required": boolean;
}

/** A node class of a graph. `ending` says whether runs "never", "may" or "always" end there, `chosen_by` who chooses the next node ("lm", "code" or "certain"), and `lm` is the LM pinned to it. */
export interface ClassView {
  "node": string;
  "about": string;
  "ending": string;
  "chosen_by": string;
  "lm": string;
  "fields": (ClassFieldView)[];
}

/** Two runs by place. `first` is the place of the first difference, in the run `a` if that has the node; null if there is none. Times are not compared. `total` counts the nodes to list. */
export interface ComparisonView {
  "a": RunRow;
  "b": RunRow;
  "first": string | null;
  "nodes": (NodePair)[];
  "total": number;
}

/** The files of a change. `lines` of a hunk have a space, `-` or `+` before them. */
export interface DiffView {
  "files": (ChangedFile)[];
}

/** What an agent began last for a task, since when, and the run in the journal that has it. */
export interface Doing {
  "text": string;
  "at": number;
  "run": string;
}

/** An edge from a node to a possible next node. `chosen_by` is "lm", "code" for the body, or "certain". `line` has the points of the arrow, in pixels. */
export interface EdgeView {
  "source": string;
  "target": string;
  "chosen_by": string;
  "line": ([number, number])[];
}

/** The parts of a task to change; a part that is left out stays. */
export interface EditBody {
  "key"?: string | null;
  "title"?: string | null;
  "description"?: string | null;
  "kind"?: string | null;
  "criteria"?: (string)[] | null;
  "files"?: (string)[] | null;
  "new_files"?: (string)[] | null;
  "tests"?: (string)[] | null;
  "depends_on"?: (string)[] | null;
  "priority"?: number | null;
  "proof"?: "new-tests" | "named-tests" | "failing-tests" | "none" | null;
  "may"?: "add-tests" | "change-tests" | "change-test-setup" | null;
  "feature"?: string | null;
}

/** A field that a fork may change: its value, and the JSON schema of its type, if there is one. A `needed` field has no stored value, so the fork must give it. */
export interface EditableField {
  "kept": string;
  "value": unknown;
  "text": string | null;
  "size": number | null;
  "name": string;
  "place": string;
  "source": string;
  "by": string;
  "state": string;
  "seconds": number | null;
  "error": string;
  "note": string;
  "field_schema": Record<string, unknown> | null;
  "needed": boolean;
}

/** Events in order. Give `last` as `after` for those behind them. */
export interface EventPage {
  "events": (Record<string, unknown>)[];
  "last": number;
}

/** Why a run failed. `place` is the node or field that failed, and `error` the cause. `path` says which function was called for which, and `fix` what to do; both are known until the server that ran the run stops. */
export interface FailureView {
  "type": string;
  "code": string | null;
  "message": string;
  "place": string;
  "error": string;
  "path": string | null;
  "fix": string | null;
}

/** A field that differs; null in a run without such a field. */
export interface FieldPair {
  "name": string;
  "a": FieldView | null;
  "b": FieldView | null;
}

/** A field of a node, with the source of its value; `/why` explains it in full. */
export interface FieldView {
  "kept": string;
  "value": unknown;
  "text": string | null;
  "size": number | null;
  "name": string;
  "place": string;
  "source": string;
  "by": string;
  "state": string;
  "seconds": number | null;
  "error": string;
  "note": string;
}

/** A file as JSON refers to it. Give this object, or the hash alone, as the value of a field for images or documents. */
export interface FileView {
  "hash": string;
  "type": string;
  "size": number;
  "name": string;
}

/** Something that a reviewer has found in the change of a task. */
export interface Finding {
  "kind": FindingKind;
  /** the path of the file */
  "file": string;
  /** the line in the new file, if it is known */
  "line": number | null;
  /** the code that is meant, quoted from the change */
  "code": string;
  /** what is wrong, and what to do, in one or two sentences */
  "text": string;
  /** whether the work must not be merged like this */
  "blocking": boolean;
}

/** What is wrong with work that passes its tests. */
export type FindingKind = "scope-creep" | "hard-coded-answer" | "weakened-check" | "missing-case" | "wrong-behavior" | "other";

/** A fork: a new run that repeats the run up to the step `at`, with other values for the fields in `changed`. With `go_on` it continues at once. With the `thread` of the run it replaces the turn, to try again or with another text. */
export interface ForkBody {
  "at": number;
  "changed"?: Record<string, unknown>;
  "run_id"?: string | null;
  "thread"?: string | null;
  "go_on"?: boolean;
}

/** The fields of a node that `POST /runs/R/forks` may change. */
export interface ForkFormView {
  "run_id": string;
  "at": number;
  "node": string;
  "fields": (EditableField)[];
}

/** The parts of a query or a body. Any other part is refused. */
export interface Form {
}

/** Questions of a run, in order, and how many there are. */
export interface GatePage {
  "gates": (GateView)[];
  "total": number;
}

/** A question to a person, with the context needed to decide: the JSON schema of the answer, and the values of the node so far, or the arguments of the tool call. The kind "approval" asks whether a call may be made, and `arguments_schema` describes its arguments. The kinds "blocker" and "plan" belong to a `team` and to no run. An answered question has an `answer`. */
export interface GateView {
  "run_id": string;
  "graph": string;
  "gate": string;
  "place": string;
  "question": string;
  "kind": string;
  "since": number;
  "deadline": number | null;
  "answered": boolean;
  "answered_by": string | null;
  "answer": Value | null;
  "answer_schema": Record<string, unknown> | null;
  "arguments_schema": Record<string, unknown> | null;
  "context": Record<string, Value>;
  "tool": string | null;
  "thread": string | null;
  "team": string | null;
  "task": string | null;
}

/** A goal to plan. With `decide` the LLM asks nothing, and notes what it assumes; with `acceptance` features begin with acceptance tests. The same goal again continues its planning, if that waits or was interrupted. */
export interface GoalBody {
  "goal": string;
  "decide"?: boolean;
  "acceptance"?: boolean;
  "lm"?: string | null;
}

/** The graphs that are served. */
export interface GraphList {
  "graphs": (GraphRow)[];
}

/** A graph that is served. */
export interface GraphRow {
  "name": string;
  "start": string;
  "ends": (string)[];
  "about": string;
}

/** A graph: its nodes and edges with a layout, its tools and problems, and the schemas of its start and ends. */
export interface GraphView {
  "name": string;
  "start": string;
  "ends": (string)[];
  "about": string;
  "nodes": (string)[];
  "classes": (ClassView)[];
  "edges": (EdgeView)[];
  "boxes": (BoxView)[];
  "tools": (ToolView)[];
  "problems": (ProblemView)[];
  "start_schema": Record<string, unknown>;
  "end_schemas": Record<string, Record<string, unknown>>;
  "mermaid": string;
}

/** The state of the server, and the version of bae. */
export interface Health {
  "status": string;
  "bae": string;
}

/** Questions to people, the oldest first. `more` has the number of further questions by run: `/runs/R/gates` has all of them. */
export interface InboxPage {
  "gates": (GateView)[];
  "next": number | null;
  "more": Record<string, number>;
}

/** A graph that ran for a `field` of the node at `step`. Its picture is at `path`. `outcome` is empty while the graph runs. */
export interface InnerRunView {
  "path": string;
  "graph": string;
  "node": string;
  "step": number;
  "field": string;
  "nodes": number;
  "outcome": string;
}

/** One fault of a request: its place, and a message. */
export interface InputFault {
  "loc": (string | number)[];
  "msg": string;
}

/** The newest job of each kind. Give `change` as `after` to wait for the next change. */
export interface JobPage {
  "jobs": (JobView)[];
  "change": number;
}

/** Planning or a run that was started here: the newest of its kind. `command` is what was started, `output` the end of what it said, `reason` how a run says that it ended. "waiting" is for answers; a job that was "stopped" continues when it is started again. */
export interface JobView {
  "kind": "plan" | "run";
  "status": "running" | "done" | "waiting" | "failed" | "stopped";
  "command": string;
  "by": string;
  "started": number;
  "ended": number | null;
  "exit_code": number | null;
  "reason": string;
  "output": string;
}

/** A task that would not be started, and why. */
export interface LeftTask {
  "task": string;
  "reason": string;
}

/** Records in order. Give the number of the last record as `after` for the next page. */
export interface LinePage {
  "records": (LineView)[];
  "last": number;
  "status": "queued" | "running" | "waiting" | "ended" | "failed" | "cancelled" | "interrupted";
}

/** A record of a run as it is stored: see docs/journal-format.md. */
export interface LineView {
  "n": number;
  "kind": string;
  "at": number;
  "path": string;
  "step": number;
  "data": Record<string, unknown>;
}

/** What the worker of a task asked, did and saw, oldest first. Give `next` as `start` for the entries behind them; `run` of an entry is the run in the journal that has all of it. */
export interface LogPage {
  "entries": (LogView)[];
  "total": number;
  "next": number | null;
}

/** An entry of the log of a task. */
export interface LogView {
  "at": number;
  "kind": string;
  "text": string;
  "ok": boolean;
  "seconds": number;
  "usage": Usage | null;
  "run": string;
  "detail": string;
}

/** The token of a link. */
export interface LoginBody {
  "token": string;
}

/** The token for all later requests, and the time when it expires, in seconds since 1970. */
export interface LoginView {
  "token": string;
  "expires": number;
}

/** `everywhere` logs out all browsers, and voids all links. */
export interface LogoutBody {
  "everywhere"?: boolean;
}

/** The token is not valid any more. */
export interface LogoutView {
  "logged_out": boolean;
}

/** An empty object, or nothing. */
export interface NoBody {
}

/** A node of two runs. `state` says whether it is the same or differs, or which run alone has it. `path` is the path of its graph, with visits in place of steps. `visit` counts nodes of the class there from 1. `a` and `b` are the places of the node. */
export interface NodePair {
  "path": string;
  "node": string;
  "visit": number;
  "state": "same" | "differs" | "a" | "b";
  "a": string;
  "b": string;
  "fields": (FieldPair)[];
}

/** The plan: the tasks that wait for approval, those among them that no test proves, which tasks would be worked on at the same time, and the longest chain of tasks. `boxes` and `edges` are a picture of all tasks, each after those that it depends on; `task_schema` is the JSON schema of a task to add. */
export interface PlanView {
  "unapproved": (string)[];
  "without_tests": (string)[];
  "rounds": ((string)[])[];
  "critical_path": (string)[];
  "left": (LeftTask)[];
  "boxes": (BoxView)[];
  "edges": (EdgeView)[];
  "task_schema": Record<string, unknown>;
}

/** A task as a plan or a person describes it. `depends_on` names other tasks by their keys. */
export interface PlannedTask {
  /** short and unique, as add-login */
  "key": string;
  "title": string;
  "description"?: string;
  /** backend, frontend, test, docs or another worker */
  "kind"?: string;
  /** when it is done */
  "criteria"?: (string)[];
  /** files that it likely changes, which exist */
  "files"?: (string)[];
  /** files that it creates */
  "new_files"?: (string)[];
  "depends_on"?: (string)[];
  /** higher ones are started first */
  "priority"?: number;
  /** tests that exist and must pass then: their ids, files or groups. Others that fail already may still fail; without any, all tests must pass */
  "tests"?: (string)[];
  /** what shows that it is done. new-tests: at least one new test that fails without the change. named-tests: those of `tests`, for a refactoring or to fix tests that fail. failing-tests: it writes acceptance tests of its feature, which load and fail. none: nothing can be tested, as in documentation; a person has to approve that */
  "proof"?: "new-tests" | "named-tests" | "failing-tests" | "none";
  /** what it may do to tests that exist: add to them; change-tests: also change or remove them; change-test-setup: also change how tests are run */
  "may"?: "add-tests" | "change-tests" | "change-test-setup";
  /** the feature that it is a part of, as login: its tasks reach the team's branch together */
  "feature"?: string;
}

/** Planning that waits for answers, the newest first. */
export interface PlanningPage {
  "plans": (PlanningView)[];
}

/** A question about a goal. `answered` is an answer that planning has not used yet. */
export interface PlanningQuestion {
  "number": number;
  "question": string;
  "answered": boolean;
}

/** Planning that waits for answers: the goal and the questions. The run has the same id in the journal of the agents' runs. */
export interface PlanningView {
  "plan": string;
  "goal": string;
  "since": number;
  "questions": (PlanningQuestion)[];
}

/** Why a request was refused. `type` is the code of the error, which `docs/errors.md` explains; `place` is a field of the request or of a run, and `fix` is what to do. */
export interface ProblemDetails {
  "type": string;
  "title": string;
  "status": number;
  "detail": string;
  "place": string | null;
  "fix": string | null;
  "run_id": string | null;
  "errors": (InputFault)[];
  "answered_by": string | null;
  "answer": unknown;
}

/** A problem that the proof of a graph found. */
export interface ProblemView {
  "severity": string;
  "code": string;
  "place": string;
  "message": string;
  "fix": string;
}

/** A message of a prompt. */
export interface PromptMessage {
  "role": string;
  "text": string;
}

/** All prompts that a graph can send. */
export interface PromptPage {
  "prompts": (PromptView)[];
}

/** A prompt that a graph can send, with sample values. The LM fills the node `target`, or chooses among `options`. `by_body` marks a prompt of a body that is written in code. Without an `answer_schema` the answer is plain text. */
export interface PromptView {
  "source": string | null;
  "target": string | null;
  "options": (string)[];
  "by_body": boolean;
  "system": string;
  "messages": (PromptMessage)[];
  "tools": (string)[];
  "answer_schema": Record<string, unknown> | null;
}

/** The `answer` to a question, or `decide`: the LLM decides, and notes what it assumes. */
export interface QuestionBody {
  "answer"?: string | null;
  "decide"?: boolean;
}

/** Why runs cannot be started or answered, and the command that changes it. */
export interface ReadOnly {
  "reason": string;
  "command": string;
}

/** The outcome of a replay: the "same" path, something that "differs", or "unknown" if values are missing or the recording ends early. `why` explains the outcome, and `diff` has both texts, cut if they are long. `trace` has the first 1,000 nodes. */
export interface ReplayView {
  "outcome": "same" | "differs" | "unknown";
  "trace": (string)[];
  "code": string;
  "why": string;
  "diff": string;
}

/** What a person asked for that no run has taken yet: of a task, or of the whole run. */
export interface RequestView {
  "id": number;
  "action": "stop" | "kill" | "pause" | "resume" | "retry" | "skip";
  "task": string | null;
}

/** `given` has the secrets that no journal stores, such as `{"Login.token": "…"}`. */
export interface ResumeBody {
  "given"?: Record<string, unknown>;
}

/** An answer to an interrupt, by its id. */
export interface ResumeEntry {
  "interruptId": string;
  "status": "resolved" | "cancelled";
  "payload"?: unknown;
}

/** What a reviewer says about the work of a task, which passes its tests. */
export interface Review {
  /** the commit of the task's branch that was reviewed */
  "commit": string;
  /** of the content of the work */
  "digest": string;
  "summary": string;
  "findings": (Finding)[];
  /** why there is no review, where the reviewer failed */
  "error": string;
}

/** The reviews of the work of a task, oldest first. */
export interface ReviewPage {
  "reviews": (Review)[];
}

/** A tool by its name or its place, such as `Reply.calls(refund)`. */
export interface RevokeBody {
  "tool": string;
}

/** A node class in the picture of a run: how often the run has visited it, and whether the run is there now. `ends` says whether a run may end there. */
export interface RunBoxView {
  "node": string;
  "x": number;
  "y": number;
  "width": number;
  "height": number;
  "visits": number;
  "is_current": boolean;
  "is_start": boolean;
  "ends": boolean;
  "fields": (RunFieldView)[];
}

/** How many runs there are, by status and by graph. Without `is_all`, only the newest runs of a long journal are counted. */
export interface RunCounts {
  "total": number;
  "statuses": Record<string, number>;
  "graphs": Record<string, number>;
  "is_all": boolean;
}

/** A run: its row, its usage and its end. `end` is the class of the last node and `result` that node, if the run has ended and its graph is served; `no_result` says why the result cannot be read. `failure` says why the run failed. `forks` are the newest forks of the run. `in_progress` says whether this server works on the run. */
export interface RunDetails {
  "run_id": string;
  "graph": string;
  "status": "queued" | "running" | "waiting" | "ended" | "failed" | "cancelled" | "interrupted";
  "preview": string;
  "started": number;
  "updated": number;
  "seconds": number;
  "error": string;
  "parent": string | null;
  "thread": string | null;
  "metadata": Record<string, unknown>;
  "waiting": (WaitingGate)[];
  "waiting_count": number;
  "node": string;
  "steps": number | null;
  "calls": number | null;
  "tokens": number | null;
  "cost": number | null;
  "change": number;
  "usage": UsageView | null;
  "end": string | null;
  "result": unknown;
  "no_result": string;
  "failure": FailureView | null;
  "forks": (string)[];
  "in_progress": boolean;
}

/** An edge in the picture of a run: how often the run has taken it. */
export interface RunEdgeView {
  "source": string;
  "target": string;
  "chosen_by": string;
  "line": ([number, number])[];
  "taken": number;
}

/** A field of a node class: the kind of its source, and the graph that runs for it, if there is one. */
export interface RunFieldView {
  "name": string;
  "type": string;
  "kind": string;
  "required": boolean;
  "graph": string | null;
}

/** The graph at a path of a run, with the path of the run so far. `classes` says which types are drawn: those stored with the run ("run"), or for a run without types, those of the served graph ("served"). `problems` are known if the graph is served with the types of the run. `inner_total` counts the graphs that ran inside. */
export interface RunGraphView {
  "run_id": string;
  "graph": string;
  "path": string;
  "status": "queued" | "running" | "waiting" | "ended" | "failed" | "cancelled" | "interrupted";
  "classes": string;
  "boxes": (RunBoxView)[];
  "edges": (RunEdgeView)[];
  "problems": (ProblemView)[];
  "inner": (InnerRunView)[];
  "inner_total": number;
}

/** Runs, the newest first. Give `next` as `before` for the next page, and `change` to the feed of runs to follow later changes. */
export interface RunPage {
  "runs": (RunRow)[];
  "next": string | null;
  "change": number;
}

/** A run in a list. Long texts in its `error` and `metadata` are cut: `/runs/R` has all of them. A `cost` of null is unknown. `change` is the number of its last change: give the greatest to the feed of runs to follow the list. `waiting` has the first five questions of `waiting_count`: `/runs/R/gates` has all of them. `preview` has the first words of the start, or the changed fields of a fork; the feed of runs leaves it out. */
export interface RunRow {
  "run_id": string;
  "graph": string;
  "status": "queued" | "running" | "waiting" | "ended" | "failed" | "cancelled" | "interrupted";
  "preview": string;
  "started": number;
  "updated": number;
  "seconds": number;
  "error": string;
  "parent": string | null;
  "thread": string | null;
  "metadata": Record<string, unknown>;
  "waiting": (WaitingGate)[];
  "waiting_count": number;
  "node": string;
  "steps": number | null;
  "calls": number | null;
  "tokens": number | null;
  "cost": number | null;
  "change": number;
}

/** What a run has spent or reserved, of how much: `calls`, `tokens` and `cost` of its budget. A limit of None is none. */
export interface RunSpending {
  "spent": Spent;
  "calls": number | null;
  "tokens": number | null;
  "cost": number | null;
}

export type Span = [number, number];

/** What may be spent; `cost` is in US dollars. */
export interface SpendingLimits {
  "calls"?: number | null;
  "tokens"?: number | null;
  "cost"?: number | null;
}

/** What was spent, with what is reserved for calls in progress and for those that a killed process never finished. A `cost` of None is unknown; with `unpriced` calls, whose cost is unknown, it is the least. */
export interface Spent {
  "calls": number;
  "tokens": number;
  "cost": number | null;
  "unpriced": number;
}

/** A run to start. With a `run_id`, a repeated request starts no second run. With a `thread` the run is the next turn of a conversation; `busy` says what to do while another turn is in progress. The name of the user is added to the `metadata` as `by`. */
export interface StartBody {
  "run_id": string | null;
  /** the fields of the start node */
  "start": unknown;
  "thread": string | null;
  "busy": "refuse" | "wait" | "cancel";
  "metadata": Record<string, unknown>;
}

/** Nodes in order, and how many there are. */
export interface StepPage {
  "steps": (StepView)[];
  "total": number;
  "paths": (string)[];
}

/** A node of a run, and how it came about. */
export interface StepView {
  "path": string;
  "step": number;
  "node": string;
  "whole": boolean;
  "chosen_among": (string)[];
  "fields": (FieldView)[];
  "usage": UsageView;
  "forked_from": string;
  "changed": (string)[];
}

/** A graph that the page can run. `message` is the field of the start node that takes a message, if the graph can chat, and `files` are its fields for images and documents. `replies` has the text fields of the ends: the reply of a turn. `run_command` starts a run in a terminal; append the fields of the start node. */
export interface StudioGraph {
  "name": string;
  "start": string;
  "ends": (string)[];
  "about": string;
  "message": string | null;
  "replies": Record<string, string>;
  "run_command": string;
  "files": (string)[];
}

/** A team. `runs` is the path of the API for the runs of its agents: the API of the page, or a read-only API with the same endpoints and feeds. */
export interface StudioTeam {
  "name": string;
  "runs": string;
}

/** The data that the page loads first. Runs of graphs that are not in `graphs` are read-only; `serve_command` serves more graphs. `lm` names the LM of new runs, if there is one. */
export interface StudioView {
  "bae": string;
  "user": string;
  "can": ("read" | "run" | "answer" | "edit" | "admin")[];
  "journal": string;
  "graphs": (StudioGraph)[];
  "teams": (StudioTeam)[];
  "lm": string | null;
  "serve_command": string;
  "read_only": ReadOnly | null;
}

/** A task of a project, with where it is. */
export interface Task {
  /** short and unique, as add-login */
  "key": string;
  "title": string;
  "description": string;
  /** backend, frontend, test, docs or another worker */
  "kind": string;
  /** when it is done */
  "criteria": (string)[];
  /** files that it likely changes, which exist */
  "files": (string)[];
  /** files that it creates */
  "new_files": (string)[];
  "depends_on": (string)[];
  /** higher ones are started first */
  "priority": number;
  /** tests that exist and must pass then: their ids, files or groups. Others that fail already may still fail; without any, all tests must pass */
  "tests": (string)[];
  /** what shows that it is done. new-tests: at least one new test that fails without the change. named-tests: those of `tests`, for a refactoring or to fix tests that fail. failing-tests: it writes acceptance tests of its feature, which load and fail. none: nothing can be tested, as in documentation; a person has to approve that */
  "proof": "new-tests" | "named-tests" | "failing-tests" | "none";
  /** what it may do to tests that exist: add to them; change-tests: also change or remove them; change-test-setup: also change how tests are run */
  "may": "add-tests" | "change-tests" | "change-test-setup";
  /** the feature that it is a part of, as login: its tasks reach the team's branch together */
  "feature": string;
  "id": number;
  "project_id": number;
  /** whether it may run */
  "approved": boolean;
  "status": TaskStatus;
  /** why it is blocked, failed, skipped or cancelled */
  "reason": string;
  /** the commit its work started from */
  "base": string | null;
  /** the merged commit */
  "commit": string | null;
  /** since it was planned, or a person retried it */
  "failures": number;
  /** what a person said for the next try */
  "notes": (string)[];
}

/** A task, with its attempts, questions and what it has spent. */
export interface TaskDetails {
  "task": Task;
  "spent": Spent;
  "attempts": (AttemptRow)[];
  "blockers": (Blocker)[];
  "reviews": number;
}

/** Tasks in the order in which they were added. Give `next` as `after` for those behind them. */
export interface TaskPage {
  "tasks": (TaskRow)[];
  "next": number | null;
}

/** A task in a list. `since` is when it got its status, in seconds since 1970. `attempts` is how many attempts have ended, and `outcome` how the last did. `outcomes` is how many tests had each outcome when they last ran, `question` what the task asks a person. A task that is `paused` starts when a person resumes it. `doing` is what its agent does now; null where nobody works on the task. */
export interface TaskRow {
  "id": number;
  "key": string;
  "title": string;
  "kind": string;
  "status": TaskStatus;
  "reason": string;
  "approved": boolean;
  "depends_on": (string)[];
  "priority": number;
  "proof": "new-tests" | "named-tests" | "failing-tests" | "none";
  "feature": string;
  "commit": string | null;
  "failures": number;
  "spent": Spent;
  "since": number;
  "attempts": number;
  "outcome": string;
  "outcomes": Record<string, number> | null;
  "question": string;
  "paused": boolean;
  "doing": Doing | null;
}

/** Where a task is. Completed means merged, with tests that prove it. Merged means merged without such tests, as a person approved. Staged means merged into the branch of its feature, which is not in the team's branch yet. */
export type TaskStatus = "pending" | "ready" | "in_progress" | "blocked" | "staged" | "completed" | "merged" | "failed" | "cancelled" | "skipped";

/** A team, with its agents. `goal` is the one that was planned last, `requirements` the document of its planning, `sandbox` what keeps the commands of agents from the rest of this machine, and `requests` what was asked for and not taken yet. `run` is what the last run has spent, of its budget. Without a run in progress no agent works, whatever its status says. */
export interface TeamDetails {
  "team": string;
  "branch": string;
  "running": boolean;
  "paused": boolean;
  "counts": Record<string, number>;
  "blockers": number;
  "unapproved": number;
  "spent": Spent;
  "last": number;
  "root": string;
  "goal": string;
  "sandbox": string;
  "requirements": string;
  "requests": (RequestView)[];
  "run": RunSpending | null;
  "agents": (AgentInfo)[];
}

/** The teams that the user sees. */
export interface TeamPage {
  "teams": (TeamRow)[];
}

/** A team: how many tasks are in each status, and what waits for a person. `last` is the number of its last event: follow the feed `team/NAME` after it. */
export interface TeamRow {
  "team": string;
  "branch": string;
  "running": boolean;
  "paused": boolean;
  "counts": Record<string, number>;
  "blockers": number;
  "unapproved": number;
  "spent": Spent;
  "last": number;
}

/** How to run the approved tasks, as the options of `bae team run`. With `wait` the run stays while tasks wait for answers. `claude-code` and `codex` are programs of this machine, which need `allow_network`. */
export interface TeamRunBody {
  "max_agents"?: number;
  "budget"?: SpendingLimits | null;
  "task_budget"?: SpendingLimits | null;
  "worker"?: "auto" | "loop" | "oneshot" | "claude-code" | "codex";
  "allow_network"?: boolean;
  "review"?: "advise" | "require" | "off";
  "retries"?: number;
  "timeout"?: number | null;
  "wait"?: boolean;
  "lm"?: string | null;
}

/** One test of a run of tests. */
export interface TestCase {
  "id": string;
  "outcome": "passed" | "failed" | "skipped";
  "message": string;
}

/** What a run of the project's tests has shown. */
export interface TestReport {
  "command": (string)[];
  /** None where it was ended: time, output, memory */
  "exit_code": number | null;
  "cases": (TestCase)[];
  "output": string;
  "seconds": number;
  /** the sandbox that it ran in */
  "protection": string;
  /** why there is no verdict, or a bad one */
  "problem": string;
  /** whether it wrote a report that can be read */
  "reported": boolean;
  /** exit, or the limit that ended it */
  "ended_by": string;
  /** tests that failed in a run before this one, and pass in this one */
  "flaky": (string)[];
}

/** What tests have shown for a task: in its last attempt, and in the merged tree, oldest first. `flaky` tests failed and then passed with the same work. */
export interface TestsView {
  "attempt": number | null;
  "report": TestReport | null;
  "merged": (TestReport)[];
  "flaky": (string)[];
}

/** Turns of a thread, the oldest first, and how many there are. Give the run of the first turn as `before` for earlier turns. */
export interface ThreadDetails {
  "thread": string;
  "graph": string;
  "turns": (TurnView)[];
  "total": number;
}

/** Threads, the newest first. */
export interface ThreadPage {
  "threads": (ThreadRow)[];
  "next": string | null;
}

/** A thread in a list, with its newest turn. `text` is the beginning of the message of that turn, if the graph is served. */
export interface ThreadRow {
  "thread": string;
  "graph": string;
  "run_id": string;
  "text": string;
  "status": "queued" | "running" | "waiting" | "ended" | "failed" | "cancelled" | "interrupted";
  "updated": number;
}

/** The work of a run over time. `lives` are the times when a process worked on the run. `critical_seconds` is the duration of the critical path, without waiting for people, and `longest` has the places that took most of it. `index` is the number of the first bar of the requested place. */
export interface TimelineView {
  "status": "queued" | "running" | "waiting" | "ended" | "failed" | "cancelled" | "interrupted";
  "start": number;
  "end": number;
  "lives": (Span)[];
  "bars": (BarView)[];
  "total": number;
  "seconds": number;
  "critical_seconds": number;
  "longest": (string)[];
  "is_exact": boolean;
  "index": number | null;
}

/** A tool that the LM may call before it fills a node. */
export interface ToolView {
  "node": string;
  "name": string;
  "description": string;
  "arguments": Record<string, unknown>;
}

/** A tool call of a turn, and its outcome. `person` says whether a person "approved" the call, or "answered" in its place. */
export interface TurnCall {
  "name": string;
  "arguments": Value;
  "state": string;
  "result": Value | null;
  "error": string;
  "seconds": number;
  "place": string;
  "person": string;
}

/** The details of a turn: the fields of its first and last node, its tool calls, and the thoughts of the model, if the journal keeps them. */
export interface TurnDetails {
  "run_id": string;
  "start": Record<string, Value>;
  "end": string | null;
  "reply": Record<string, Value>;
  "calls": (TurnCall)[];
  "thoughts": (string)[];
}

/** A turn: the message of the user and the reply. `is_shown` says whether later turns see it. `replaces` is the turn that this turn replaces as a fork. */
export interface TurnView {
  "run_id": string;
  "user": string;
  "reply": string;
  "status": "queued" | "running" | "waiting" | "ended" | "failed" | "cancelled" | "interrupted";
  "started": number;
  "updated": number;
  "is_shown": boolean;
  "replaces": string | null;
  "waiting": (WaitingGate)[];
  "error": string;
  "metadata": Record<string, unknown>;
}

/** Calls, tokens, cost and time; add two with `+`. A cost of None is unknown, not zero. `calls` counts the requests that were sent, including failed requests. `attempts` counts the answers: a node filled at the second try has two. `seconds` is the time spent waiting for answers, added up over calls that ran at the same time. `models` names the models that answered. */
export interface Usage {
  "calls": number;
  "input_tokens": number;
  "output_tokens": number;
  "cached_tokens": number;
  "cost": number | null;
  "attempts": number;
  "seconds": number;
  "models": (string)[];
}

/** The usage of LM calls. A `cost` of null is unknown. Input tokens include cached tokens. */
export interface UsageView {
  "calls": number;
  "attempts": number;
  "input_tokens": number;
  "output_tokens": number;
  "cached_tokens": number;
  "cost": number | null;
  "seconds": number;
  "models": (string)[];
}

/** A value as JSON. For a long value, `text` has the beginning of its JSON and `size` the number of its characters. `kept` says why there is no value. */
export interface Value {
  "kept": string;
  "value": unknown;
  "text": string | null;
  "size": number | null;
}

/** A question of a waiting run in a list. `answered` says that the run has an answer that it has not used yet. */
export interface WaitingGate {
  "gate": string;
  "place": string;
  "question": string;
  "deadline": number | null;
  "answered": boolean;
}

/** The source of a value, as a `Provenance` without its empty parts. */
export interface Why {
  "provenance": Record<string, unknown>;
}
