// A node of two runs: the same, different, or in one of them alone.

import { Link } from "wouter";

import type { FieldPair, FieldView, NodePair } from "../../api/types.ts";
import { ShownValue } from "../../ui/value.tsx";

interface ComparedNodeProps {
  node: NodePair;
  a: string;
  b: string;
  isFirst: boolean;
}

const STATES: Record<NodePair["state"], string> = { same: "= same", differs: "≠ differs", a: "A alone", b: "B alone" };

export function ComparedNode({ node, a, b, isFirst }: ComparedNodeProps) {
  return (
    <article className={`compared ${node.state}${isFirst ? " first" : ""}`} aria-label={`${node.node}, ${STATES[node.state].replace(/^\W /, "")}`}>
      <header className="row wrap">
        <h2>
          {node.node}
          {node.visit > 1 && <span className="muted"> ×{node.visit}</span>}
        </h2>
        <span className={`compare-state ${node.state}`}>{STATES[node.state]}</span>
        {isFirst && <span className="tag compare-first">first difference</span>}
        {node.path && <code className="muted truncate">{node.path}</code>}
        <span className="grow" />
        <Place run={a} place={node.a} label="A" />
        <Place run={b} place={node.b} label="B" />
      </header>
      {node.fields.length > 0 && (
        <div className="compared-fields" role="table" aria-label={`Fields of ${node.node} that differ`}>
          {node.fields.map((field) => (
            <Pair key={field.name} field={field} node={node} a={a} b={b} />
          ))}
        </div>
      )}
      {node.state === "differs" && node.fields.length === 0 && <p className="muted small">The values are equal. The way to them is not: see the sources of both.</p>}
    </article>
  );
}

/** The number of a step in a place, as 3 of "3:Refund". */
function stepOf(place: string): string {
  return /^\d+/.exec(place)?.[0] ?? "";
}

function linkTo(run: string, place: string): string {
  const step = place.includes("/") ? "" : stepOf(place);
  return `/runs/${encodeURIComponent(run)}${step && `?step=${step}`}`;
}

function Place({ run, place, label }: { run: string; place: string; label: string }) {
  if (!place) return null;
  return (
    <Link href={linkTo(run, place)} className="small" title={`Open ${place} in ${run}`}>
      {label} {place}
    </Link>
  );
}

function Pair({ field, node, a, b }: { field: FieldPair; node: NodePair; a: string; b: string }) {
  return (
    <div role="row" className="compared-field">
      <span role="rowheader" className="mono">
        {field.name}
      </span>
      <Cell side="A" field={field.a} link={linkTo(a, node.a)} other={field.b} />
      <Cell side="B" field={field.b} link={linkTo(b, node.b)} other={field.a} />
    </div>
  );
}

function Cell({ side, field, link, other }: { side: string; field: FieldView | null; link: string; other: FieldView | null }) {
  return (
    <div role="cell" className={`compared-value${field === null ? " absent" : ""}`}>
      <span className="compare-label" aria-hidden="true">
        {side}
      </span>
      {field === null ? (
        <span className="muted">not there</span>
      ) : (
        <div className="grow">
          <ShownValue value={field} />
          {field.kept === "cut" && (
            <Link href={link} className="small">
              Open the step to see all of it
            </Link>
          )}
          {field.error && <p className="small compare-error">{field.error}</p>}
          {(field.source !== other?.source || field.by !== other.by) && (
            <p className="small muted">
              {field.source}
              {field.by && `: ${field.by}`}
            </p>
          )}
        </div>
      )}
    </div>
  );
}
