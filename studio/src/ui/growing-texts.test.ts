import assert from "node:assert/strict";
import { test } from "node:test";

import { GrowingTexts } from "./growing-texts.ts";

test("text grows by pieces, begins again, and goes a moment after its end", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const texts = new GrowingTexts();
  let changes = 0;
  texts.watch(() => changes++);
  texts.take([["p", 0, "Hel"]]);
  texts.take([["p", 3, "lo"]]);
  assert.equal(texts.at("p"), "Hello");
  assert.deepEqual(texts.all(), { p: "Hello" });
  texts.take([["p", 0, "Bye"]]);
  assert.equal(texts.at("p"), "Bye");
  texts.take([["p", 0, ""]]);
  assert.equal(texts.at("p"), "Bye");
  context.mock.timers.tick(1_000);
  assert.deepEqual(texts.places(), []);
  assert.equal(changes, 5);
});

test("text that has ended stays where nothing follows it", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const texts = new GrowingTexts();
  texts.take([["p", 0, "Hello"]]);
  texts.clear();
  texts.keep();
  context.mock.timers.tick(10_000);
  assert.equal(texts.at("p"), "Hello");
});
