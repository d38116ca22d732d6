// Written by tools/studio_types.py. Do not edit. The OpenAPI document describes the types.

export interface ActionBody {
  "action": "stop" | "kill" | "pause" | "resume" | "retry" | "skip" | "note";
  "task"?: string | null;
  "text"?: string;
}

export interface ActionView {
  "action": string;
  "task": string | null;
  "running": boolean;
  "request": number | null;
}

export interface AgentInfo {
  "id": string;
  "kind": string;
  "status": "idle" | "working" | "retired";
  "task_id": number | null;
  "completed": number;
  "failed": number;
}

export interface AnswerBody {
  "gate": string;
  "value"?: unknown;
  "decision"?: "approve" | "edit" | "refuse" | null;
  "arguments"?: Record<string, unknown> | null;
  "reason"?: string;
  "scope"?: "call" | "run" | "thread";
}

export interface AnsweredView {
  "plan": string;
  "goal": string;
  "since": number;
  "questions": (PlanningQuestion)[];
  "continues": boolean;
}

export interface ApproveBody {
  "tasks"?: (string)[] | null;
  "without_tests"?: boolean;
}

export interface ApprovedView {
  "approved": number;
  "plan": PlanView;
}

export interface AttemptPage {
  "attempts": (AttemptRow)[];
}

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

export interface Blocker {
  "id": number;
  "task_id": number;
  "question": string;
  "answer": string | null;
  "digest": string | null;
  "answered_by": string | null;
}

export interface BlockerBody {
  "answer": string;
}

export interface BlockerPage {
  "blockers": (BlockerView)[];
}

export interface BlockerView {
  "id": number;
  "task_id": number;
  "question": string;
  "answer": string | null;
  "digest": string | null;
  "answered_by": string | null;
  "team": string;
  "task": string;
  "since": number;
}

export interface BoxView {
  "node": string;
  "x": number;
  "y": number;
  "width": number;
  "height": number;
}

export interface BudgetView {
  "scope": string;
  "limits": (LimitView)[];
}

export interface CallPage {
  "calls": (CallView)[];
  "total": number;
}

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

export interface ChangedLines {
  "old": number;
  "new": number;
  "heading": string;
  "lines": (string)[];
}

export interface ClassFieldView {
  "name": string;
  "type": string;
  "source": string;
  "origin": string;
  "description": string;
  "required": boolean;
}

export interface ClassView {
  "node": string;
  "about": string;
  "ending": string;
  "chosen_by": string;
  "lm": string;
  "fields": (ClassFieldView)[];
}

export interface ComparisonView {
  "a": RunRow;
  "b": RunRow;
  "first": string | null;
  "nodes": (NodePair)[];
  "total": number;
}

export interface DiffView {
  "files": (ChangedFile)[];
}

export interface Doing {
  "text": string;
  "at": number;
  "run": string;
}

export interface EdgeView {
  "source": string;
  "target": string;
  "chosen_by": string;
  "line": ([number, number])[];
}

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

export interface FailureView {
  "type": string;
  "code": string | null;
  "message": string;
  "place": string;
  "error": string;
  "path": string | null;
  "fix": string | null;
}

export interface FieldPair {
  "name": string;
  "a": FieldView | null;
  "b": FieldView | null;
}

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

export interface FileView {
  "hash": string;
  "type": string;
  "size": number;
  "name": string;
}

export interface Finding {
  "kind": FindingKind;
  "file": string;
  "line": number | null;
  "code": string;
  "text": string;
  "blocking": boolean;
}

export type FindingKind = "scope-creep" | "hard-coded-answer" | "weakened-check" | "missing-case" | "wrong-behavior" | "other";

export interface ForkFormView {
  "run_id": string;
  "at": number;
  "node": string;
  "fields": (EditableField)[];
}

export interface GatePage {
  "gates": (GateView)[];
  "total": number;
}

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

export interface GoalBody {
  "goal": string;
  "decide"?: boolean;
  "acceptance"?: boolean;
  "lm"?: string | null;
}

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

export interface InboxPage {
  "gates": (GateView)[];
  "next": number | null;
  "more": Record<string, number>;
}

export interface InnerRunView {
  "path": string;
  "graph": string;
  "node": string;
  "step": number;
  "field": string;
  "nodes": number;
  "outcome": string;
}

export interface InputFault {
  "loc": (string | number)[];
  "msg": string;
}

export interface JobPage {
  "jobs": (JobView)[];
  "change": number;
}

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

export interface LeftTask {
  "task": string;
  "reason": string;
}

export interface LimitView {
  "name": "calls" | "tokens" | "cost" | "seconds";
  "spent": number | null;
  "limit": number;
}

export interface LinePage {
  "records": (LineView)[];
  "last": number;
  "status": "queued" | "running" | "waiting" | "ended" | "failed" | "cancelled" | "interrupted";
}

export interface LineView {
  "n": number;
  "kind": string;
  "at": number;
  "path": string;
  "step": number;
  "data": Record<string, unknown>;
}

export interface LogPage {
  "entries": (LogView)[];
  "total": number;
  "next": number | null;
}

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

export interface NodePair {
  "path": string;
  "node": string;
  "visit": number;
  "state": "same" | "differs" | "a" | "b";
  "a": string;
  "b": string;
  "fields": (FieldPair)[];
}

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

export interface PlanningPage {
  "plans": (PlanningView)[];
}

export interface PlanningQuestion {
  "number": number;
  "question": string;
  "answered": boolean;
}

export interface PlanningView {
  "plan": string;
  "goal": string;
  "since": number;
  "questions": (PlanningQuestion)[];
}

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

export interface ProblemView {
  "severity": string;
  "code": string;
  "place": string;
  "message": string;
  "fix": string;
}

export interface PromptMessage {
  "role": string;
  "text": string;
}

export interface PromptPage {
  "prompts": (PromptView)[];
}

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

export interface QuestionBody {
  "answer"?: string | null;
  "decide"?: boolean;
}

export interface ReadOnly {
  "reason": string;
  "command": string;
}

export interface ReplayView {
  "outcome": "same" | "differs" | "unknown";
  "trace": (string)[];
  "code": string;
  "why": string;
  "diff": string;
}

export interface RequestView {
  "id": number;
  "action": "stop" | "kill" | "pause" | "resume" | "retry" | "skip";
  "task": string | null;
}

export interface Review {
  "commit": string;
  "digest": string;
  "summary": string;
  "findings": (Finding)[];
  "error": string;
}

export interface ReviewPage {
  "reviews": (Review)[];
}

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

export interface RunCounts {
  "total": number;
  "statuses": Record<string, number>;
  "graphs": Record<string, number>;
  "is_all": boolean;
}

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
  "max_iters": number;
  "budgets": (BudgetView)[];
}

export interface RunEdgeView {
  "source": string;
  "target": string;
  "chosen_by": string;
  "line": ([number, number])[];
  "taken": number;
}

export interface RunFieldView {
  "name": string;
  "type": string;
  "kind": string;
  "required": boolean;
  "graph": string | null;
}

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

export interface RunPage {
  "runs": (RunRow)[];
  "next": string | null;
  "change": number;
}

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

export interface RunSpending {
  "spent": Spent;
  "calls": number | null;
  "tokens": number | null;
  "cost": number | null;
}

export type Span = [number, number];

export interface SpendingLimits {
  "calls"?: number | null;
  "tokens"?: number | null;
  "cost"?: number | null;
}

export interface Spent {
  "calls": number;
  "tokens": number;
  "cost": number | null;
  "unpriced": number;
}

export interface StepPage {
  "steps": (StepView)[];
  "total": number;
  "paths": (string)[];
}

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

export interface StudioTeam {
  "name": string;
  "runs": string;
}

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

export interface Task {
  "key": string;
  "title": string;
  "description": string;
  "kind": string;
  "criteria": (string)[];
  "files": (string)[];
  "new_files": (string)[];
  "depends_on": (string)[];
  "priority": number;
  "tests": (string)[];
  "proof": "new-tests" | "named-tests" | "failing-tests" | "none";
  "may": "add-tests" | "change-tests" | "change-test-setup";
  "feature": string;
  "id": number;
  "project_id": number;
  "approved": boolean;
  "status": TaskStatus;
  "reason": string;
  "base": string | null;
  "commit": string | null;
  "failures": number;
  "notes": (string)[];
}

export interface TaskDetails {
  "task": Task;
  "spent": Spent;
  "attempts": (AttemptRow)[];
  "blockers": (Blocker)[];
  "reviews": number;
}

export interface TaskPage {
  "tasks": (TaskRow)[];
  "next": number | null;
}

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

export type TaskStatus = "pending" | "ready" | "in_progress" | "blocked" | "staged" | "completed" | "merged" | "failed" | "cancelled" | "skipped";

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

export interface TestCase {
  "id": string;
  "outcome": "passed" | "failed" | "skipped";
  "message": string;
}

export interface TestReport {
  "command": (string)[];
  "exit_code": number | null;
  "cases": (TestCase)[];
  "output": string;
  "seconds": number;
  "protection": string;
  "problem": string;
  "reported": boolean;
  "ended_by": string;
  "flaky": (string)[];
}

export interface TestsView {
  "attempt": number | null;
  "report": TestReport | null;
  "merged": (TestReport)[];
  "flaky": (string)[];
}

export interface ThreadDetails {
  "thread": string;
  "graph": string;
  "turns": (TurnView)[];
  "total": number;
}

export interface ThreadPage {
  "threads": (ThreadRow)[];
  "next": string | null;
}

export interface ThreadRow {
  "thread": string;
  "graph": string;
  "run_id": string;
  "text": string;
  "status": "queued" | "running" | "waiting" | "ended" | "failed" | "cancelled" | "interrupted";
  "updated": number;
}

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

export interface ToolView {
  "node": string;
  "name": string;
  "description": string;
  "arguments": Record<string, unknown>;
}

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

export interface TurnDetails {
  "run_id": string;
  "start": Record<string, Value>;
  "end": string | null;
  "reply": Record<string, Value>;
  "calls": (TurnCall)[];
  "thoughts": (string)[];
}

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

export interface Value {
  "kept": string;
  "value": unknown;
  "text": string | null;
  "size": number | null;
}

export interface WaitingGate {
  "gate": string;
  "place": string;
  "question": string;
  "deadline": number | null;
  "answered": boolean;
}

export interface Why {
  "provenance": Record<string, unknown>;
}
