// Where a task is on the board, and what may be asked of it.

import type { ActionBody, TaskRow } from "../../api/types.ts";

export type Column = "todo" | "working" | "needs" | "failed" | "done";

export const COLUMNS: readonly (readonly [Column, string])[] = [
  ["todo", "To do"],
  ["working", "Working"],
  ["needs", "Needs you"],
  ["failed", "Failed"],
  ["done", "Done"],
];

type Placed = Pick<TaskRow, "status" | "question">;

/** The column of a task. A task that waits for another one needs nobody. */
export function columnOf(task: Placed): Column {
  if (task.question !== "") return "needs";
  switch (task.status) {
    case "in_progress":
      return "working";
    case "failed":
    case "cancelled":
      return "failed";
    case "completed":
    case "merged":
    case "staged":
    case "skipped":
      return "done";
    default:
      return "todo";
  }
}

/** Whether the question of a task is answered, and the next run will continue the task. */
export function isAnswered(task: Pick<TaskRow, "status" | "question" | "paused" | "depends_on">, tasks: readonly Pick<TaskRow, "key" | "status" | "question">[]): boolean {
  if (task.status !== "blocked" || task.question !== "" || task.paused) return false;
  return tasks.every((each) => !task.depends_on.includes(each.key) || columnOf(each) === "done");
}

/** The status as it is shown: without a run, nobody works on a task that was left in progress. */
export function shownStatus(task: Pick<TaskRow, "status" | "question" | "paused">, isRunning: boolean): string {
  if (task.question !== "" && task.status !== "in_progress") return "waiting";
  if (task.status === "in_progress" && !isRunning) return "interrupted";
  if (task.paused && (task.status === "pending" || task.status === "ready" || task.status === "blocked")) return "paused";
  return task.status;
}

/** The number of the attempt that a task in progress is at: one that passed is still to be merged. */
export function attemptOf(task: Pick<TaskRow, "attempts" | "outcome">): number {
  return task.outcome === "passed" ? task.attempts : task.attempts + 1;
}

export type Action = ActionBody["action"];

export interface Offer {
  action: Exclude<Action, "note">;
  label: string;
  /** What a person is asked before it is done; nothing where it can be taken back. */
  warning?: string;
}

const STOP: Offer = { action: "stop", label: "Stop", warning: "The agent stops after the attempt that is in progress. The task is cancelled; its work stays on its branch." };
const KILL: Offer = { action: "kill", label: "Kill", warning: "The agent is ended now, in the middle of its work. Work that is not merged stays on its branch." };
const SKIP: Offer = { action: "skip", label: "Skip", warning: "The team leaves this task out. Tasks that depend on it continue." };
const RETRY: Offer = { action: "retry", label: "Retry" };
const PAUSE: Offer = { action: "pause", label: "Pause" };
const RESUME: Offer = { action: "resume", label: "Resume" };

/** What a person may ask of a task, the usual first. */
export function offersOf(task: Pick<TaskRow, "status" | "paused">): Offer[] {
  const hold = task.paused ? RESUME : PAUSE;
  switch (task.status) {
    case "in_progress":
      return [hold, STOP, KILL, SKIP];
    case "failed":
    case "cancelled":
      return [RETRY, SKIP];
    case "blocked":
      return task.paused ? [RESUME, RETRY, SKIP] : [RETRY, SKIP];
    case "skipped":
      return [RETRY];
    case "pending":
    case "ready":
      return [hold, SKIP];
    default:
      return [];
  }
}

/** How many tests had each outcome, as "3 passed, 1 failed". */
export function countsText(counts: Readonly<Record<string, number>> | null): string {
  if (counts === null) return "";
  const order = ["failed", "passed", "skipped"];
  const named = Object.entries(counts).filter(([, count]) => count > 0);
  named.sort(([a], [b]) => (order.indexOf(a) + 9) % 9 - (order.indexOf(b) + 9) % 9);
  return named.map(([name, count]) => `${count} ${name}`).join(", ") || "no tests";
}

/** What was spent, where a part may have no known price. */
export function spentCost(spent: { cost: number | null; unpriced: number }, format: (cost: number | null) => string): string {
  if (spent.cost === null) return "unknown";
  return spent.unpriced > 0 ? `at least ${format(spent.cost)}` : format(spent.cost);
}
