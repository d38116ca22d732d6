// What a timeline says about its bars, in words.

import type { BarView, Span, TimelineView } from "../../api/types.ts";
import { formatSeconds } from "../../ui/format.ts";
import { parsePlace, shortPlace } from "./places.ts";
import { idleSpans, merged } from "./scale.ts";

/** What part of the critical path is worth a word. */
const WORTH = 0.01;

/** What a bar is called, and what stands behind the name. */
export function nameOfBar(bar: BarView): [name: string, more: string] {
  const place = parsePlace(bar.place);
  switch (bar.kind) {
    case "node":
      return [place === null ? bar.name : `${place.step} ${place.node}`, ""];
    case "fill":
      return ["filled by the LLM", ""];
    case "choice":
      return ["LLM chooses", bar.name];
    case "body":
      return ["body", ""];
    case "tool":
      return [`${bar.name}()`, bar.note];
    case "item":
      return [bar.name, ""];
    default: {
      const field = place?.field || bar.name;
      return [field, bar.name === field ? "" : bar.name];
    }
  }
}

/** How long a piece of work took. What is in progress takes until `now`. */
export function secondsOf(bar: BarView, now: number): number {
  return spansOf(bar, now).reduce((sum, [from, to]) => sum + to - from, 0);
}

/** When a piece of work was worked on; the last time lasts until now, if it is in progress. */
export function spansOf(bar: BarView, now: number): readonly Span[] {
  const last = bar.spans.at(-1);
  if (last === undefined || bar.outcome !== "running" || now <= last[1]) return bar.spans;
  return [...bar.spans.slice(0, -1), [last[0], now]];
}

/** When the run waited for nothing else; work in progress is what it waits for now. */
export function criticalOf(bar: BarView, now: number): readonly Span[] {
  const last = bar.critical.at(-1);
  const end = bar.spans.at(-1)?.[1];
  if (last === undefined || end === undefined || bar.outcome !== "running" || Math.abs(last[1] - end) > 0.01) return bar.critical;
  return [...bar.critical.slice(0, -1), [last[0], Math.max(now, last[1])]];
}

/** How long people were waited for. */
export function waitedSeconds(bars: readonly BarView[]): number {
  const spans = bars.filter((bar) => bar.waits).flatMap((bar) => bar.spans);
  return merged(spans).reduce((sum, [from, to]) => sum + to - from, 0);
}

/** The times to cut out of the axis: those without a process, and those in which everything waits
 *  for people. */
export function cutsOf(timeline: TimelineView, bars: readonly BarView[]): Span[] {
  const waits = bars.filter((bar) => bar.waits).flatMap((bar) => bar.spans);
  const work = bars.filter((bar) => !bar.waits && bar.kind !== "node" && bar.kind !== "item").flatMap((bar) => bar.spans);
  const lives = waits.length === 0 ? timeline.lives : [...livesWithout(timeline.lives, waits), ...work];
  return idleSpans(timeline.start, timeline.end, lives);
}

function livesWithout(lives: readonly Span[], waits: readonly Span[]): Span[] {
  const asked = merged(waits);
  const found: Span[] = [];
  for (const life of lives) {
    let at = life[0];
    for (const [from, to] of asked) {
      if (to <= at || from >= life[1]) continue;
      if (from > at) found.push([at, from]);
      at = Math.max(at, to);
    }
    if (at < life[1]) found.push([at, life[1]]);
  }
  return found;
}

/** What decided how long the run took, in a sentence. */
export function summaryOf(timeline: TimelineView, bars: readonly BarView[]): string {
  const took = new Map<string, number>();
  for (const bar of bars) {
    const seconds = bar.critical.reduce((sum, [from, to]) => sum + to - from, 0);
    if (!bar.waits && seconds > 0) took.set(bar.place, (took.get(bar.place) ?? 0) + seconds);
  }
  const places = [...new Set(timeline.longest)].filter((place) => (took.get(place) ?? Infinity) >= WORTH * timeline.critical_seconds);
  const longest = places.map((place) => {
    const seconds = took.get(place);
    return seconds === undefined ? shortPlace(place) : `${shortPlace(place)} ${formatSeconds(seconds)}`;
  });
  const waited = waitedSeconds(bars);
  const path = `Critical path ${formatSeconds(timeline.critical_seconds)} of ${formatSeconds(timeline.seconds)}${timeline.is_exact ? "" : " (estimated)"}`;
  const parts = [longest.length > 0 ? `${path}: ${longest.join(", ")}` : path];
  if (waited > 0.001) parts.push(`waited ${formatSeconds(waited)} for a person`);
  return parts.join(" · ");
}
