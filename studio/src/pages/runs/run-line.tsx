// One run in the list: a row of a table, and on a phone two lines.

import { useMutation } from "@tanstack/react-query";
import { memo } from "react";
import { Link } from "wouter";

import { api, ApiProblem, pathOf } from "../../api/client.ts";
import type { RunRow } from "../../api/types.ts";
import { useMay, useServes } from "../../studio.tsx";
import { Age, Status, useNow } from "../../ui/basics.tsx";
import { formatCost, formatSeconds } from "../../ui/format.ts";

interface RunLineProps {
  row: RunRow;
  depth: number;
  /** The number of the row in the table. */
  index: number;
  top: number;
  height: number;
  isSelected: boolean;
  isCursor: boolean;
  onSelect: (id: string) => void;
  onCursor: (id: string) => void;
}

export const RunLine = memo(function RunLine({ row, depth, index, top, height, isSelected, isCursor, onSelect, onCursor }: RunLineProps) {
  return (
    <div
      className={`run-line${isSelected ? " selected" : ""}${isCursor ? " at" : ""}`}
      role="row"
      aria-rowindex={index}
      style={{ height, transform: `translateY(${top}px)` }}
    >
      <span role="cell" className="run-check">
        <input type="checkbox" aria-label={`Select ${row.run_id}`} checked={isSelected} onChange={() => onSelect(row.run_id)} />
      </span>
      <span role="cell" className="run-status">
        <Status status={row.status} />
      </span>
      <span role="cell" className="run-name" style={{ paddingLeft: depth === 0 ? 0 : Math.min(depth, 4) * 18 }}>
        {depth > 0 && (
          <span className="fork-mark muted" aria-hidden="true">
            └
          </span>
        )}
        <Link id={`run-${row.run_id}`} href={`/runs/${encodeURIComponent(row.run_id)}`} className="run-link" title={row.run_id} onFocus={() => onCursor(row.run_id)}>
          {row.run_id}
        </Link>
        <RunText row={row} depth={depth} />
        {row.status === "interrupted" && <Resume row={row} />}
      </span>
      <span role="cell" className="run-graph truncate" title={row.graph}>
        {row.graph}
      </span>
      <span role="cell" className="run-node truncate" title={row.node}>
        {row.node || <None />}
      </span>
      <span role="cell" className="run-took number">
        <Took row={row} />
      </span>
      <span role="cell" className="run-cost number">
        <Cost row={row} />
      </span>
      <span role="cell" className="run-age number muted">
        <Age at={row.started} />
      </span>
    </div>
  );
});

function None() {
  return (
    <span className="muted" aria-label="none">
      –
    </span>
  );
}

/** The question that a run waits for, why it failed, or the first words of its start. */
function RunText({ row, depth }: { row: RunRow; depth: number }) {
  const [gate] = row.waiting;
  const tag = depth === 0 && row.parent !== null && <span className="tag truncate fork-tag">fork of {row.parent}</span>;
  if (row.status === "failed" && row.error) {
    return (
      <>
        {tag}
        <span className="run-text truncate run-error" title={row.error}>
          {row.error}
        </span>
      </>
    );
  }
  const text = row.status === "waiting" && gate ? gate.question : row.preview;
  return (
    <>
      {tag}
      <span className="run-text truncate muted" title={text}>
        {text}
        {row.status === "waiting" && row.waiting_count > 1 && ` and ${row.waiting_count - 1} more`}
      </span>
    </>
  );
}

const OPEN = new Set<RunRow["status"]>(["running", "queued", "waiting"]);

/** How long a run has taken; the time of an open run counts on. */
function Took({ row }: { row: RunRow }) {
  return OPEN.has(row.status) ? <Counting since={row.started} /> : <>{formatSeconds(row.seconds)}</>;
}

function Counting({ since }: { since: number }) {
  return <>{formatSeconds(Math.max(0, useNow(since) - since))}</>;
}

function Cost({ row }: { row: RunRow }) {
  if (row.calls === null) return <None />;
  if (row.calls === 0) return <span title="No LLM call">–</span>;
  return <span title={`${row.calls} LLM ${row.calls === 1 ? "call" : "calls"}, ${row.tokens} tokens`}>{formatCost(row.cost)}</span>;
}

function Resume({ row }: { row: RunRow }) {
  const { may, why } = useMay("run");
  const served = useServes(row.graph);
  const resume = useMutation({ mutationFn: () => api(pathOf`/runs/${row.run_id}/resume`, { method: "POST" }) });
  const { error } = resume;
  return (
    <span className="run-resume">
      <button
        type="button"
        className="button small"
        disabled={!may || !served.serves || resume.isPending || resume.isSuccess}
        title={why || served.why || "Continue where it stopped"}
        onClick={() => resume.mutate()}
      >
        {resume.isPending ? "Resuming…" : "Resume"}
      </button>
      {error && (
        <span role="alert" className="small run-error truncate" title={error instanceof ApiProblem ? `${error.message}. ${error.fix}` : error.message}>
          {error.message}
        </span>
      )}
    </span>
  );
}
