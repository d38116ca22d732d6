import assert from "node:assert/strict";
import { test } from "node:test";

import { columnOf, countsText, isAnswered, offersOf, shownStatus, spentCost } from "./tasks.ts";

test("a task that asks needs a person, a task that waits for another one does not", () => {
  assert.equal(columnOf({ status: "blocked", question: "How formal?" }), "needs");
  assert.equal(columnOf({ status: "blocked", question: "" }), "todo");
  assert.equal(columnOf({ status: "staged", question: "" }), "done");
  assert.equal(columnOf({ status: "cancelled", question: "" }), "failed");
});

test("an answered task continues with the next run, unless it waits for another one", () => {
  const blocked = { key: "report", status: "blocked", question: "", paused: false, depends_on: ["words"] } as const;
  const words = { key: "words", question: "" };
  const task = { ...blocked, depends_on: [...blocked.depends_on] };
  assert.equal(isAnswered(task, [task, { ...words, status: "completed" }]), true);
  assert.equal(isAnswered(task, [task, { ...words, status: "failed" }]), false);
  assert.equal(isAnswered({ ...task, question: "How many?" }, [task]), false);
  assert.equal(isAnswered({ ...task, paused: true }, [task]), false);
});

test("nothing is shown as running without a run", () => {
  assert.equal(shownStatus({ status: "in_progress", question: "", paused: false }, true), "in_progress");
  assert.equal(shownStatus({ status: "in_progress", question: "", paused: false }, false), "interrupted");
});

test("what cannot be taken back has a warning, and merged work offers nothing", () => {
  assert.deepEqual(offersOf({ status: "completed", paused: false }), []);
  const offers = offersOf({ status: "in_progress", paused: false });
  assert.deepEqual(
    offers.filter((offer) => offer.warning === undefined).map((offer) => offer.action),
    ["pause"],
  );
});

test("failed tests come first, and an unknown cost is not zero", () => {
  assert.equal(countsText({ passed: 3, failed: 1, skipped: 0 }), "1 failed, 3 passed");
  assert.equal(countsText({}), "no tests");
  const format = (cost: number | null) => `$${cost}`;
  assert.equal(spentCost({ cost: null, unpriced: 2 }, format), "unknown");
  assert.equal(spentCost({ cost: 0.4, unpriced: 1 }, format), "at least $0.4");
});
