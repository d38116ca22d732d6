// The names of questions, sending answers, and answers in words.

import { api, ApiProblem, pathOf } from "../api/client.ts";
import { client } from "../api/queries.ts";
import type { AnswerBody, ApproveBody, BlockerBody, GateView, QuestionBody, Value } from "../api/types.ts";
import { isObject } from "../forms/schema.ts";

/** A question among all of them. */
export function gateKey(gate: Pick<GateView, "run_id" | "gate">): string {
  return gate.run_id === "" ? gate.gate : `${gate.run_id} ${gate.gate}`;
}

/** Who answered a question, and what. An empty `by` is unknown. */
export interface Answered {
  by: string;
  said: string;
}

/** Send an answer. */
export async function sendAnswer(gate: GateView, body: Omit<AnswerBody, "gate"> | BlockerBody | QuestionBody | ApproveBody): Promise<void> {
  if (gate.run_id === "") await api(`/${gate.gate}`, { method: "POST", body });
  else await api(pathOf`/runs/${gate.run_id}/answers`, { method: "POST", body: { ...body, gate: gate.gate } });
}

/** Have what shows a question read again. */
export function refreshAfterAnswer(gate: GateView): void {
  void client.invalidateQueries({ queryKey: ["inbox"] });
  if (gate.run_id !== "") void client.invalidateQueries({ queryKey: ["run", "", gate.run_id] });
  if (gate.thread !== null) void client.invalidateQueries({ queryKey: ["thread", gate.thread] });
}

/** Who was first, if that is why an answer was refused. */
export function firstAnswer(error: unknown): Answered | null {
  if (!(error instanceof ApiProblem) || error.status !== 409) return null;
  const { answered_by, answer } = error.details;
  if (answer === undefined || answer === null) return null;
  return { by: answered_by ?? "", said: sayValue(answer as Partial<Value>) };
}

const LONGEST = 80;

/** An answer in a few words. */
export function sayValue(value: Partial<Value>): string {
  if (value.kept === "cut") return `${(value.text ?? "").slice(0, LONGEST)}…`;
  if (value.kept !== undefined && value.kept !== "value") return value.kept;
  return say(value.value);
}

export function say(value: unknown): string {
  if (value === true) return "yes";
  if (value === false) return "no";
  if (value === null || value === undefined) return "nothing";
  if (typeof value === "string") return cut(value);
  if (isObject(value) && typeof value.approve === "boolean") {
    if (!value.approve) return value.reason ? cut(`no: ${String(value.reason)}`) : "no";
    if (isObject(value.arguments)) return "yes, with other arguments";
    return value.scope === "run" ? "yes, for the run" : value.scope === "thread" ? "yes, for the conversation" : "yes";
  }
  if (isObject(value) && Object.keys(value).length === 0) return "an answer without fields";
  if (isObject(value)) return cut(Object.entries(value).map(([name, part]) => `${name}: ${say(part)}`).join(", "));
  if (Array.isArray(value)) return cut(value.map(say).join(", "));
  return String(value);
}

function cut(text: string): string {
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}

/** The last part of a place: the field that an answer is for. */
export function fieldOf(place: string): string {
  return place.slice(place.lastIndexOf(".") + 1) || "Answer";
}

/** What kind of question it is, in a word. */
export const KINDS: Record<string, string> = { gate: "gate", approval: "tool approval", blocker: "blocker", question: "planning question", plan: "plan" };
