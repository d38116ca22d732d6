import assert from "node:assert";
import { test } from "node:test";

import { arrowHead, extentOf, nodeOfPlace, pathOfLine, shorten } from "./graph-lines.ts";

test("a line of one piece is a straight path", () => {
  assert.equal(
    pathOfLine([
      [0, 0],
      [0, 50],
    ]),
    "M0 0 L0 50",
  );
});

test("corners are rounded, and no more than half of a short piece is used up", () => {
  const path = pathOfLine([
    [0, 0],
    [0, 40],
    [6, 40],
    [6, 80],
  ]);
  assert.equal(path, "M0 0 L0 37 Q0 40 3 40 L3 40 Q6 40 6 43 L6 80");
});

test("an arrow head has its tip at the end of the line, whichever way it goes", () => {
  assert.equal(
    arrowHead([
      [50, 5],
      [10, 5],
    ]).split(" ")[0],
    "10,5",
  );
  assert.deepEqual(
    shorten(
      [
        [50, 5],
        [10, 5],
      ],
      10,
      7,
    ),
    [
      [40, 5],
      [17, 5],
    ],
  );
});

test("a picture is as large as its boxes and lines", () => {
  const boxes = [{ x: 0, y: 0, width: 100, height: 40 }];
  const edges = [
    {
      line: [
        [100, 11],
        [129, 11],
        [129, 27],
      ] as [number, number][],
    },
  ];
  assert.deepEqual(extentOf(boxes, edges, 10), { width: 149, height: 60 });
});

test("the node of a place is what stands before its field", () => {
  assert.equal(nodeOfPlace("Outfit.mood"), "Outfit");
  assert.equal(nodeOfPlace("Outfit"), "Outfit");
  assert.equal(nodeOfPlace(""), "");
});
