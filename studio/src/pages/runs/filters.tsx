// The search and the filters of the list of runs. They are in the address.

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef, useState } from "react";

import { threadsQuery } from "../../api/queries.ts";
import type { RunCounts } from "../../api/types.ts";
import { useStudio } from "../../studio.tsx";
import { formatCount } from "../../ui/format.ts";
import { type Filter, SPANS } from "./rows.ts";
import { useCounts } from "./use-runs.ts";

const STATUSES = ["running", "waiting", "failed", "interrupted", "ended", "cancelled", "queued"] as const;
const TYPING = 250;
const NOTHING: Filter = { status: "", graph: "", thread: "", q: "", since: "" };

interface FiltersProps {
  filter: Filter;
  counts: RunCounts | undefined;
  onChange: (name: keyof Filter, value: string) => void;
}

export function Filters({ filter, counts, onChange }: FiltersProps) {
  const all = useCounts(NOTHING);
  const studio = useStudio();
  const threads = useQuery(threadsQuery({ limit: 100 })).data?.threads ?? [];
  const graphs = [...new Set([...studio.graphs.map((graph) => graph.name), ...Object.keys(all?.graphs ?? {})])].sort();
  const shown = STATUSES.filter((status) => status === filter.status || (counts?.statuses[status] ?? 0) > 0);
  const more = counts !== undefined && !counts.is_all ? "+" : "";
  return (
    <div className="runs-filters">
      <Search value={filter.q} onChange={(q) => onChange("q", q)} />
      <Choice label="Graph" value={filter.graph} onChange={(value) => onChange("graph", value)} options={withValue(graphs, filter.graph)} all="all graphs" />
      {(threads.length > 0 || filter.thread) && (
        <Choice label="Thread" value={filter.thread} onChange={(value) => onChange("thread", value)} options={withValue(threads.map((each) => each.thread), filter.thread)} all="all threads" />
      )}
      <Choice label="Time" value={filter.since} onChange={(value) => onChange("since", value)} options={Object.keys(SPANS)} all="any time" name={(span) => SPANS[span]![1]} />
      <div className="tabs status-tabs" role="group" aria-label="Status">
        <StatusTab isOn={filter.status === ""} onSelect={() => onChange("status", "")}>
          all {counts && <Count>{formatCount(counts.total) + more}</Count>}
        </StatusTab>
        {shown.map((status) => (
          <StatusTab key={status} isOn={filter.status === status} onSelect={() => onChange("status", filter.status === status ? "" : status)}>
            {status} {counts && <Count>{formatCount(counts.statuses[status] ?? 0) + more}</Count>}
          </StatusTab>
        ))}
      </div>
    </div>
  );
}

function withValue(options: string[], value: string): string[] {
  return value === "" || options.includes(value) ? options : [value, ...options];
}

function Count({ children }: { children: ReactNode }) {
  return <span className="tab-count">{children}</span>;
}

function StatusTab({ isOn, onSelect, children }: { isOn: boolean; onSelect: () => void; children: ReactNode }) {
  return (
    <button type="button" className="tab" aria-pressed={isOn} onClick={onSelect}>
      {children}
    </button>
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  options: string[];
  all: string;
  name?: (option: string) => string;
  onChange: (value: string) => void;
}

function Choice({ label, value, options, all, name = String, onChange }: ChoiceProps) {
  return (
    <select className={`select run-filter${value ? " on" : ""}`} aria-label={label} value={value} onChange={(event) => onChange(event.target.value)}>
      <option value="">{all}</option>
      {options.map((option) => (
        <option key={option} value={option}>
          {name(option)}
        </option>
      ))}
    </select>
  );
}

/** What is typed is looked for after a pause. */
function Search({ value, onChange }: { value: string; onChange: (value: string) => void }) {
  const [typed, setTyped] = useState(value);
  const sent = useRef(value);
  const latest = useRef(onChange);
  latest.current = onChange;
  useEffect(() => {
    if (value === sent.current) return;
    sent.current = value;
    setTyped(value);
  }, [value]);
  useEffect(() => {
    if (typed === sent.current) return;
    const timer = setTimeout(() => {
      sent.current = typed;
      latest.current(typed);
    }, TYPING);
    return () => clearTimeout(timer);
  }, [typed]);
  return (
    <input
      type="search"
      className="input run-search"
      data-search
      aria-label="Search runs"
      placeholder="Search id, text, error…  ( / )"
      maxLength={200}
      value={typed}
      onChange={(event) => setTyped(event.target.value)}
      onKeyDown={(event) => {
        if (event.key === "Escape") event.currentTarget.blur();
      }}
    />
  );
}
