import assert from "node:assert";
import { test } from "node:test";

import { parsePlace, shortPlace } from "./places.ts";

test("a place has a graph, a step, a node and a field", () => {
  assert.deepEqual(parsePlace("3:Refund.order"), { path: "", step: 3, node: "Refund", field: "order" });
  assert.deepEqual(parsePlace("4:Approval"), { path: "", step: 4, node: "Approval", field: "" });
  assert.deepEqual(parsePlace("2:Report.parts[3]/1:Summary.text"), { path: "2:Report.parts[3]", step: 1, node: "Summary", field: "text" });
  assert.deepEqual(parsePlace("3:Refund.calls(search)[2]"), { path: "", step: 3, node: "Refund", field: "calls" });
  assert.equal(parsePlace("no place"), null);
});

test("a short place leaves out the graph around it", () => {
  assert.equal(shortPlace("2:Report.parts[3]/1:Summary.text"), "1:Summary.text");
});
