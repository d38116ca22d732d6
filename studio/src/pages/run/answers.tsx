// The prompts that were sent to an LLM, its answers with their errors, and rounds of tool calls.

import { useState } from "react";

import { readJson } from "../../api/json.ts";
import { formatCost, formatCount, formatSeconds } from "../../ui/format.ts";
import { PlainValue } from "../../ui/value.tsx";
import { sectionsOf } from "./prompt-text.ts";
import { usageText } from "./sources.tsx";

const LONG = 1_200;

export interface Answer {
  number: number;
  verdict: string;
  errors?: string[];
  prompt?: string;
  asked?: string;
  answer?: string;
  model?: string;
  thinking?: string;
  usage?: { calls?: number; input_tokens?: number; output_tokens?: number; cost?: number | null };
}

export interface ToolCallView {
  id: string;
  name: string;
  arguments?: unknown;
  state: string;
  result?: unknown;
  error?: string;
  seconds?: number;
  reused?: string;
  person?: string;
  is_native?: boolean;
}

export interface Round {
  number: number;
  text?: string;
  calls?: ToolCallView[];
  told?: string[];
}

/** Long text, cut until all of it is wanted. */
export function LongText({ text, isCode = false }: { text: string; isCode?: boolean }) {
  const [all, setAll] = useState(false);
  const cut = !all && text.length > LONG;
  const shown = cut ? `${text.slice(0, LONG)}…` : text;
  return (
    <>
      {isCode ? <pre className="long-text">{shown}</pre> : <div className="value text long-text">{shown}</div>}
      {cut && (
        <button type="button" className="link small" onClick={() => setAll(true)}>
          show all {formatCount(text.length)} characters
        </button>
      )}
    </>
  );
}

/** The messages of a prompt. The system text and schemas are folded: they are equal in many. */
export function PromptView({ text }: { text: string }) {
  return (
    <div className="prompt">
      {sectionsOf(text).map((section, index) => (
        <details key={index} open={section.role !== "system" && section.role !== "schema" && section.role !== "tool"}>
          <summary>
            <span className="tag">{section.role}</span> <span className="small muted">{formatCount(section.text.length)} characters</span>
          </summary>
          <LongText text={section.text} isCode={section.role === "schema" || section.role === "tool"} />
        </details>
      ))}
    </div>
  );
}

const GLYPHS: Record<string, string> = { valid: "✓", invalid: "✗", refused: "✗", restarted: "↻", used: "·" };

/** The answers to a question, each with its verdict. */
export function AnswerList({ answers, rounds = [] }: { answers: readonly Answer[]; rounds?: readonly Round[] }) {
  return (
    <ol className="answers">
      {answers.map((answer, index) => (
        <li key={index} className={`answer ${answer.verdict}`}>
          <p className="row wrap">
            <span className={answer.verdict === "valid" ? "good" : answer.verdict === "invalid" || answer.verdict === "refused" ? "fault" : "muted"}>
              <span aria-hidden="true">{GLYPHS[answer.verdict] ?? "·"}</span> attempt {answer.number || index + 1} {answer.verdict}
            </span>
            {answer.model && <span className="small muted">{answer.model}</span>}
            {answer.usage && <span className="small muted">{[...usageText(answer.usage), ...(answer.usage.calls ? [formatCost(answer.usage.cost)] : [])].join(" · ")}</span>}
          </p>
          {(answer.errors ?? []).map((error, at) => (
            <p key={at} className="fault small value text">
              {error}
            </p>
          ))}
          {answer.asked && (
            <details>
              <summary>prompt</summary>
              <PromptView text={answer.asked} />
            </details>
          )}
          {answer.thinking && (
            <details>
              <summary>thinking</summary>
              <LongText text={answer.thinking} />
            </details>
          )}
          {answer.answer && !isToldInRound(answer, rounds) && (
            <details open={answer.verdict !== "valid"}>
              <summary>answer</summary>
              <AnswerText text={answer.answer} />
            </details>
          )}
        </li>
      ))}
    </ol>
  );
}

function isToldInRound(answer: Answer, rounds: readonly Round[]): boolean {
  return rounds.some((round) => round.number === answer.number && round.text === answer.answer);
}

/** An answer: fields of JSON as fields, anything else as text. */
function AnswerText({ text }: { text: string }) {
  try {
    const value: unknown = readJson(text);
    if (typeof value === "object" && value !== null) return <PlainValue value={value} />;
  } catch {
    // It is a text, or JSON that was cut.
  }
  return <LongText text={text} />;
}

const STATES: Record<string, string> = { done: "✓", failed: "✗", waiting: "?", begun: "●", asked: "○" };

/** Rounds of tool calls, with what the model read after each. */
export function RoundList({ rounds }: { rounds: readonly Round[] }) {
  return (
    <ol className="rounds">
      {rounds.map((round) => (
        <li key={round.number}>
          <p className="small muted">round {round.number}</p>
          {(round.calls ?? []).map((call) => (
            <details key={call.id} className={`tool-call ${call.state}`} open={call.state === "failed"}>
              <summary>
                <span aria-hidden="true">{STATES[call.state] ?? "·"}</span> <code>{call.name}</code> <span className="small muted">{shortArguments(call.arguments)}</span>
                <span className="small muted">
                  {call.state !== "done" && ` ${call.state}`}
                  {call.person && ` ${call.person} by a person`}
                  {call.reused && ` result of ${call.reused}`}
                  {call.seconds ? ` ${formatSeconds(call.seconds)}` : ""}
                </span>
              </summary>
              <dl className="fields">
                <dt>arguments</dt>
                <dd>
                  <PlainValue value={call.arguments} />
                </dd>
                {call.error ? (
                  <>
                    <dt>error</dt>
                    <dd className="fault value text">{call.error}</dd>
                  </>
                ) : (
                  call.state === "done" && (
                    <>
                      <dt>result</dt>
                      <dd>
                        <PlainValue value={call.result} />
                      </dd>
                    </>
                  )
                )}
              </dl>
            </details>
          ))}
          {round.text && (
            <details>
              <summary>answer</summary>
              <AnswerText text={round.text} />
            </details>
          )}
          {(round.told ?? []).map((text, index) => (
            <p key={index} className="small value text told">
              <span className="muted">told: </span>
              {text}
            </p>
          ))}
        </li>
      ))}
    </ol>
  );
}

function shortArguments(given: unknown): string {
  if (typeof given !== "object" || given === null) return "";
  const text = Object.entries(given)
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`)
    .join(", ");
  return text.length > 80 ? `(${text.slice(0, 80)}…)` : `(${text})`;
}
