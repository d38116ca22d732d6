import assert from "node:assert/strict";
import { test } from "node:test";

import type { ChangedFile } from "../../api/types.ts";
import { describeFile, isLarge, noteOf, rowsOf } from "./diff-rows.ts";

const FILE: ChangedFile = {
  path: "calc.py",
  old_path: "calc.py",
  change: "changed",
  mode: "",
  is_binary: false,
  added: 2,
  removed: 1,
  is_cut: true,
  hunks: [{ old: 10, new: 10, heading: "def add", lines: [" a", "-b", "+c", "+d", " e", "\\ No newline at end of file"] }],
};

test("each line has its numbers before and after", () => {
  const rows = rowsOf([FILE], new Map());
  assert.deepEqual(
    rows.flatMap((row) => (row.kind === "line" ? [[row.sign, row.old, row.new, row.text]] : [])),
    [
      [" ", 10, 10, "a"],
      ["-", 11, null, "b"],
      ["+", null, 11, "c"],
      ["+", null, 12, "d"],
      [" ", 12, 13, "e"],
    ],
  );
  assert.equal(rows.at(-2)!.kind, "say");
  assert.deepEqual(rows.at(-1), { kind: "cut", path: "calc.py" });
});

test("a large file is folded until it is opened", () => {
  const large = { ...FILE, added: 20_000 };
  assert.ok(isLarge(large));
  assert.equal(rowsOf([large], new Map()).length, 1);
  assert.equal(rowsOf([large], new Map([["calc.py", true]])).length, 9);
});

test("what happened to a file is said in words", () => {
  assert.deepEqual(describeFile({ ...FILE, change: "added", mode: "120000" }), ["new", "a link"]);
  assert.deepEqual(describeFile({ ...FILE, mode: "100755", is_binary: true }), ["executable", "binary"]);
  assert.equal(rowsOf([{ ...FILE, is_cut: false, hunks: [], mode: "100755" }], new Map())[1]!.kind, "say");
});

test("a note names the line that it is about", () => {
  assert.equal(noteOf({ path: "a.py", old: null, new: 7, text: "  return 1" }), "a.py:7 `return 1`: ");
  assert.equal(noteOf({ path: "a.py", old: 3, new: null, text: "" }), "a.py:3 (removed): ");
});
