const PART = 8_000;

/** A long text in parts that end at ends of lines, where there are any. The end of the line itself is
 *  in no part: each is a block. */
export function partsOf(text: string): string[] {
  const parts: string[] = [];
  let at = 0;
  while (text.length - at > PART) {
    const line = text.lastIndexOf("\n", at + PART);
    if (line > at) {
      parts.push(text.slice(at, line));
      at = line + 1;
      continue;
    }
    const last = text.charCodeAt(at + PART - 1);
    const end = at + PART - (last >= 0xd800 && last < 0xdc00 ? 1 : 0); // no pair is split
    parts.push(text.slice(at, end));
    at = end;
  }
  parts.push(text.slice(at));
  return parts;
}
