import assert from "node:assert";
import { test } from "node:test";

import { pathPart } from "./path.ts";

test("an id with any characters comes back as it was encoded", () => {
  for (const id of ["a/b", "100%", "a%2Fb", "?x#y", "../..", "ä €"]) {
    assert.equal(pathPart(1, `/runs/${encodeURIComponent(id)}/vs/other`), id);
  }
  assert.equal(pathPart(3, "/runs/a/vs/b"), "b");
});

test("a part that is missing is null, and one that is encoded wrongly stays as it is", () => {
  assert.equal(pathPart(1, "/graphs"), null);
  assert.equal(pathPart(1, "/graphs/"), null);
  assert.equal(pathPart(1, "/runs/%"), "%");
});
