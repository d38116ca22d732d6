import assert from "node:assert";
import { test } from "node:test";

import { readCut } from "./cut-text.ts";

test("the beginning of a long text is read without quotes and escapes, wherever it was cut", () => {
  const json = JSON.stringify('One "word"\nand \u0001 more');
  for (let end = 2; end < json.length - 1; end++) {
    const found = readCut(json.slice(0, end));
    assert.equal(typeof found, "string", json.slice(0, end));
    assert.ok(!String(found).startsWith('"'));
  }
  assert.equal(readCut('"One \\"wor'), 'One "wor…');
});

test("the beginning of a list or of an object is one, wherever it was cut", () => {
  const json = JSON.stringify({ name: "lamp", parts: [{ id: 1, ok: true }, { id: 22, ok: null }], price: 4.5 });
  for (let end = 1; end < json.length; end++) {
    const found = readCut(json.slice(0, end));
    assert.equal(typeof found, "object", json.slice(0, end));
  }
  assert.deepEqual(readCut('["kettle", "la'), ["kettle", "la…"]);
  assert.deepEqual(readCut('[{"a": 1, "b": tr'), [{ a: 1 }]);
  assert.equal(readCut("12"), undefined);
});
