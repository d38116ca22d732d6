import assert from "node:assert";
import { test } from "node:test";

import { readJson } from "./json.ts";

const CAN = "rawJSON" in JSON;

test("a whole number of any size is read and written as it is", { skip: !CAN && "this Node has no JSON.rawJSON" }, () => {
  const text = '{"id":9007199254740993,"far":-123456789012345678901234567890,"near":12,"part":0.30000000000000004,"at":1e300}';
  assert.equal(JSON.stringify(readJson(text)), text.replace("1e300", "1e+300"));
});

test("a name of a prototype is a name like others", () => {
  const read = readJson('{"__proto__":{"a":1},"constructor":2,"long":"1234567890123456"}') as Record<string, unknown>;
  assert.deepEqual(Object.keys(read), ["__proto__", "constructor", "long"]);
  assert.equal(({} as Record<string, unknown>).a, undefined);
});
