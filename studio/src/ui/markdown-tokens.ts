// Markdown as tokens, in bounded time: whatever a model writes, the page stays usable.

import { Lexer, type Token } from "marked";

const LONGEST = 100_000;
/** Characters of one paragraph: some patterns take the square of it. */
const LONGEST_PARAGRAPH = 10_000;
/** Milliseconds after which the rest of a text stays as it is. */
const BUDGET = 150;

/** How deep quotes and lists are inside each other: a cheap look before the lexer, which would
 *  overflow its stack. No part of these patterns can match in two ways. */
const TOO_DEEP = [/^(?:[ \t]*(?:>|[-*+]|\d{1,9}[.)])){20}/m, /^[ \t]{60,}[-*+>\d]/m];

/** The tokens of a text; null for a text that is too long or too deep, which is shown as it is. */
export function tokensOf(text: string): Token[] | null {
  if (text.length > LONGEST || TOO_DEEP.some((each) => each.test(text))) return null;
  const end = performance.now() + BUDGET;
  try {
    const found = new Lexer({ gfm: true, breaks: true });
    found.blockTokens(text.replaceAll(/\r\n?/g, "\n"), found.tokens);
    for (const { src, tokens } of found.inlineQueue) {
      if (src.length > LONGEST_PARAGRAPH || performance.now() > end) tokens.push({ type: "text", raw: src, text: src });
      else found.inlineTokens(src, tokens);
    }
    return found.tokens;
  } catch {
    return null;
  }
}

const NAMES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

/** A text with the characters that its entities stand for: the lexer keeps them, React escapes. */
export function unescaped(text: string): string {
  return text.replaceAll(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name: string) => NAMES[name]!);
}

/** The address of a link to the web or to a mail program; null for all else. */
export function safeAddress(href: string): string | null {
  try {
    const found = new URL(href);
    return ["http:", "https:", "mailto:"].includes(found.protocol) ? found.href : null;
  } catch {
    return null; // It is relative, or no address.
  }
}
