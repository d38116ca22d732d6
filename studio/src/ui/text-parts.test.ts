import assert from "node:assert";
import { test } from "node:test";

import { partsOf } from "./text-parts.ts";

test("a short text is one part", () => {
  assert.deepEqual(partsOf("a\nb"), ["a\nb"]);
});

test("parts of many lines are the text again", () => {
  const text = Array.from({ length: 9_000 }, (_, number) => `line ${number}`).join("\n");
  const parts = partsOf(text);
  assert.ok(parts.length > 5);
  assert.equal(parts.join("\n"), text);
});

test("a line without an end is cut between characters", () => {
  const parts = partsOf(`x${"👩".repeat(20_000)}`);
  assert.equal(parts.join(""), `x${"👩".repeat(20_000)}`);
  assert.ok(parts.every((part) => encodeURIComponent(part) !== ""));
});
