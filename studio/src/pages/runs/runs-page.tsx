// The list of runs: live, with filters that are in the address.

import "./runs.css";

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { useLocation } from "wouter";

import { client } from "../../api/queries.ts";
import { useSearchParams } from "../../search.ts";
import { useMay, useStudio } from "../../studio.tsx";
import { Loading, Problem } from "../../ui/basics.tsx";
import { formatCount } from "../../ui/format.ts";
import { DeleteRuns } from "./delete-runs.tsx";
import { EmptyRuns } from "./empty-runs.tsx";
import { Filters } from "./filters.tsx";
import { filterOf, isFiltered } from "./rows.ts";
import { RunList } from "./run-list.tsx";
import { StartRun } from "./start-run.tsx";
import { useCounts, useRuns } from "./use-runs.ts";

/** Where the list was, by its address: a page that is opened again continues there. */
const places = new Map<string, { scroll: number; cursor: string | null }>();

export default function RunsPage() {
  const [params, setParams] = useSearchParams();
  const [, navigate] = useLocation();
  const text = params.toString();
  const filter = useMemo(() => filterOf(new URLSearchParams(text)), [text]);
  const start = params.get("start");
  const runs = useRuns(filter);
  const counts = useCounts(filter);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [isDeleting, setDeleting] = useState(false);
  const place = JSON.stringify(filter);
  const [cursor, setCursor] = useCursor(place, runs.rows.length > 0);
  const chosen = runs.rows.map(({ row }) => row).filter((row) => selected.has(row.run_id));

  /** An opened dialog adds to the history, a filter replaces what is there. */
  const change = (name: string, value: string | null, replace = true) =>
    setParams(
      (old) => {
        const next = new URLSearchParams(old);
        if (value === null || (value === "" && replace)) next.delete(name);
        else next.set(name, value);
        return next;
      },
      { replace },
    );

  const toggle = (id: string) =>
    setSelected((old) => {
      const next = new Set(old);
      if (!next.delete(id)) next.add(id);
      return next;
    });

  const showNew = () => void runs.restart().then(() => scrollTo({ top: 0 }));
  const compare = () => {
    const [newer, older] = chosen;
    if (newer && older && chosen.length === 2) navigate(`/runs/${encodeURIComponent(older.run_id)}/vs/${encodeURIComponent(newer.run_id)}`);
  };

  const { error, isPending } = runs.query;
  const isEmpty = runs.query.data !== undefined && runs.rows.length === 0;
  return (
    <div className="page runs-page">
      <header className="page-head">
        <h1>Runs</h1>
        <StartButton onStart={() => change("start", "", false)} />
      </header>
      <Filters filter={filter} counts={counts} onChange={(name, value) => change(name, value)} />
      {runs.rows.length > 0 && (
        <RunList
          rows={runs.rows}
          total={counts === undefined || !counts.is_all ? -1 : filter.status === "" ? counts.total : (counts.statuses[filter.status] ?? 0)}
          isStale={runs.isStale}
          selected={selected}
          onSelect={toggle}
          onCompare={compare}
          cursor={cursor}
          onCursor={setCursor}
          onEnd={() => runs.query.hasNextPage && !runs.query.isFetchingNextPage && !runs.query.isFetchNextPageError && void runs.query.fetchNextPage()}
          end={
            runs.query.isFetchNextPageError ? (
              <Problem error={error}>
                <button type="button" className="button small" onClick={showNew}>
                  List the runs again
                </button>
              </Problem>
            ) : runs.query.hasNextPage ? (
              <Loading lines={1} />
            ) : null
          }
        >
          {selected.size > 0 ? (
            <SelectionBar selected={chosen.map((row) => row.run_id)} onCompare={compare} onDelete={() => setDeleting(true)} onClear={() => setSelected(new Set())} />
          ) : (
            <span className="small muted">{countText(runs.rows.length, runs.query.hasNextPage)}</span>
          )}
          <span aria-live="polite">
            {runs.fresh > 0 && selected.size === 0 && (
              <button type="button" className="button small new-runs" onClick={showNew}>
                {runs.fresh >= 50 ? "50 or more" : runs.fresh} new {runs.fresh === 1 ? "run" : "runs"} ↑
              </button>
            )}
          </span>
        </RunList>
      )}
      {isPending && <Loading lines={8} />}
      {error && runs.rows.length === 0 && (
        <Problem error={error}>
          <button type="button" className="button small" onClick={() => void runs.query.refetch()}>
            Try again
          </button>
        </Problem>
      )}
      {isEmpty && !error && (
        <EmptyRuns
          isFiltered={isFiltered(filter)}
          fresh={runs.fresh}
          onShow={showNew}
          onClear={() => setParams({}, { replace: true })}
          onStart={() => change("start", "", false)}
        />
      )}
      {start !== null && <StartRun graph={start} thread={filter.thread} onGraph={(graph) => change("start", graph)} onClose={() => change("start", null)} />}
      {isDeleting && (
        <DeleteRuns
          rows={chosen}
          onClose={() => setDeleting(false)}
          onDeleted={(gone) => {
            runs.drop(gone);
            setSelected((old) => new Set([...old].filter((id) => !gone.has(id))));
            void client.invalidateQueries({ queryKey: ["run-counts"] });
          }}
        />
      )}
    </div>
  );
}

function countText(listed: number, hasMore: boolean): string {
  if (hasMore) return `the newest ${formatCount(listed)}, more below`;
  return `${formatCount(listed)} ${listed === 1 ? "run" : "runs"}`;
}

function StartButton({ onStart }: { onStart: () => void }) {
  const studio = useStudio();
  const { may, why } = useMay("run");
  const hasGraph = studio.graphs.length > 0;
  return (
    <button type="button" className="button primary" disabled={!may || !hasGraph} title={may && !hasGraph ? `No graph is loaded. Start: ${studio.serve_command}` : why} onClick={onStart}>
      Start a run
    </button>
  );
}

interface SelectionProps {
  selected: string[];
  onCompare: () => void;
  onDelete: () => void;
  onClear: () => void;
}

function SelectionBar({ selected, onCompare, onDelete, onClear }: SelectionProps) {
  const { may, why } = useMay("admin");
  const [copied, setCopied] = useState(false);
  const links = selected.map((id) => `${location.origin}/runs/${encodeURIComponent(id)}`).join("\n");
  useEffect(() => setCopied(false), [links]);
  const two = selected.length === 2;
  return (
    <span className="row selection-bar" role="toolbar" aria-label="Selected runs">
      <span className="strong">{formatCount(selected.length)} selected</span>
      <button type="button" className="button small" disabled={!two} title={two ? "" : "Select two runs to compare them"} onClick={onCompare}>
        Compare
      </button>
      <button type="button" className="button small" onClick={() => void navigator.clipboard.writeText(links).then(() => setCopied(true))} aria-live="polite">
        {copied ? "Copied" : selected.length === 1 ? "Copy link" : "Copy links"}
      </button>
      <button type="button" className="button small danger" disabled={!may} title={why} onClick={onDelete}>
        Delete…
      </button>
      <button type="button" className="button quiet small" onClick={onClear}>
        Clear
      </button>
    </span>
  );
}

/** The row at which the keys are. It is remembered with the scroll offset, by list. */
function useCursor(place: string, hasRows: boolean): [string | null, (id: string | null) => void] {
  const [cursors, setCursors] = useState<Record<string, string | null>>({});
  const cursor = place in cursors ? cursors[place]! : (places.get(place)?.cursor ?? null);
  const kept = useRef(cursor);
  kept.current = cursor;
  useLayoutEffect(() => {
    if (!hasRows) return;
    const scroll = places.get(place)?.scroll;
    if (scroll) scrollTo({ top: scroll });
    let last = scroll ?? 0;
    const listen = () => (last = scrollY);
    addEventListener("scroll", listen, { passive: true });
    return () => {
      removeEventListener("scroll", listen);
      places.set(place, { scroll: last, cursor: kept.current });
    };
  }, [place, hasRows]);
  return [cursor, (id) => setCursors((old) => ({ ...old, [place]: id }))];
}
