import assert from "node:assert/strict";
import { test } from "node:test";

import { safeAddress, tokensOf, unescaped } from "./markdown-tokens.ts";

test("hostile Markdown is read in less than a second, or shown as it is", () => {
  const pieces = [">", "> ", "- ", "1. ", "[", "![", "*a ", "***a", "a**b", "`", "<a ", "![[]()", "~~a", "|", "<!-- ", "  ", "_*a*_", "\\", "&amp"];
  const texts = pieces.map((piece) => piece.repeat(100_000 / piece.length));
  texts.push(Array.from({ length: 400 }, (_, depth) => `${" ".repeat(depth * 2)}- a`).join("\n"));
  texts.push((`>${" ".repeat(40)}`.repeat(19) + "a\n").repeat(100), `${"-".padEnd(40)}`.repeat(19));
  for (const text of texts) {
    const start = performance.now();
    tokensOf(text);
    const took = performance.now() - start;
    assert.ok(took < 1_000, `${JSON.stringify(text.slice(0, 20))} took ${took} ms`);
  }
});

test("the tokens of a text keep all of its words", () => {
  const long = "word ".repeat(4_000);
  const [paragraph] = tokensOf(long)!;
  assert.equal((paragraph as { tokens: { raw: string }[] }).tokens[0]!.raw.trim(), long.trim());
  assert.equal(tokensOf("x".repeat(100_001)), null);
});

test("links go to the web and to mail programs alone", () => {
  assert.equal(safeAddress("https://example.com/a"), "https://example.com/a");
  assert.equal(safeAddress("mailto:ana@example.com"), "mailto:ana@example.com");
  for (const href of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "/api/runs", "//example.com", "file:///etc", "blob:x"]) {
    assert.equal(safeAddress(href), null, href);
  }
});

test("entities are the characters that they stand for, once", () => {
  assert.equal(unescaped("&lt;b&gt; &amp;amp; &#39;"), "<b> &amp; '");
});
