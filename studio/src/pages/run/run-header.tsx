// The header of a run: its id, status and usage, and the actions on it.

import { Link } from "wouter";

import type { RunAt } from "../../api/queries.ts";
import type { LimitView, RunDetails } from "../../api/types.ts";
import { useServes, useStudio } from "../../studio.tsx";
import { Age, Copy, Deadline, Status } from "../../ui/basics.tsx";
import { formatCost, formatCount, formatSeconds, formatTimeFully } from "../../ui/format.ts";
import { parsePlace } from "./places.ts";
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
  const isRunning = details.status === "running";
  const facts = [worked === null || isRunning ? "" : `${formatSeconds(worked)} of work`, plural(usage?.calls ?? 0, "call")];
  if (usage !== null && usage.calls > 0) {
    const tokens = usage.input_tokens + usage.output_tokens;
    facts.push(`${formatCount(tokens)} tokens${usage.cached_tokens > 0 ? `, ${formatCount(usage.cached_tokens)} of them cached` : ""}`);
    facts.push(usage.cost === null ? "cost unknown" : formatCost(usage.cost));
  }
  if (details.max_iters > 0 && details.status !== "ended") facts.push(`${formatCount(details.steps ?? 0)} of at most ${plural(details.max_iters, "node")}`);
  return (
    <header className="run-header">
      <div className="run-title">
        <h1 className="truncate" title={details.run_id}>
          {details.run_id}
        </h1>
        <Copy text={details.run_id} label="Copy id" />
        <Status status={details.status} />
        {isElsewhere && (
          <span className="tag" role="status" title="Its records appear here as they are stored. Text in progress is known in that process alone.">
            written by another process
          </span>
        )}
        <div className="grow" />
        <RunActions at={at} details={details} onFork={onFork} />
      </div>
      <p className="run-facts listed muted">
        <span>
          <GraphName graph={details.graph} isOwn={at.base === ""} />
        </span>
        <span>
          <Age at={details.started} />
          {Date.now() / 1000 - details.started >= 5 && " ago"}
        </span>
        {facts.filter(Boolean).map((fact) => (
          <span key={fact}>{fact}</span>
        ))}
        {details.status === "ended" && details.end !== null && (
          <span title={details.no_result}>
            {"ended at "}
            <button type="button" className="link strong" onClick={() => change({ step: Math.max(0, (details.steps ?? 1) - 1), path: "", field: "", node: "", filter: "", tab: "trace" })}>
              {details.end}
            </button>
          </span>
        )}
        {usage !== null && usage.models.length > 0 && <span>{usage.models.join(", ")}</span>}
        {details.status !== "ended" &&
          details.budgets.map((budget, index) => (
            <span key={index} title="Spent of the budget of this server's LLM, by all of its runs">
              {budget.scope} {budget.limits.map(limitText).join(", ")}
            </span>
          ))}
        <Waiting details={details} change={change} />
      </p>
      <Relations at={at} details={details} />
    </header>
  );
}

const LIMITS: Record<LimitView["name"], (amount: number | null) => string> = {
  calls: (amount) => plural(amount ?? 0, "call"),
  tokens: (amount) => plural(amount ?? 0, "token"),
  cost: formatCost,
  seconds: (amount) => formatSeconds(amount ?? 0),
};

/** A limit of a budget, as "$0.12 of $2.00". */
function limitText({ name, spent, limit }: LimitView): string {
  const format = LIMITS[name];
  return name === "cost" || name === "seconds" ? `${format(spent)} of ${format(limit)}` : `${formatCount(spent ?? 0)} of ${format(limit)}`;
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

/** The open question of the run. It is the last of its facts, so that an answer moves nothing. */
function Waiting({ details, change }: { details: RunDetails; change: ChangeView }) {
  const open = details.waiting.filter((gate) => !gate.answered);
  const gate = open[0];
  if (gate === undefined || details.status !== "waiting") return null;
  const show = () => {
    const place = parsePlace(gate.gate);
    if (place !== null) change({ step: place.step, path: place.path, field: place.field, node: "", filter: "", tab: "trace" });
  };
  const until = gate.deadline === null ? "" : ` until ${formatTimeFully(gate.deadline)}`;
  return (
    <span className="run-waits">
      <button type="button" className="run-question strong truncate" title={`${gate.place}${until}: ${gate.question}`} onClick={show}>
        {gate.question}
      </button>
      {details.waiting_count > 1 && <span className="small muted">and {details.waiting_count - 1} more</span>}
      {gate.deadline !== null && <Deadline at={gate.deadline} />}
    </span>
  );
}
