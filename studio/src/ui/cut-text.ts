// Values that were cut: the beginning of their JSON, read as far as it goes.

/** The beginning of a JSON value as a value: a text, list or object ends where it was cut. Undefined
 *  if nothing of it can be read. */
export function readCut(json: string): unknown {
  const closers: string[] = [];
  const ends: [at: number, closing: string][] = [];
  let inText = false;
  for (let at = 0; at < json.length; at++) {
    const letter = json[at]!;
    if (inText) {
      if (letter === "\\") at++;
      else if (letter === '"') inText = false;
    } else if (letter === '"') inText = true;
    else if (letter === "[" || letter === "{") {
      closers.unshift(letter === "[" ? "]" : "}");
      ends.push([at + 1, closers.join("")]);
    } else if (letter === "]" || letter === "}") closers.shift();
    else if (letter === ",") ends.push([at, closers.join("")]);
  }
  const closing = closers.join("");
  // The text that was cut, without an escape that was cut in two; else what is before it.
  for (let less = 0; inText && less < 6; less++) {
    const found = parse(`${json.slice(0, json.length - less)}…"${closing}`);
    if (found !== undefined) return found;
  }
  for (const [at, end] of ends.reverse().slice(0, 20)) {
    const found = parse(json.slice(0, at) + end);
    if (found !== undefined) return found;
  }
  return undefined;
}

function parse(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch {
    return undefined;
  }
}
