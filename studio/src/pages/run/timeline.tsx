// What ran when, with the critical path. Bars are elements of HTML, so that their texts can be
// selected, searched and read aloud.

import { useQuery } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { type PointerEvent, useEffect, useMemo, useRef, useState } from "react";

import { type RunAt, timelineQuery } from "../../api/queries.ts";
import type { BarView, TimelineView } from "../../api/types.ts";
import { Empty, Loading, Problem } from "../../ui/basics.tsx";
import { formatSeconds } from "../../ui/format.ts";
import { criticalOf, cutsOf, nameOfBar, secondsOf, spansOf, summaryOf } from "./bars.ts";
import { useBlocks } from "./blocks.ts";
import { parsePlace } from "./places.ts";
import type { ChangeView, RunView } from "./run-view.ts";
import { type Axis, axisOf, roomFor, ticksOf, toLane, WHOLE, type Zoom, zoomed } from "./scale.ts";
import { workOf } from "./sources.tsx";

const BLOCK = 1000;
const TICK = 250;
/** Percent of a lane that the label of a cut needs. */
const LABEL = 9;

interface TimelineProps {
  at: RunAt;
  view: RunView;
  change: ChangeView;
  isNarrow: boolean;
}

export function Timeline({ at, view, change, isNarrow }: TimelineProps) {
  const [range, setRange] = useState<readonly [number, number]>([0, 0]);
  const blocks = useBlocks(
    {
      query: (start) => timelineQuery(at, { start, limit: BLOCK }),
      items: (page: TimelineView) => page.bars,
      total: (page) => page.total,
      size: BLOCK,
    },
    range,
  );
  const timeline = blocks.page;
  if (timeline === undefined) {
    return (
      <section className="panel run-timeline" aria-label="Timeline">
        <div className="panel-body">{blocks.error ? <Problem error={blocks.error} /> : <Loading lines={5} />}</div>
      </section>
    );
  }
  if (timeline.total === 0) {
    return (
      <section className="panel run-timeline" aria-label="Timeline">
        <Empty mark="╱" title="Nothing ran yet" />
      </section>
    );
  }
  return <Chart at={at} timeline={timeline} get={blocks.get} readAt={blocks.readAt} view={view} change={change} isNarrow={isNarrow} onRange={setRange} />;
}

interface ChartProps extends TimelineProps {
  timeline: TimelineView;
  get: (index: number) => BarView | undefined;
  readAt: number;
  onRange: (range: readonly [number, number]) => void;
}

function Chart({ at, timeline, get, readAt, view, change, isNarrow, onRange }: ChartProps) {
  const [zoom, setZoom] = useState<Zoom>(WHOLE);
  const box = useRef<HTMLDivElement>(null);
  const now = useServerNow(timeline, readAt);
  const bars = timeline.total <= timeline.bars.length ? timeline.bars : NO_BARS;
  const room = timeline.status === "running" ? roomFor(timeline.seconds + now - timeline.end) - timeline.seconds : 0;
  const axis = useMemo(() => axisOf(timeline.start, timeline.end + room, cutsOf(timeline, bars)), [timeline, bars, room]);
  const rows = useVirtualizer({ count: timeline.total, getScrollElement: () => box.current, estimateSize: () => (isNarrow ? 52 : 26), overscan: 8, paddingStart: 28, getItemKey: (index) => keyOf(get(index), index) });
  useEffect(() => rows.measure(), [isNarrow, rows]);
  const shown = rows.getVirtualItems();
  const [first, last] = [shown[0]?.index ?? 0, shown.at(-1)?.index ?? 0];
  useEffect(() => onRange([first, last]), [onRange, first, last]);
  const drag = useDrag(box, zoom, setZoom);
  useSelectedInView(at, timeline, view, (index) => rows.scrollToIndex(index, { align: "auto" }));
  const isSelected = (bar: BarView) => {
    const place = parsePlace(bar.place);
    return place !== null && place.step === view.step && place.path === view.path && (place.field === view.field || (view.field === "" && bar.depth === 0));
  };
  const select = (bar: BarView) => {
    const place = parsePlace(bar.place);
    if (place !== null) change({ step: place.step, path: place.path, field: bar.kind === "node" ? "" : place.field, node: "", filter: "", tab: isNarrow ? "trace" : view.tab === "graph" || view.tab === "timeline" ? "trace" : view.tab });
  };
  return (
    <section className="panel run-timeline" aria-label="Timeline">
      <div className="panel-head">
        <h2>Timeline</h2>
        <p className="small muted grow truncate-2" title={summaryOf(timeline, bars)}>
          {summaryOf(timeline, bars)}
        </p>
        <div className="row tl-zoom" role="group" aria-label="Zoom">
          <button type="button" className="button quiet small" onClick={() => setZoom(WHOLE)} disabled={zoom === WHOLE} title="Show the whole run">
            fit
          </button>
          <button type="button" className="button quiet small" onClick={() => setZoom(zoomed(zoom, 0.5))} aria-label="Zoom in">
            +
          </button>
          <button type="button" className="button quiet small" onClick={() => setZoom(zoomed(zoom, 2))} disabled={zoom === WHOLE} aria-label="Zoom out">
            −
          </button>
        </div>
      </div>
      <div ref={box} className="tl-scroll" tabIndex={0} {...drag.handlers}>
        <div className={isNarrow ? "tl-body narrow" : "tl-body"} style={{ height: rows.getTotalSize() }}>
          <Ruler axis={axis} zoom={zoom} selected={drag.span} />
          <ol aria-label={`${timeline.total} pieces of work of ${at.run}`}>
            {shown.map((row) => {
              const bar = get(row.index);
              return (
                <li key={row.key} className="tl-row" style={{ transform: `translateY(${row.start}px)`, height: row.size }} aria-setsize={timeline.total} aria-posinset={row.index + 1}>
                  {bar === undefined ? <span className="skeleton tl-wait" /> : <Bar bar={bar} axis={axis} zoom={zoom} now={now} isSelected={isSelected(bar)} onSelect={() => drag.wasDrag() || select(bar)} />}
                </li>
              );
            })}
          </ol>
        </div>
      </div>
    </section>
  );
}

const NO_BARS: readonly BarView[] = [];

function keyOf(bar: BarView | undefined, index: number): string {
  return bar === undefined ? `${index}` : `${bar.kind} ${bar.place}`;
}

function Ruler({ axis, zoom, selected }: { axis: Axis; zoom: Zoom; selected: readonly [number, number] | null }) {
  const cuts = axis.pieces.filter((piece) => piece.isCut);
  const labels = cuts.map((cut) => toLane(axis, [cut.from, cut.to], zoom));
  // The label of what is cut out needs its room.
  const isFree = (left: number) => !labels.some((label) => label !== null && left > label.left - LABEL && left < label.left + Math.max(label.width, LABEL));
  return (
    <div className="tl-ruler" aria-hidden="true">
      <div className="tl-lane">
        {ticksOf(axis, zoom).filter((tick) => isFree(tick.left)).map((tick) => (
          <span key={tick.left} className="tl-tick" style={{ left: `${tick.left}%` }}>
            {tick.seconds === 0 ? "0" : formatSeconds(tick.seconds)}
          </span>
        ))}
        {cuts.map((cut) => {
          const place = toLane(axis, [cut.from, cut.to], zoom);
          return (
            place && (
              <span key={cut.from} className={`tl-cut${place.left + place.width > 92 ? " last" : ""}`} style={{ left: `${place.left}%`, width: `${place.width}%` }} title={`${formatSeconds(cut.to - cut.from)} without work are cut out`}>
                <span>╱╱ {formatSeconds(cut.to - cut.from)} ╱╱</span>
              </span>
            )
          );
        })}
        {selected !== null && <span className="tl-selected" style={{ left: `${Math.min(...selected) * 100}%`, width: `${Math.abs(selected[1] - selected[0]) * 100}%` }} />}
      </div>
    </div>
  );
}

/** A part of a lane; the shortest one at its end can be seen as well. */
function lanePart({ left, width }: { left: number; width: number }) {
  return { left: `min(${left}%, 100% - 2px)`, width: `${width}%` };
}

interface BarProps {
  bar: BarView;
  axis: Axis;
  zoom: Zoom;
  now: number;
  isSelected: boolean;
  onSelect: () => void;
}

function Bar({ bar, axis, zoom, now, isSelected, onSelect }: BarProps) {
  const [name, more] = nameOfBar(bar);
  const isCritical = bar.critical.length > 0;
  const title = [
    `${bar.place}: ${formatSeconds(secondsOf(bar, now))}`,
    isCritical && !bar.waits ? "on the critical path" : "",
    bar.slack !== null && bar.slack > 0.001 && !isCritical ? `could take ${formatSeconds(bar.slack)} longer without delaying the run` : "",
    bar.items > 0 ? `${bar.items} items` : "",
    bar.error,
    bar.note,
  ].filter(Boolean);
  const work = bar.waits ? "gate" : workOf(bar.kind);
  return (
    <div className={`tl-bar ${work} ${bar.outcome}${isSelected ? " selected" : ""}${bar.kind === "node" ? " node" : ""}`} title={title.join("\n")} onClick={onSelect}>
      <button type="button" className="tl-name" style={{ paddingLeft: 8 + Math.min(bar.depth, 6) * 12 }} aria-pressed={isSelected}>
        <span className="truncate">
          {name} {more && <span className="muted">{more}</span>}
          {bar.outcome === "failed" && <span className="fault"> ✗</span>}
        </span>
        {isCritical && <span className="sr-only">, on the critical path</span>}
      </button>
      <div className="tl-lane">
        {spansOf(bar, now).map((span, index) => {
          const place = toLane(axis, span, zoom);
          return place && <span key={index} className={bar.waits ? "tl-span waits" : "tl-span"} style={lanePart(place)} />;
        })}
        {!bar.waits &&
          criticalOf(bar, now).map((span, index) => {
            const place = toLane(axis, span, zoom);
            return place && <span key={`c${index}`} className="tl-span critical" style={lanePart(place)} />;
          })}
      </div>
      <span className="tl-took small">{formatSeconds(secondsOf(bar, now))}</span>
    </div>
  );
}

/** Scroll to the first bar of the selected step. Of a long run the server knows where it is. */
function useSelectedInView(at: RunAt, timeline: TimelineView, view: RunView, show: (index: number) => void): void {
  const { step, path } = view;
  const isWhole = timeline.total <= timeline.bars.length;
  const known = isWhole && step !== null ? timeline.bars.findIndex((bar) => isAtStep(bar, step, path)) : -1;
  const place = step === null || isWhole ? null : `${path ? `${path}/` : ""}${step}`;
  const { data } = useQuery({ ...timelineQuery(at, { place: place ?? "", limit: 1 }), enabled: place !== null, staleTime: Infinity });
  const index = known >= 0 ? known : (data?.index ?? -1);
  const latest = useRef(show);
  latest.current = show;
  useEffect(() => {
    if (index >= 0) latest.current(index);
  }, [index, step, path]);
}

function isAtStep(bar: BarView, step: number, path: string): boolean {
  const place = parsePlace(bar.place);
  return place !== null && place.step === step && place.path === path;
}

/** The time at the server: what is in progress is drawn until then. */
function useServerNow(timeline: TimelineView, readAt: number): number {
  const isRunning = timeline.status === "running";
  const [clock, setClock] = useState(() => Date.now());
  useEffect(() => {
    if (!isRunning) return;
    const timer = setInterval(() => setClock(Date.now()), TICK);
    return () => clearInterval(timer);
  }, [isRunning]);
  return isRunning ? timeline.end + Math.max(0, clock - readAt) / 1000 : timeline.end;
}

/** Dragging over the lanes zooms to a span; the wheel with Ctrl zooms around the pointer. */
function useDrag(box: React.RefObject<HTMLDivElement | null>, zoom: Zoom, setZoom: (zoom: Zoom) => void) {
  const [span, setSpan] = useState<readonly [number, number] | null>(null);
  const from = useRef<number | null>(null);
  const dragged = useRef(false);
  const latest = useRef(zoom);
  latest.current = zoom;
  const partOf = (clientX: number): number | null => {
    const lane = box.current?.querySelector(".tl-ruler .tl-lane")?.getBoundingClientRect();
    return lane === undefined || lane.width === 0 ? null : (clientX - lane.left) / lane.width;
  };
  useEffect(() => {
    const element = box.current!;
    const wheel = (event: WheelEvent) => {
      const part = partOf(event.clientX);
      if (!event.ctrlKey || part === null) return;
      event.preventDefault();
      setZoom(zoomed(latest.current, event.deltaY > 0 ? 1.25 : 0.8, Math.min(1, Math.max(0, part))));
    };
    element.addEventListener("wheel", wheel, { passive: false });
    return () => element.removeEventListener("wheel", wheel);
  });
  const end = () => {
    if (span !== null && from.current !== null) {
      const [low, high] = latest.current;
      const [a, b] = [Math.min(...span), Math.max(...span)].map((part) => low + (high - low) * Math.min(1, Math.max(0, part)));
      if (b! - a! > 1e-5) setZoom([a!, b!]);
    }
    from.current = null;
    setSpan(null);
  };
  const handlers = {
    onPointerDown: (event: PointerEvent) => {
      dragged.current = false;
      const part = partOf(event.clientX);
      if (event.pointerType === "mouse" && event.button === 0 && part !== null && part >= 0 && part <= 1) from.current = part;
    },
    onPointerMove: (event: PointerEvent) => {
      const part = partOf(event.clientX);
      if (from.current === null || part === null || event.buttons === 0) return;
      if (span === null && Math.abs(part - from.current) < 0.01) return;
      dragged.current = true;
      event.currentTarget.setPointerCapture(event.pointerId);
      setSpan([from.current, part]);
    },
    onPointerUp: end,
    onPointerCancel: end,
    onDoubleClick: () => setZoom(WHOLE),
  };
  return { span, handlers, wasDrag: () => dragged.current };
}
