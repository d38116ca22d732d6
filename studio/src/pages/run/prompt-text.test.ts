import assert from "node:assert";
import { test } from "node:test";

import { sectionsOf } from "./prompt-text.ts";

test("a stored prompt is read as its messages", () => {
  const prompt = 'system:\nYou fill.\n\nBe brief.\n\nuser:\nA question.\nuser: this is text\n\nschema:\n{"type": "object"}';
  assert.deepEqual(sectionsOf(prompt), [
    { role: "system", text: "You fill.\n\nBe brief." },
    { role: "user", text: "A question.\nuser: this is text" },
    { role: "schema", text: '{"type": "object"}' },
  ]);
  assert.deepEqual(sectionsOf("just text"), [{ role: "prompt", text: "just text" }]);
});
