// The rows of the list of runs. Only those in view are in the document.

import { useWindowVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useLayoutEffect, useRef, useState } from "react";
import { useLocation } from "wouter";

import { useIsNarrow } from "../../ui/narrow.ts";
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
  const list = useRef<HTMLDivElement>(null);
  const bar = useRef<HTMLDivElement>(null);
  const head = useRef<HTMLDivElement>(null);
  const [margin, setMargin] = useState(0);
  const [covered, setCovered] = useState(0);
  const isNarrow = useIsNarrow();
  const [, navigate] = useLocation();
  const size = isNarrow ? ROW_ON_PHONE : ROW;
  useLayoutEffect(() => {
    const measure = () => {
      setMargin(Math.round(list.current!.getBoundingClientRect().top + scrollY));
      setCovered(bar.current!.offsetHeight + head.current!.offsetHeight);
    };
    measure();
    // A banner above the list, or filters that wrap, make the page higher.
    const observer = new ResizeObserver(measure);
    observer.observe(document.body);
    return () => observer.disconnect();
  }, []);
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
  // A row that is out of view is rendered only after the list has scrolled.
  const toFocus = useRef<string | null>(null);
  useEffect(() => {
    const row = toFocus.current === null ? null : document.getElementById(`run-${toFocus.current}`);
    if (row === null) return;
    toFocus.current = null;
    row.focus({ preventScroll: true });
  });
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
        const inView = Math.ceil((scrollY + covered - margin) / size);
        const next = found.at < 0 ? Math.min(found.rows.length - 1, Math.max(0, inView)) : Math.min(found.rows.length - 1, Math.max(0, found.at + move));
        const id = found.rows[next]!.row.run_id;
        onCursor(id);
        virtual.scrollToIndex(next, { align: "auto" });
        toFocus.current = id;
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
    <div className={`runs-table${isStale ? " stale" : ""}`}>
      <div ref={bar} className="runs-bar">
        {children}
      </div>
      <div role="table" aria-label="Runs" aria-rowcount={total < 0 ? -1 : total + 1} aria-busy={isStale}>
        <div ref={head} className="run-line run-heads" role="row" aria-rowindex={1}>
          <span role="columnheader" className="sr-only">
            Select
          </span>
          {["Status", "Run", "Graph", "Node", "Took", "Cost", "Started"].map((name) => (
            <span key={name} role="columnheader" className={`head-${name.toLowerCase()}`}>
              {name}
            </span>
          ))}
        </div>
        <div ref={list} className="runs-rows" role="rowgroup" style={{ height: virtual.getTotalSize() }}>
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
      </div>
      {end && <div className="runs-end">{end}</div>}
    </div>
  );
}
