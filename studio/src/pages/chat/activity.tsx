// What a model did before it replied: tool calls and thoughts, both folded.

import type { TurnCall } from "../../api/types.ts";
import { formatSeconds } from "../../ui/format.ts";
import { ShownValue } from "../../ui/value.tsx";

const GLYPHS: Record<string, string> = { done: "✓", failed: "✗", waiting: "?", begun: "●", asked: "○" };

export function Calls({ calls }: { calls: TurnCall[] }) {
  if (calls.length === 0) return null;
  const names = [...new Set(calls.map((call) => call.name))].join(", ");
  const failed = calls.filter((call) => call.state === "failed").length;
  const seconds = calls.reduce((sum, call) => sum + call.seconds, 0);
  const works = calls.some((call) => ["asked", "begun", "waiting"].includes(call.state));
  return (
    <details className="turn-fold">
      <summary>
        {works ? "calling" : "called"} <code>{names}</code>{" "}
        <span className="muted">
          {calls.length === 1 ? "1 call" : `${calls.length} calls`}
          {failed > 0 && `, ${failed} failed`}
          {seconds > 0 && `, ${formatSeconds(seconds)}`}
        </span>
      </summary>
      <ol className="turn-calls">
        {calls.map((call) => (
          <li key={call.place} data-state={call.state}>
            <p className="row wrap">
              <span aria-hidden="true" className={`call-glyph ${call.state}`}>
                {GLYPHS[call.state] ?? "·"}
              </span>
              <code className="strong">{call.name}</code>
              <span className="small muted">
                {call.state}
                {call.person && `, ${call.person} by a person`}
                {call.seconds > 0 && ` · ${formatSeconds(call.seconds)}`}
              </span>
            </p>
            <ShownValue value={call.arguments} />
            {call.result !== null && (
              <div className="call-result">
                <ShownValue value={call.result} />
              </div>
            )}
            {call.error && <p className="call-result fault">{call.error}</p>}
          </li>
        ))}
      </ol>
    </details>
  );
}

/** What models thought, where that is stored, and what they think at this moment. */
export function Thoughts({ thoughts, now }: { thoughts: string[]; now: string }) {
  if (thoughts.length === 0 && now === "") return null;
  return (
    <details className="turn-fold">
      <summary>{now === "" ? "thoughts" : "thoughts so far"}</summary>
      {[...thoughts, ...(now === "" ? [] : [now])].map((text, index) => (
        <p key={index} className="value text muted">
          {text}
        </p>
      ))}
    </details>
  );
}
