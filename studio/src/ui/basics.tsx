// Small parts that every page uses.

import { type ReactNode, useEffect, useState } from "react";

import { ApiProblem } from "../api/client.ts";
import { formatAge, formatSeconds, formatTimeFully } from "./format.ts";

/** How a status of a run or of a task is shown: a glyph, a word and a color. */
const STATUSES: Record<string, [className: string, glyph: string]> = {
  running: ["running", "●"],
  in_progress: ["running", "●"],
  queued: ["idle", "○"],
  pending: ["idle", "○"],
  ready: ["idle", "○"],
  ended: ["ended", "✓"],
  completed: ["ended", "✓"],
  merged: ["ended", "✓"],
  staged: ["ended", "◐"],
  failed: ["failed", "✗"],
  waiting: ["waiting", "?"],
  blocked: ["waiting", "?"],
  parked: ["waiting", "?"],
  cancelled: ["idle", "–"],
  skipped: ["idle", "–"],
  interrupted: ["idle", "!"],
};

export function Status({ status, title }: { status: string; title?: string }) {
  const [className, glyph] = STATUSES[status] ?? ["idle", "·"];
  return (
    <span className={`status ${className}`} title={title}>
      <span className="glyph" aria-hidden="true">
        {glyph}
      </span>
      {status.replaceAll("_", " ")}
    </span>
  );
}

/** How long ago something was; it counts on while it is shown. */
export function Age({ at }: { at: number }) {
  const now = useNow(at);
  return (
    <time dateTime={new Date(at * 1000).toISOString()} title={formatTimeFully(at)}>
      {formatAge(at, now)}
    </time>
  );
}

/** The time in seconds, read again as often as an age since `at` changes. */
export function useNow(at: number): number {
  const [now, setNow] = useState(() => Date.now() / 1000);
  const age = now - at;
  const wait = age < 60 ? 1_000 : age < 3_600 ? 20_000 : 300_000;
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), wait);
    return () => clearInterval(timer);
  }, [wait]);
  return now;
}

/** The time until a deadline. */
export function Deadline({ at }: { at: number }) {
  const left = at - useNow(at);
  return (
    <span className={left < 3_600 ? "status waiting" : "muted"} title={formatTimeFully(at)}>
      {left > 0 ? `deadline in ${formatSeconds(left)}` : "past its deadline"}
    </span>
  );
}

/** Why something failed, and what to do. */
export function Problem({ error, children }: { error: unknown; children?: ReactNode }) {
  const message = error instanceof Error ? error.message : String(error);
  const faults = error instanceof ApiProblem ? error.faults : [];
  return (
    <div className="problem" role="alert">
      <p className="strong">{message}</p>
      {faults.length > 0 && (
        <ul>
          {faults.map((fault) => (
            <li key={fault.loc.join(".") + fault.msg}>
              <code>{fault.loc.join(".")}</code> {fault.msg}
            </li>
          ))}
        </ul>
      )}
      {error instanceof ApiProblem && error.fix && <p className="fix">{error.fix}</p>}
      {children}
    </div>
  );
}

/** An empty state: what is missing, and what to do next. With `isPage` it is all of the page. */
export function Empty({ mark, title, isPage = false, children }: { mark: string; title: string; isPage?: boolean; children?: ReactNode }) {
  const Heading = isPage ? "h1" : "h2";
  return (
    <div className="empty">
      <span className="mark" aria-hidden="true">
        {mark}
      </span>
      <Heading>{title}</Heading>
      {children}
    </div>
  );
}

/** A command for a terminal, with a button that copies it. */
export function Command({ text }: { text: string }) {
  return (
    <span className="command">
      <code>{text}</code>
      <Copy text={text} />
    </span>
  );
}

export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1_500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = () => void navigator.clipboard.writeText(text).then(() => setCopied(true));
  return (
    <button type="button" className="button quiet small" onClick={copy} aria-live="polite">
      {copied ? "Copied" : label}
    </button>
  );
}

/** Placeholder lines while data loads. */
export function Loading({ lines = 3 }: { lines?: number }) {
  return (
    <div className="stack" role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, index) => (
        <div key={index} className="skeleton" />
      ))}
    </div>
  );
}
