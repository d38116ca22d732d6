import assert from "node:assert";
import { test } from "node:test";

import { axisOf, idleSpans, roomFor, ticksOf, toAxis, toLane, WHOLE, without, zoomed } from "./scale.ts";

test("time in which nothing happens is cut out, and a short pause is not", () => {
  const cuts = idleSpans(0, 100, [
    [0, 10],
    [12, 20],
    [80, 100],
  ]);
  assert.deepEqual(cuts, [[20, 80]]);
  const axis = axisOf(0, 100, cuts);
  assert.equal(axis.seconds, 40);
  assert.equal(axis.pieces.length, 3);
  const wide = toAxis(axis, 80) - toAxis(axis, 20);
  assert.ok(wide < 0.07, "sixty seconds are as wide as a small part");
  assert.equal(toAxis(axis, 100), 1);
});

test("bars keep their proportions between cuts", () => {
  const axis = axisOf(0, 10, []);
  assert.deepEqual(toLane(axis, [2, 4], WHOLE), { left: 20, width: 20 });
  assert.deepEqual(toLane(axis, [2, 4], [0.2, 0.4]), { left: 0, width: 100 });
  assert.equal(toLane(axis, [2, 4], [0.5, 1]), null);
});

test("ticks count seconds of work, without what is cut", () => {
  const axis = axisOf(0, 100, [[20, 80]]);
  const ticks = ticksOf(axis, WHOLE);
  assert.deepEqual(
    ticks.map((tick) => tick.seconds),
    [0, 10, 20, 30],
  );
});

test("a wait is what is left of a question without work beside it", () => {
  assert.deepEqual(without([0, 10], [[2, 3], [2.5, 4], [9, 12]]), [
    [0, 2],
    [4, 9],
  ]);
});

test("zoom keeps the point under the pointer and stays inside", () => {
  assert.deepEqual(zoomed(WHOLE, 0.5, 0), [0, 0.5]);
  assert.deepEqual(zoomed([0.5, 1], 4), [0, 1]);
});

test("the axis of work in progress grows seldom", () => {
  assert.equal(roomFor(3.1), roomFor(4.5));
  assert.ok(roomFor(60) >= 60);
});
