import assert from "node:assert/strict";
import { test } from "node:test";

import { faultsAt, faultsBefore, faultsIn, fromPairs, initialOf, kindOf, nameOf, NOT_JSON, numberIn, optionOf, pairsOf, type Schema, unparsed } from "./schema.ts";

const kind = (schema: Schema) => kindOf(schema, schema).kind;

test("each type of pydantic has its own input", () => {
  assert.equal(kind({ type: "string" }), "text");
  assert.equal(kind({ type: "integer" }), "number");
  assert.equal(kind({ type: "boolean" }), "yes-no");
  assert.equal(kind({ enum: ["late", "broken"], type: "string" }), "choice");
  assert.equal(kind({ type: "array", items: { type: "string" } }), "list");
  assert.equal(kind({ type: "object", properties: { street: { type: "string" } } }), "model");
  assert.equal(kind({ anyOf: [{ type: "integer" }, { type: "null" }] }), "optional");
  assert.equal(kind({ anyOf: [{ type: "integer" }, { type: "string" }] }), "union");
  assert.equal(kind({ anyOf: [{ const: "a" }, { const: "b" }] }), "choice");
  assert.equal(kind({ format: "image", anyOf: [{ type: "string" }, { type: "object" }] }), "file");
  assert.equal(kind({ type: "object", additionalProperties: { type: "integer" } }), "map");
  assert.equal(kind({ type: "object", additionalProperties: true }), "json");
  assert.equal(kind({ type: "array", prefixItems: [{ type: "integer" }] }), "tuple");
  assert.equal(kind({ anyOf: [{ type: "number" }, { type: "string" }] }), "number");
  assert.equal(kind({ anyOf: [{ type: "number" }, { type: "string" }, { type: "null" }] }), "optional");
  assert.equal(kind({}), "json");
});

test("a form begins with the defaults, and none for what may be missing", () => {
  const schema: Schema = {
    $defs: { Node: { type: "object", properties: { next: { anyOf: [{ $ref: "#/$defs/Node" }, { type: "null" }] }, kind: { const: "node" } } } },
    type: "object",
    properties: { text: { type: "string" }, count: { type: "integer", default: 3 }, tags: { type: "array", items: { type: "string" } }, head: { $ref: "#/$defs/Node" } },
  };
  assert.deepEqual(initialOf(schema, schema), { count: 3, tags: [], head: { next: null, kind: "node" } });
});

test("a decimal keeps the digits that are typed", () => {
  assert.equal(numberIn("19.99", false, true), 19.99);
  assert.equal(numberIn("0.10", false, true), "0.10");
  assert.equal(numberIn("12345678901234567.89", false, true), "12345678901234567.89");
  assert.equal(numberIn("0.10", false), 0.1);
});

test("entries of an object stay in the order in which they are typed, and are sent once each has a key", () => {
  assert.deepEqual(fromPairs([["b", 1], ["a", 2]]), { b: 1, a: 2 });
  const unfinished = fromPairs([["a", 1], ["", 2], ["a", 3]]);
  assert.deepEqual(pairsOf(unfinished), [["a", 1], ["", 2], ["a", 3]]);
  assert.deepEqual(faultsBefore({ weights: unfinished }), [{ loc: ["weights"], msg: "give each entry a key" }]);
  assert.equal(faultsBefore(fromPairs([["a", 1], ["a", 3]]))[0]!.msg, "two entries have the same key");
  const typed: [string, unknown][] = [["b", 1], ["10", 2]];
  assert.deepEqual(pairsOf({ "10": 5, b: 1 }, typed), [["b", 1], ["10", 5]]);
  assert.deepEqual(pairsOf({ "10": 5, c: 1 }, typed), [["10", 5], ["c", 1]]);
  assert.deepEqual(pairsOf(null), []);
});

test("an option of a union without a name has its tag or its fields", () => {
  assert.equal(nameOf({ title: "Card", type: "object" }), "Card");
  assert.equal(nameOf({ type: "object", properties: { kind: { const: "card" }, number: { type: "string" } } }), "card");
  assert.equal(nameOf({ type: "object", properties: { iban: { type: "string" } } }), "iban");
});

test("a value of a union belongs to the class with its tag", () => {
  const cat: Schema = { type: "object", properties: { kind: { const: "cat" }, name: { type: "string" } } };
  const dog: Schema = { type: "object", properties: { kind: { const: "dog" }, name: { type: "string" } } };
  assert.equal(optionOf({ kind: "dog", name: "Rex" }, [cat, dog], {}), 1);
  assert.equal(optionOf(undefined, [cat, dog], {}), -1);
  assert.equal(optionOf(3, [{ type: "string" }, { type: "integer" }], {}), 1);
});

test("the server's faults reach the field that they are about", () => {
  const faults = [{ loc: ["body", "value", "items", 1, "price"], msg: "too small" }, { loc: ["body", "gate"], msg: "missing" }];
  const inside = faultsIn(faults, "body", "value");
  assert.deepEqual(inside, [{ loc: ["items", 1, "price"], msg: "too small" }]);
  assert.deepEqual(faultsAt(faultsAt(inside, "items"), 1), [{ loc: ["price"], msg: "too small" }]);
});

test("text that is no JSON yet is kept, and keeps the form from being sent", () => {
  const value = { a: [1, unparsed('{"b": ')] };
  assert.deepEqual(faultsBefore(value), [{ loc: ["a", 1], msg: NOT_JSON }]);
  assert.deepEqual(faultsBefore({ a: [1, { b: null }] }), []);
});

test("a number is sent as it was typed, also where JavaScript could not hold it", () => {
  assert.equal(numberIn(" 20 ", true), 20);
  assert.equal(numberIn("1.", false), 1);
  assert.equal(numberIn("12345678901234567890", true), "12345678901234567890");
  assert.equal(numberIn("abc", true), "abc");
  assert.equal(numberIn(" ", true), undefined);
});
