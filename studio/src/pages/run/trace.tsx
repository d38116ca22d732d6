// The nodes of a run in order, with their fields. A long run is folded by class, and read in blocks.

import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef, useState } from "react";

import { type RunAt, stepsQuery } from "../../api/queries.ts";
import type { RunDetails, StepPage } from "../../api/types.ts";
import { Empty, Loading, Problem } from "../../ui/basics.tsx";
import { formatCount } from "../../ui/format.ts";
import { useBlocks } from "./blocks.ts";
import { useRunGraph } from "./graph-panel.tsx";
import type { ChangeView, RunView } from "./run-view.ts";
import { plural } from "./sources.tsx";
import { StepCard } from "./step-card.tsx";

const BLOCK = 500;
/** Runs with more nodes are folded by class. */
const LONG = 200;
/** Runs with at most so many nodes are shown with all fields. */
const OPENED = 30;

interface TraceProps {
  at: RunAt;
  details: RunDetails;
  view: RunView;
  change: ChangeView;
  /** Null where runs cannot be forked. */
  onFork: ((step: number) => void) | null;
}

export function Trace(props: TraceProps) {
  const { at, view, change } = props;
  const isFiltered = view.node !== "" || view.filter !== "";
  const start = isFiltered ? 0 : (view.step ?? 0);
  const [range, setRange] = useState<readonly [number, number]>([start, start]);
  const blocks = useBlocks(
    {
      query: (first) => stepsQuery(at, { path: view.path, node: view.node, q: view.filter, start: first, limit: BLOCK }),
      items: (page: StepPage) => page.steps,
      total: (page) => page.total,
      size: BLOCK,
    },
    range,
  );
  const [inOrder, setInOrder] = useState(view.step !== null);
  const total = blocks.page?.total ?? 0;
  const first = useFirst(blocks.page?.total, view.path);
  const isFolded = first !== undefined && first > LONG && !isFiltered && view.step === null && !inOrder;
  return (
    <div className="run-trace">
      <Filter view={view} change={change} total={blocks.page?.total} isLong={(first ?? 0) > LONG} isFolded={isFolded} onUnfold={() => setInOrder(!inOrder)} />
      {blocks.error !== null && blocks.page === undefined && <Problem error={blocks.error} />}
      {blocks.page === undefined && blocks.error === null && <Loading lines={6} />}
      {blocks.page !== undefined && total === 0 && (isFiltered ? <Empty mark="⌕" title="No node matches" /> : <Empty mark="○" title="No node was reached yet" />)}
      {isFolded && <Folded at={at} view={view} change={change} onUnfold={() => setInOrder(true)} />}
      {total > 0 && !isFolded && <Steps key={`${view.path} ${view.node} ${view.filter}`} {...props} total={total} get={blocks.get} onRange={setRange} isFiltered={isFiltered} />}
    </div>
  );
}

/** The first value that is known: a run in progress that gets long stays as it is shown. */
function useFirst<T>(value: T | undefined, key: string): T | undefined {
  const known = useRef<{ key: string; value: T | undefined }>({ key, value });
  if (known.current.key !== key || known.current.value === undefined) known.current = { key, value };
  return known.current.value;
}

function Filter({ view, change, total, isLong, isFolded, onUnfold }: { view: RunView; change: ChangeView; total: number | undefined; isLong: boolean; isFolded: boolean; onUnfold: () => void }) {
  const [typed, setTyped] = useState(view.filter);
  const timer = useRef(0);
  useEffect(() => setTyped(view.filter), [view.filter]);
  return (
    <div className="trace-filter row">
      <input
        data-search
        className="input"
        type="search"
        placeholder="Filter by class, field or value"
        aria-label="Filter nodes"
        value={typed}
        onChange={(event) => {
          setTyped(event.target.value);
          window.clearTimeout(timer.current);
          timer.current = window.setTimeout(() => change({ filter: event.target.value.trim(), step: null, field: "" }, true), 250);
        }}
      />
      {view.node !== "" && (
        <button type="button" className="button small" onClick={() => change({ node: "" }, true)} title="Show the nodes of all classes">
          {view.node} ✕
        </button>
      )}
      <span className="small muted" aria-live="polite">
        {total !== undefined && plural(total, "node")}
      </span>
      {isLong && view.node === "" && view.filter === "" && view.step === null && (
        <button type="button" className="button quiet small" onClick={onUnfold}>
          {isFolded ? "in order" : "by class"}
        </button>
      )}
    </div>
  );
}

/** How often each class was visited, for a run that is too long to read from its beginning. */
function Folded({ at, view, change, onUnfold }: { at: RunAt; view: RunView; change: ChangeView; onUnfold: () => void }) {
  const { data } = useRunGraph(at, view.path);
  const visited = data?.boxes.filter((box) => box.visits > 0) ?? [];
  return (
    <ul className="trace-folds">
      {visited.map((box) => (
        <li key={box.node}>
          <button type="button" className="trace-fold" onClick={() => change({ node: box.node }, true)}>
            <span aria-hidden="true">▸</span>
            <span className="strong">{box.node}</span>
            {box.visits > 1 && <span className="muted">×{formatCount(box.visits)}</span>}
            {box.is_current && <span className="tag">now</span>}
            <span className="link">show</span>
          </button>
        </li>
      ))}
      <li>
        <button type="button" className="trace-fold" onClick={onUnfold}>
          <span aria-hidden="true">▸</span>
          All nodes in order <span className="link">show</span>
        </button>
      </li>
    </ul>
  );
}

interface StepsProps extends TraceProps {
  total: number;
  get: (index: number) => StepPage["steps"][number] | undefined;
  onRange: (range: readonly [number, number]) => void;
  isFiltered: boolean;
}

function Steps({ at, details, view, change, onFork, total, get, onRange, isFiltered }: StepsProps) {
  const box = useRef<HTMLDivElement>(null);
  const [toggled, setToggled] = useState<ReadonlyMap<number, boolean>>(new Map());
  const [opened] = useState(total <= OPENED ? OPENED : 0);
  const isOpen = (step: number) => toggled.get(step) ?? (step < opened || step === view.step);
  const rows = useVirtualizer({
    count: total,
    getScrollElement: () => box.current,
    estimateSize: (index) => (index < opened ? 160 : 40),
    overscan: 6,
    getItemKey: (index) => get(index)?.step ?? `at ${index}`,
  });
  const shown = rows.getVirtualItems();
  const [first, last] = [shown[0]?.index ?? 0, shown.at(-1)?.index ?? 0];
  useEffect(() => onRange([first, last]), [onRange, first, last]);
  useEffect(() => {
    if (view.step === null || isFiltered) return;
    rows.scrollToIndex(view.step, { align: "auto" });
    // Its height is known when it is drawn.
    const frame = requestAnimationFrame(() => {
      const step = box.current?.querySelector(".step.selected");
      (step?.querySelector(".field.selected") ?? step?.querySelector(".step-head"))?.scrollIntoView({ block: "nearest" });
    });
    return () => cancelAnimationFrame(frame);
  }, [view.step, view.field, isFiltered, rows]);
  return (
    <div ref={box} className="trace-scroll" tabIndex={-1}>
      <ol style={{ height: rows.getTotalSize() }} className="trace-body">
        {shown.map((row) => {
          const step = get(row.index);
          return (
            <li key={row.key} ref={rows.measureElement} data-index={row.index} className="trace-item" style={{ transform: `translateY(${row.start}px)` }} aria-setsize={total} aria-posinset={row.index + 1}>
              {step === undefined ? (
                <div className="trace-wait">
                  <span className="muted">{row.index}</span> <span className="skeleton" />
                </div>
              ) : (
                <StepCard
                  at={at}
                  details={details}
                  step={step}
                  isOpen={isOpen(step.step)}
                  onToggle={() => setToggled(new Map(toggled).set(step.step, !isOpen(step.step)))}
                  isSelected={step.step === view.step}
                  field={step.step === view.step ? view.field : ""}
                  change={change}
                  onFork={onFork}
                />
              )}
            </li>
          );
        })}
      </ol>
    </div>
  );
}
