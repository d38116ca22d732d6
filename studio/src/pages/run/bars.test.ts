import assert from "node:assert";
import { test } from "node:test";

import type { BarView, TimelineView } from "../../api/types.ts";
import { cutsOf, spansOf, summaryOf } from "./bars.ts";

const bar = (more: Partial<BarView>): BarView => ({ kind: "dep", place: "1:A.x", name: "load", depth: 1, spans: [], outcome: "done", error: "", note: "", items: 0, waits: false, critical: [], slack: null, ...more });
const timeline: TimelineView = { status: "ended", start: 0, end: 107, lives: [[0, 4], [104, 107]], bars: [], total: 2, seconds: 7, critical_seconds: 5, longest: ["1:A.x"], is_exact: true, index: null };

test("the wait for a person is cut out, whether a process ran or not", () => {
  const asked = bar({ kind: "gate", waits: true, spans: [[3, 104]] });
  assert.deepEqual(cutsOf(timeline, [bar({ spans: [[0, 3]] }), asked, bar({ spans: [[104, 107]] })]), [[3, 104]]);
  assert.deepEqual(cutsOf({ ...timeline, lives: [[0, 107]] }, [bar({ spans: [[0, 3]] }), asked, bar({ spans: [[104, 107]] })]), [[3, 104]]);
});

test("work beside a question is not cut out", () => {
  const asked = bar({ kind: "gate", waits: true, spans: [[0, 100]] });
  const cuts = cutsOf({ ...timeline, end: 100, lives: [[0, 100]] }, [bar({ spans: [[0, 100]] }), asked]);
  assert.deepEqual(cuts, []);
});

test("the summary names what decided, and the wait", () => {
  const bars = [bar({ spans: [[0, 4]], critical: [[0, 4]] }), bar({ kind: "gate", waits: true, spans: [[3, 104]] })];
  assert.equal(summaryOf(timeline, bars), "Critical path 5.0 s of 7.0 s: 1:A.x 4.0 s · waited 1 min 41 s for a person");
});

test("what is in progress lasts until now", () => {
  assert.deepEqual(spansOf(bar({ outcome: "running", spans: [[0, 1], [5, 6]] }), 9), [[0, 1], [5, 9]]);
  assert.deepEqual(spansOf(bar({ spans: [[0, 1]] }), 9), [[0, 1]]);
});
