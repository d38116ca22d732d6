// The rows of the list of runs. Only those in view are in the document.

import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useId, useLayoutEffect, useRef, useState, useSyncExternalStore } from "react";
import { useLocation } from "wouter";

import type { NestedRow } from "./rows.ts";
import { RunLine } from "./run-line.tsx";

const ROW = 40;
const ROW_ON_PHONE = 68;
const AHEAD = 80;

interface RunListProps {
  rows: NestedRow[];
  /** How many rows there are on the server; -1 if that is unknown. */
  total: number;
  isStale: boolean;
  selected: ReadonlySet<string>;
  onSelect: (id: string) => void;
  onCompare: () => void;
  cursor: string | null;
  onCursor: (id: string | null) => void;
  /** The end of what is loaded is near. */
  onEnd: () => void;
  /** What is below the last row. */
  end: ReactNode;
  /** The bar above the rows; it stays in view. */
  children: ReactNode;
}

export function RunList({ rows, total, isStale, selected, onSelect, onCompare, cursor, onCursor, onEnd, end, children }: RunListProps) {
  const id = useId();
  const list = useRef<HTMLDivElement>(null);
  const head = useRef<HTMLDivElement>(null);
  const [margin, setMargin] = useState(0);
  const [covered, setCovered] = useState(0);
  const isNarrow = useNarrow();
  const [, navigate] = useLocation();
  const size = isNarrow ? ROW_ON_PHONE : ROW;
  useLayoutEffect(() => {
    setMargin(Math.round(list.current!.getBoundingClientRect().top + scrollY));
    setCovered(head.current!.offsetHeight);
  });
  const virtual = useWindowVirtualizer({
    count: rows.length,
    estimateSize: () => size,
    getItemKey: (index) => rows[index]!.row.run_id,
    overscan: 10,
    scrollMargin: margin,
    scrollPaddingStart: covered + 8,
    scrollPaddingEnd: isNarrow ? 80 : 16,
  });
  useEffect(() => virtual.measure(), [size, virtual]);
  const shown = virtual.getVirtualItems();
  const last = shown.at(-1)?.index ?? 0;
  useEffect(() => {
    if (last >= rows.length - AHEAD) onEnd();
  }, [last, rows.length, onEnd]);

  const at = cursor === null ? -1 : rows.findIndex(({ row }) => row.run_id === cursor);
  const latest = useRef({ at, rows });
  latest.current = { at, rows };
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input:not([type=checkbox]), textarea, select, [contenteditable], dialog, [role=menu]")) return;
      const found = latest.current;
      const current = found.rows[found.at]?.row;
      const move = { j: 1, k: -1 }[event.key];
      if (move !== undefined) {
        const next = found.at < 0 ? 0 : Math.min(found.rows.length - 1, Math.max(0, found.at + move));
        const id = found.rows[next]!.row.run_id;
        onCursor(id);
        virtual.scrollToIndex(next, { align: "auto" });
        // The row may be rendered only after the list has scrolled.
        requestAnimationFrame(() => requestAnimationFrame(() => document.getElementById(`run-${id}`)?.focus({ preventScroll: true })));
      } else if (event.key === "Enter" && current !== undefined && !target.closest("a, button, input")) {
        navigate(`/runs/${encodeURIComponent(current.run_id)}`);
      } else if (event.key === "x" && current !== undefined) {
        onSelect(current.run_id);
      } else if (event.key === "c") {
        onCompare();
      } else {
        return;
      }
      event.preventDefault();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  });

  return (
    <div className={`runs-table${isStale ? " stale" : ""}`} aria-busy={isStale}>
      {/* The bar above the rows is no part of the table, and scrolls with its heads. */}
      <div role="table" aria-label="Runs" aria-rowcount={total < 0 ? -1 : total + 1} aria-owns={`${id}-heads ${id}-rows`} />
      <div ref={head} className="runs-top">
        <div className="runs-bar">{children}</div>
        <div id={`${id}-heads`} className="run-line run-heads" role="row" aria-rowindex={1}>
          <span role="columnheader" className="sr-only">
            Select
          </span>
          {["Status", "Run", "Graph", "Node", "Took", "Cost", "Started"].map((name) => (
            <span key={name} role="columnheader" className={`head-${name.toLowerCase()}`}>
              {name}
            </span>
          ))}
        </div>
      </div>
      <div ref={list} id={`${id}-rows`} className="runs-rows" role="rowgroup" style={{ height: virtual.getTotalSize() }}>
        {shown.map((item) => {
          const { row, depth } = rows[item.index]!;
          return (
            <RunLine
              key={item.key}
              row={row}
              depth={depth}
              index={item.index + 2}
              top={item.start - margin}
              height={size}
              isSelected={selected.has(row.run_id)}
              isCursor={item.index === at}
              onSelect={onSelect}
              onCursor={onCursor}
            />
          );
        })}
      </div>
      {end && <div className="runs-end">{end}</div>}
    </div>
  );
}

const narrow = matchMedia("(max-width: 760px)");

function useNarrow(): boolean {
  return useSyncExternalStore(
    (listener) => {
      narrow.addEventListener("change", listener);
      return () => narrow.removeEventListener("change", listener);
    },
    () => narrow.matches,
  );
}
