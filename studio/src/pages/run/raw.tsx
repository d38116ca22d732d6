// The stored records of a run, in pages.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { api, pathOf } from "../../api/client.ts";
import type { RunAt } from "../../api/queries.ts";
import type { LinePage, LineView } from "../../api/types.ts";
import { Copy, Loading, Problem } from "../../ui/basics.tsx";
import { formatCount, formatTime, formatTimeFully } from "../../ui/format.ts";
import { TextInParts } from "../../ui/value.tsx";

const PAGE = 200;

export function Raw({ at }: { at: RunAt }) {
  const [start, setStart] = useState(0);
  const { data, error } = useQuery({
    queryKey: ["run", at.base, at.run, "records", start],
    queryFn: ({ signal }) => api<LinePage>(at.base + pathOf`/runs/${at.run}/records`, { query: { after: start - 1, limit: PAGE }, signal }),
    placeholderData: keepPreviousData,
  });
  if (data === undefined) return error === null ? <Loading lines={8} /> : <Problem error={error} />;
  const total = data.last + 1;
  const next = (data.records.at(-1)?.n ?? start) + 1;
  return (
    <div className="raw">
      <p className="row wrap pager">
        <span className="small muted grow">
          {formatCount(total)} records{total > PAGE && `, ${formatCount(start + 1)}–${formatCount(next)}`}
        </span>
        {total > PAGE && (
          <>
            <button type="button" className="button small" disabled={start === 0} onClick={() => setStart(Math.max(0, start - PAGE))}>
              ‹ before
            </button>
            <button type="button" className="button small" disabled={next >= total} onClick={() => setStart(next)}>
              next ›
            </button>
            <button type="button" className="button small" disabled={next >= total} onClick={() => setStart(Math.floor((total - 1) / PAGE) * PAGE)}>
              last »
            </button>
          </>
        )}
      </p>
      <ol>
        {data.records.map((line) => (
          <Record key={line.n} line={line} />
        ))}
      </ol>
    </div>
  );
}

function Record({ line }: { line: LineView }) {
  const [isOpen, setOpen] = useState(false);
  const json = isOpen ? JSON.stringify(line.data, null, 2) : "";
  return (
    <li className="record">
      <button type="button" className="record-head" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span className="muted record-number">{line.n}</span>
        <span className="record-kind">{line.kind}</span>
        <span className="truncate small muted record-about">{aboutOf(line)}</span>
        <time className="small muted" title={formatTimeFully(line.at)}>
          {formatTime(line.at)}
        </time>
      </button>
      {isOpen && (
        <div className="record-json">
          <pre tabIndex={0}>
            <TextInParts text={json} />
          </pre>
          <Copy text={json} label="Copy JSON" />
        </div>
      )}
    </li>
  );
}

/** A record in a line: its place and its short values. */
function aboutOf(line: LineView): string {
  const parts = Object.entries(line.data)
    .filter(([, value]) => typeof value === "string" || typeof value === "number")
    .slice(0, 5)
    .map(([name, value]) => `${name}=${String(value).slice(0, 60)}`);
  return [`${line.path ? `${line.path}/` : ""}${line.step}`, ...parts].join(" · ");
}
