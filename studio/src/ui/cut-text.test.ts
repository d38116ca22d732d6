import assert from "node:assert";
import { test } from "node:test";

import { readCut } from "./cut-text.ts";

test("the beginning of a long text is read without quotes and escapes, wherever it was cut", () => {
  const json = JSON.stringify('One "word"\nand \u0001 more');
  for (let end = 2; end < json.length - 1; end++) {
    assert.ok(!readCut(json.slice(0, end)).startsWith('"'), json.slice(0, end));
  }
  assert.equal(readCut('"One \\"wor'), 'One "wor');
  assert.equal(readCut('[{"a": 1'), '[{"a": 1');
});
