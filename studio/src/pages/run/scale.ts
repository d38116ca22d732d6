// The axis of a timeline. Times in which nothing happens are cut out: each is as wide as a fixed part
// of the whole. Positions are parts of the axis, from 0 to 1, and then of what is zoomed to.

import type { Span } from "../../api/types.ts";

/** What part of the time of work a cut is as wide as. */
const CUT_WIDTH = 0.06;
const FEW = 0.15;
const SHORT = 0.05;

export interface Piece {
  from: number;
  to: number;
  /** Where it begins and ends on the axis. */
  left: number;
  right: number;
  isCut: boolean;
}

export interface Axis {
  pieces: readonly Piece[];
  /** Seconds that are shown: all but the cut ones. */
  seconds: number;
}

export type Zoom = readonly [from: number, to: number];
export const WHOLE: Zoom = [0, 1];

/** Spans in order, with those that touch each other as one. */
export function merged(spans: readonly Span[]): Span[] {
  const found: Span[] = [];
  for (const [from, to] of [...spans].sort((a, b) => a[0] - b[0])) {
    const last = found.at(-1);
    if (last !== undefined && from <= last[1]) last[1] = Math.max(last[1], to);
    else found.push([from, to]);
  }
  return found;
}

/** What is left of a span without others. */
export function without(span: Span, others: readonly Span[]): Span[] {
  const found: Span[] = [];
  let at = span[0];
  for (const [from, to] of merged(others)) {
    if (to <= at) continue;
    if (from >= span[1]) break;
    if (from > at) found.push([at, from]);
    at = Math.max(at, to);
  }
  if (at < span[1]) found.push([at, span[1]]);
  return found;
}

/** The times to cut out: without `work`, and longer than a part of the time with work. */
export function idleSpans(start: number, end: number, work: readonly Span[]): Span[] {
  const idle = without([start, end], work);
  const worked = end - start - idle.reduce((sum, [from, to]) => sum + to - from, 0);
  return idle.filter(([from, to]) => to - from > Math.max(FEW * worked, SHORT));
}

export function axisOf(start: number, end: number, cuts: readonly Span[]): Axis {
  const cut = merged(cuts);
  const seconds = Math.max(end - start - cut.reduce((sum, [from, to]) => sum + to - from, 0), 1e-6);
  const width = seconds * CUT_WIDTH;
  const all = seconds + cut.length * width;
  const pieces: Piece[] = [];
  let at = start;
  let left = 0;
  const add = (to: number, isCut: boolean) => {
    const right = left + (isCut ? width : to - at) / all;
    if (to > at) pieces.push({ from: at, to, left, right, isCut });
    at = to;
    left = right;
  };
  for (const [from, to] of cut) {
    add(from, false);
    add(to, true);
  }
  add(end, false);
  return { pieces, seconds };
}

/** Where a time is on the axis. */
export function toAxis(axis: Axis, at: number): number {
  for (const piece of axis.pieces) {
    if (at <= piece.to) {
      const part = piece.to > piece.from ? (at - piece.from) / (piece.to - piece.from) : 0;
      return piece.left + Math.max(0, part) * (piece.right - piece.left);
    }
  }
  return 1;
}

/** Where a span is in what is zoomed to, in percent of the lane; null outside of it. */
export function toLane(axis: Axis, [from, to]: Span, [low, high]: Zoom): { left: number; width: number } | null {
  const left = (toAxis(axis, from) - low) / (high - low);
  const right = (toAxis(axis, to) - low) / (high - low);
  if (right < 0 || left > 1) return null;
  const begin = Math.max(left, -0.01);
  return { left: begin * 100, width: (Math.min(right, 1.01) - begin) * 100 };
}

/** Times to write above the lanes: seconds of work since the beginning, and where they are in percent. */
export function ticksOf(axis: Axis, [low, high]: Zoom, most = 6): { seconds: number; left: number }[] {
  const shown = axis.seconds * (high - low);
  const rough = shown / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
  const found: { seconds: number; left: number }[] = [];
  let worked = 0;
  for (const piece of axis.pieces) {
    if (piece.isCut) continue;
    const length = piece.to - piece.from;
    for (let number = worked === 0 ? 0 : Math.floor(worked / step + 1e-9) + 1; number * step <= worked + length; number++) {
      const at = piece.left + ((number * step - worked) / length) * (piece.right - piece.left);
      const left = ((at - low) / (high - low)) * 100;
      if (left >= 0 && left < 97) found.push({ seconds: number * step, left });
      if (found.length > 50) return found;
    }
    worked += length;
  }
  return found;
}

/** An end of the axis of work in progress, which moves seldom: other bars stay where they are. */
export function roomFor(seconds: number): number {
  let room = 2;
  while (room < seconds * 1.02) room *= room < 10 ? 2.5 : 2;
  return room;
}

/** What is zoomed to, closer (below 1) or further (above 1), around a point of it. */
export function zoomed([low, high]: Zoom, factor: number, around = 0.5): Zoom {
  const width = Math.min(1, Math.max((high - low) * factor, 1e-5));
  const center = low + (high - low) * around;
  const from = Math.min(Math.max(0, center - width * around), 1 - width);
  return [from, from + width];
}
