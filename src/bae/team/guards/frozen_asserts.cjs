// Loaded before the tests of a project: code under test cannot replace what they check with.
"use strict";
const assert = require("node:assert");
for (const each of [assert, assert.strict, require("node:test")]) Object.freeze(each);
