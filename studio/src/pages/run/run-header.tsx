// Who a run is, how it stands, and what can be done with it.

import { Link } from "wouter";

import type { RunAt } from "../../api/queries.ts";
import type { RunDetails } from "../../api/types.ts";
import { useServes, useStudio } from "../../studio.tsx";
import { Age, Copy, Status } from "../../ui/basics.tsx";
import { formatCost, formatCount, formatSeconds } from "../../ui/format.ts";
import { PlainValue } from "../../ui/value.tsx";
import { RunActions } from "./run-actions.tsx";
import { addressOf, type ChangeView } from "./run-view.ts";
import { plural } from "./sources.tsx";

interface HeaderProps {
  at: RunAt;
  details: RunDetails;
  /** Seconds in which processes worked on it, as far as they are known. */
  worked: number | null;
  isElsewhere: boolean;
  change: ChangeView;
  onFork: () => void;
}

export function RunHeader({ at, details, worked, isElsewhere, change, onFork }: HeaderProps) {
  const { usage } = details;
  const facts = [worked === null ? "" : `${formatSeconds(worked)} of work`, plural(usage?.calls ?? 0, "call")];
  if (usage !== null && usage.calls > 0) {
    const tokens = usage.input_tokens + usage.output_tokens;
    facts.push(`${formatCount(tokens)} tokens${usage.cached_tokens > 0 ? `, ${formatCount(usage.cached_tokens)} of them cached` : ""}`);
    facts.push(usage.cost === null ? "cost unknown" : formatCost(usage.cost));
  }
  return (
    <header className="run-header">
      <div className="run-title">
        <h1 className="truncate" title={details.run_id}>
          {details.run_id}
        </h1>
        <Copy text={details.run_id} label="Copy id" />
        <Status status={details.status} />
        <div className="grow" />
        <RunActions at={at} details={details} onFork={onFork} />
      </div>
      <p className="run-facts muted">
        <GraphName graph={details.graph} isOwn={at.base === ""} /> · <Age at={details.started} />
        {Date.now() / 1000 - details.started >= 5 && " ago"}
        {facts.filter(Boolean).map((fact) => (
          <span key={fact}> · {fact}</span>
        ))}
        {usage !== null && usage.models.length > 0 && <span> · {usage.models.join(", ")}</span>}
      </p>
      <Relations at={at} details={details} />
      {isElsewhere && (
        <p className="note small" role="status">
          Another process works on this run. Its records appear here as they are stored; text in progress is known there alone.
        </p>
      )}
      <Waiting details={details} change={change} />
    </header>
  );
}

function GraphName({ graph, isOwn }: { graph: string; isOwn: boolean }) {
  const { serves } = useServes(graph);
  return serves && isOwn ? <Link href={`/graphs/${encodeURIComponent(graph)}`}>{graph}</Link> : <span>{graph}</span>;
}

function Relations({ at, details }: { at: RunAt; details: RunDetails }) {
  const studio = useStudio();
  const graph = studio.graphs.find((each) => each.name === details.graph);
  const metadata = Object.entries(details.metadata);
  if (details.parent === null && details.forks.length === 0 && details.thread === null && metadata.length === 0) return null;
  return (
    <p className="run-facts small">
      {details.parent !== null && (
        <span>
          <span className="muted">fork of</span> <Link href={addressOf(at, details.parent)}>{details.parent}</Link>{" "}
          <Link href={`/runs/${encodeURIComponent(details.parent)}/vs/${encodeURIComponent(details.run_id)}`} className="muted">
            compare
          </Link>
        </span>
      )}
      {details.forks.length > 0 && (
        <span>
          <span className="muted">forks</span>{" "}
          {details.forks.slice(0, 5).map((fork, index) => (
            <span key={fork}>
              {index > 0 && ", "}
              <Link href={addressOf(at, fork)}>{fork}</Link>
            </span>
          ))}
          {details.forks.length > 5 && <span className="muted"> and {details.forks.length - 5} more</span>}
        </span>
      )}
      {details.thread !== null && (
        <span>
          <span className="muted">thread</span>{" "}
          {graph !== undefined && graph.message !== null && at.base === "" ? (
            <Link href={`/chat/${encodeURIComponent(details.graph)}/${encodeURIComponent(details.thread)}`}>{details.thread}</Link>
          ) : (
            details.thread
          )}
        </span>
      )}
      {metadata.map(([name, value]) => (
        <span key={name} className="tag run-label" title={`${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`}>
          {name} {typeof value === "object" ? JSON.stringify(value) : String(value)}
        </span>
      ))}
    </p>
  );
}

/** The questions that the run waits for. */
function Waiting({ details, change }: { details: RunDetails; change: ChangeView }) {
  const open = details.waiting.filter((gate) => !gate.answered);
  if (open.length === 0 || details.status !== "waiting") return null;
  return (
    <ul className="run-waiting">
      {open.map((gate) => (
        <li key={gate.gate} className="row wrap">
          <Status status="waiting" />
          <span className="strong">{gate.question}</span>
          <button
            type="button"
            className="link small"
            onClick={() => {
              const step = /^(\d+):[^.]*\.([^.([]+)/.exec(gate.gate);
              if (step !== null) change({ step: Number(step[1]), path: "", field: step[2]!, node: "", filter: "", tab: "trace" });
            }}
          >
            {gate.place}
          </button>
          {gate.deadline !== null && (
            <span className="small muted">
              until <time>{new Date(gate.deadline * 1000).toLocaleString()}</time>
            </span>
          )}
        </li>
      ))}
      {details.waiting_count > open.length && <li className="small muted">and {details.waiting_count - open.length} more</li>}
    </ul>
  );
}

/** How a run has ended. */
export function RunResult({ details }: { details: RunDetails }) {
  if (details.status !== "ended") return null;
  if (details.result === null && !details.no_result) return null;
  return (
    <details className="run-result">
      <summary>
        <span className="muted">result</span> <span className="strong">{details.end}</span> <span className="muted small">{preview(details.result)}</span>
      </summary>
      {details.no_result ? <p className="muted">{details.no_result}</p> : <PlainValue value={details.result} />}
    </details>
  );
}

function preview(result: unknown): string {
  const text = JSON.stringify(result) ?? "";
  return text.length > 90 ? `${text.slice(0, 90)}…` : text;
}
