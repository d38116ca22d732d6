// What the agent asked, did and saw, live. The end is shown first; earlier entries on demand.

import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { Link } from "wouter";

import { pathOf } from "../../api/client.ts";
import type { LogView } from "../../api/types.ts";
import { Empty, Loading, Problem } from "../../ui/basics.tsx";
import { formatCost, formatCount, formatSeconds, formatTime, formatTimeFully } from "../../ui/format.ts";
import { LOG_PAGE, logQuery } from "./queries.ts";

const NEAR = 80;
const MARKS: Record<string, string> = { lm: "✦", tool: "⚙", program: "⚙", edits: "✎", tests: "✓", review: "◎", question: "?", answer: "↩", steered: "☞", merge: "⇉", status: "●", correction: "↻", submission: "⇧", activity: "·" };

export function LogTab({ team, task }: { team: string; task: string }) {
  const first = useQuery(logQuery(team, task, 0));
  const total = first.data?.total ?? 0;
  const last = Math.max(0, Math.ceil(total / LOG_PAGE) - 1);
  const [earlier, setEarlier] = useState(0);
  const end = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  useEffect(() => {
    const scroller = end.current?.closest(".task-body");
    if (!scroller) return;
    const listen = () => {
      follows.current = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR;
    };
    scroller.addEventListener("scroll", listen);
    return () => scroller.removeEventListener("scroll", listen);
  }, [total > 0]);
  useEffect(() => {
    if (follows.current) end.current?.scrollIntoView({ block: "end" });
  }, [total]);
  if (first.data === undefined) return first.error ? <Problem error={first.error} /> : <Loading lines={8} />;
  if (total === 0) {
    return (
      <Empty mark="…" title="Nothing happened yet">
        <p>The steps of the agent appear here while it works.</p>
      </Empty>
    );
  }
  const from = Math.max(0, last - earlier);
  return (
    <div className="log">
      {from > 0 && (
        <button type="button" className="button small" onClick={() => setEarlier(earlier + 1)}>
          Show earlier entries ({formatCount(from * LOG_PAGE)})
        </button>
      )}
      {Array.from({ length: last - from + 1 }, (_, index) => (
        <LogEntries key={from + index} team={team} task={task} page={from + index} />
      ))}
      <div ref={end} />
    </div>
  );
}

function LogEntries({ team, task, page }: { team: string; task: string; page: number }) {
  const { data, error } = useQuery(logQuery(team, task, page));
  if (data === undefined) return error ? <Problem error={error} /> : <Loading />;
  return (
    <ol aria-label={`Log, from entry ${page * LOG_PAGE + 1}`}>
      {data.entries.map((entry, index) => (
        <Entry key={index} team={team} entry={entry} />
      ))}
    </ol>
  );
}

function Entry({ team, entry }: { team: string; entry: LogView }) {
  const facts = [entry.seconds >= 0.05 && formatSeconds(entry.seconds), entry.usage && entry.usage.input_tokens + entry.usage.output_tokens > 0 && `${formatCount(entry.usage.input_tokens + entry.usage.output_tokens)} tokens`, entry.usage && entry.usage.cost !== 0 && formatCost(entry.usage.cost)].filter(Boolean);
  const line = (
    <span className="log-line">
      <span className={`log-mark${entry.ok ? "" : " fault"}`} aria-hidden="true">
        {entry.ok ? (MARKS[entry.kind] ?? "·") : "✗"}
      </span>
      <time className="small muted" dateTime={new Date(entry.at * 1000).toISOString()} title={formatTimeFully(entry.at)}>
        {formatTime(entry.at)}
      </time>
      <span className="log-kind small muted">{entry.kind}</span>
      <span className={`log-text${entry.ok ? "" : " fault"}`}>
        {!entry.ok && <span className="sr-only">failed: </span>}
        {entry.text || "(no text)"}
      </span>
      <span className="small muted log-facts">{facts.join(" · ")}</span>
    </span>
  );
  const run = entry.run !== "" && (
    <Link className="small" href={pathOf`/team/${team}/runs/${entry.run}`}>
      open the run of the agent
    </Link>
  );
  return (
    <li className="log-entry">
      {entry.detail !== "" || run ? (
        <details>
          <summary>{line}</summary>
          <div className="log-detail">
            {entry.detail !== "" && (
              <pre className="output" tabIndex={0}>
                {entry.detail}
              </pre>
            )}
            {run}
          </div>
        </details>
      ) : (
        line
      )}
    </li>
  );
}
