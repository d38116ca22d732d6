// What LMs were asked in a run, in order. An opened call has its prompt, attempts and tool calls.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { callQuery, callsQuery, type RunAt } from "../../api/queries.ts";
import type { CallView } from "../../api/types.ts";
import { Command, Empty, Loading, Problem, Status } from "../../ui/basics.tsx";
import { formatCost, formatSeconds } from "../../ui/format.ts";
import { type Answer, AnswerList, PromptView, type Round, RoundList } from "./answers.tsx";
import { useGrowingPlaces, useGrowingText } from "./live.ts";
import { parsePlace } from "./places.ts";
import type { ChangeView, RunView } from "./run-view.ts";
import { usageText } from "./sources.tsx";
import { Growing } from "./step-card.tsx";

const PAGE = 100;

export function Calls({ at, view, change }: { at: RunAt; view: RunView; change: ChangeView }) {
  const [asked, setStart] = useState<number | null>(null);
  const start = asked ?? Math.floor((view.call ?? 0) / PAGE) * PAGE;
  const { data, error } = useQuery(callsQuery(at, { start, limit: PAGE }));
  const places = useGrowingPlaces();
  if (data === undefined) return error === null ? <Loading lines={6} /> : <Problem error={error} />;
  return (
    <div className="calls">
      {data.total === 0 && places.length === 0 && (
        <Empty mark="◇" title="No LLM call">
          <p>The code made all nodes of this run.</p>
        </Empty>
      )}
      <ol start={start + 1}>
        {data.calls.map((call) => (
          <CallRow key={call.number} at={at} call={call} isOpen={view.call === call.number} change={change} />
        ))}
      </ol>
      {places.length > 0 && (
        <section aria-label="Being written">
          <h3>Being written</h3>
          {places.map((place) => (
            <BeingWritten key={place} place={place} />
          ))}
        </section>
      )}
      {data.total > PAGE && (
        <p className="row pager">
          <button type="button" className="button small" disabled={start === 0} onClick={() => setStart(Math.max(0, start - PAGE))}>
            ‹ before
          </button>
          <span className="small muted">
            {start + 1}–{Math.min(start + PAGE, data.total)} of {data.total}
          </span>
          <button type="button" className="button small" disabled={start + PAGE >= data.total} onClick={() => setStart(start + PAGE)}>
            next ›
          </button>
        </p>
      )}
    </div>
  );
}

function BeingWritten({ place }: { place: string }) {
  const text = useGrowingText(place);
  return (
    <div className="call-growing">
      <p className="small muted">{place}</p>
      <Growing text={text} />
    </div>
  );
}

const OUTCOMES: Record<string, string> = { done: "ended", running: "running" };

function CallRow({ at, call, isOpen, change }: { at: RunAt; call: CallView; isOpen: boolean; change: ChangeView }) {
  const place = parsePlace(call.place);
  const attempts = call.usage.attempts;
  return (
    <li className={`call${isOpen ? " open" : ""}`}>
      <div className="call-head">
        <button type="button" className="step-name" aria-expanded={isOpen} onClick={() => change({ call: isOpen ? null : call.number })}>
          <span aria-hidden="true" className="step-arrow">
            {isOpen ? "▾" : "▸"}
          </span>
          <span className="step-number">{call.number}</span>
          <span className="strong truncate">{call.by}</span>
          <span className="muted small truncate">{call.usage.models.join(", ")}</span>
        </button>
        {call.outcome !== "done" && <Status status={OUTCOMES[call.outcome] ?? call.outcome} />}
        {attempts > 1 && <span className="tag">{attempts} answers</span>}
        <span className="small muted step-facts">{[...usageText(call.usage), ...(call.usage.calls > 0 ? [formatCost(call.usage.cost)] : []), formatSeconds(call.seconds)].join(" · ")}</span>
      </div>
      {isOpen && (
        <div className="call-body">
          {place !== null && (
            <p className="small">
              <span className="muted">for </span>
              <button type="button" className="link" onClick={() => change({ tab: "trace", step: place.step, path: place.path, field: place.field, node: "", filter: "" })}>
                {call.place}
              </button>
            </p>
          )}
          {call.error && <p className="fault">✗ {call.error}</p>}
          <OpenedCall at={at} number={call.number} />
        </div>
      )}
    </li>
  );
}

function OpenedCall({ at, number }: { at: RunAt; number: number }) {
  const { data, error } = useQuery(callQuery(at, number));
  if (data === undefined) return error === null ? <Loading /> : <Problem error={error} />;
  const answers = (data.answers ?? []) as unknown as Answer[];
  const rounds = (data.rounds ?? []) as unknown as Round[];
  const hasPrompt = data.asked !== "" || answers.some((answer) => answer.asked);
  return (
    <>
      {data.asked && (
        <details>
          <summary>prompt</summary>
          <PromptView text={data.asked} />
        </details>
      )}
      {!hasPrompt && (
        <div className="stack-small">
          <p className="small muted">No prompt is stored with this call. To see all prompts of the graph:</p>
          <p>
            <Command text="bae prompts MODULE" />
          </p>
        </div>
      )}
      {rounds.length > 0 && <RoundList rounds={rounds} />}
      {answers.length > 0 && <AnswerList answers={answers} rounds={rounds} />}
      {answers.length === 0 && rounds.length === 0 && <p className="muted">There is no answer yet.</p>}
    </>
  );
}
