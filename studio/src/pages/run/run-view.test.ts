import assert from "node:assert";
import { test } from "node:test";

import { readView, writeView } from "./run-view.ts";

test("an address says all that is shown, and leaves out what is usual", () => {
  const search = "?step=3&path=2%3AReport.x&field=order&tab=calls&call=1";
  assert.equal(writeView(readView(search)), search);
  assert.equal(writeView(readView("?tab=trace&step=none")), "");
});
