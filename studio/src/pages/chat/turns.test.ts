import assert from "node:assert/strict";
import { test } from "node:test";

import type { TurnView } from "../../api/types.ts";
import type { Schema } from "../../forms/schema.ts";
import { filesIn, inConversation, placeFiles } from "./turns.ts";

function turn(run_id: string, status: TurnView["status"], more: Partial<TurnView> = {}): TurnView {
  return { run_id, user: "", reply: "", status, started: 0, updated: 0, is_shown: status === "ended", replaces: null, waiting: [], error: "", metadata: {}, ...more };
}

const shown = (...turns: TurnView[]) => inConversation(turns).map((each) => each.run_id);

test("a turn that is sent again is shown in the place of the one before, and gives it back if it fails", () => {
  const first = turn("a", "ended");
  assert.deepEqual(shown(first, turn("b", "running", { replaces: "a" })), ["b"]);
  assert.deepEqual(shown(turn("a", "ended", { is_shown: false }), turn("b", "ended", { replaces: "a" })), ["b"]);
  assert.deepEqual(shown(first, turn("b", "failed", { replaces: "a" })), ["a", "b"]);
  assert.deepEqual(shown(first, turn("b", "failed", { replaces: "a" }), turn("c", "running", { replaces: "b" })), ["c"]);
});

test("a failed turn is shown until it is tried again", () => {
  assert.deepEqual(shown(turn("a", "failed")), ["a"]);
  assert.deepEqual(shown(turn("a", "failed"), turn("b", "failed", { replaces: "a" })), ["b"]);
  assert.deepEqual(shown(turn("a", "cancelled"), turn("b", "ended", { replaces: "a" })), ["b"]);
});

const image: Schema = { format: "image", anyOf: [] };
const root: Schema = {
  properties: { text: { type: "string" }, face: { anyOf: [image, { type: "null" }] }, photos: { type: "array", items: image }, paper: { format: "document", anyOf: [] } },
};
const png = { hash: "sha256:1", type: "image/png", name: "a.png" };
const pdf = { hash: "sha256:2", type: "application/pdf", name: "a.pdf" };

test("files go to the fields that take them, in order", () => {
  const names = ["face", "photos", "paper"];
  assert.deepEqual(placeFiles([png, pdf, png, png], names, root), { fields: { face: png, paper: pdf, photos: [png, png] }, left: [] });
  assert.deepEqual(placeFiles([pdf, pdf], names, root), { fields: { paper: pdf }, left: [pdf] });
  assert.deepEqual(placeFiles([pdf], ["face"], root), { fields: {}, left: [pdf] });
});

test("the files of a message are found in all of its fields", () => {
  const value = (of: unknown) => ({ kept: "value", value: of, text: null, size: null });
  const found = filesIn({ text: value("Hi."), photos: value([{ ...png, size: 3 }]), secret: { kept: "secret", value: null, text: null, size: null } });
  assert.deepEqual(found, [png]);
});
