import assert from "node:assert";
import { test } from "node:test";

import { commandFor } from "./start-command.ts";

test("the command has each field that must be given, with a value of its type", () => {
  const schema = {
    type: "object",
    properties: {
      text: { type: "string" },
      count: { type: "integer", minimum: 3 },
      tone: { enum: ["dry", "it's warm"] },
      photo: { type: "object", properties: { hash: {}, size: {}, type: {} } },
      note: { type: "string" },
    },
    required: ["text", "count", "tone", "photo"],
  };
  assert.equal(commandFor("bae run app.py", schema), "bae run app.py --set 'text=…' --set count=3 --set tone=dry --set photo=@FILE");
});
