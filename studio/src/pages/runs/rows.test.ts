import assert from "node:assert";
import { test } from "node:test";

import type { RunRow } from "../../api/types.ts";
import { filterOf, forksFirst, nestRows, patchPages, queryOf } from "./rows.ts";

function run(run_id: string, more: Partial<RunRow> = {}): RunRow {
  return {
    run_id,
    graph: "g",
    status: "ended",
    preview: "",
    started: 0,
    updated: 0,
    seconds: 0,
    error: "",
    parent: null,
    thread: null,
    metadata: {},
    waiting: [],
    waiting_count: 0,
    node: "",
    steps: null,
    calls: null,
    tokens: null,
    cost: null,
    change: 1,
    ...more,
  };
}

const page = (...runs: RunRow[]) => ({ runs, next: null, change: 9 });

test("a fork is below its parent, and a fork of a fork below that", () => {
  const rows = nestRows([page(run("c", { parent: "b" }), run("x"), run("b", { parent: "a" }), run("a"))]);
  assert.deepEqual(
    rows.map(({ row, depth }) => [row.run_id, depth]),
    [
      ["x", 0],
      ["a", 0],
      ["b", 1],
      ["c", 2],
    ],
  );
});

test("a fork whose parent comes with a later page stays where it is", () => {
  const rows = nestRows([page(run("fork", { parent: "a" })), page(run("a"))]);
  assert.deepEqual(
    rows.map(({ row, depth }) => [row.run_id, depth]),
    [
      ["fork", 0],
      ["a", 0],
    ],
  );
});

test("a change reaches its row in place, keeps the preview, and an old change is no change", () => {
  const pages = [page(run("a", { preview: "my lamp", status: "running", change: 5 }), run("b"))];
  const [patched] = patchPages(pages, new Map([["a", run("a", { status: "failed", change: 6 })]]));
  assert.deepEqual([patched!.runs[0]!.status, patched!.runs[0]!.preview], ["failed", "my lamp"]);
  assert.equal(patched!.runs[1], pages[0]!.runs[1]);
  assert.equal(patchPages(pages, new Map([["a", run("a", { change: 4 })]]))[0], pages[0]);
});

test("forks are deleted before their parents", () => {
  const ids = forksFirst([run("a"), run("b", { parent: "a" })]).map((row) => row.run_id);
  assert.deepEqual(ids, ["b", "a"]);
});

test("an address is read as a filter, and what makes no sense is left out", () => {
  const filter = filterOf(new URLSearchParams("status=failed&q=lamp&since=1h&other=1"));
  assert.deepEqual(queryOf(filter, 10_000), { status: "failed", q: "lamp", since: 6_400 });
  assert.deepEqual(queryOf(filterOf(new URLSearchParams("since=constructor&since=2")), 10_000), {});
});
