/** The beginning of a JSON value as a person reads it: that of a text has no quotes and no escapes. */
export function readCut(json: string): string {
  if (!json.startsWith('"')) return json;
  // An escape at the very end may be cut in two.
  for (let less = 0; less < 6; less++) {
    try {
      return String(JSON.parse(`${json.slice(0, json.length - less)}"`));
    } catch {
      // One character less.
    }
  }
  return json;
}
