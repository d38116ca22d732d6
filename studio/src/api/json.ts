// JSON as the server writes it: Python's whole numbers have no end, those of JavaScript do.

const MANY_DIGITS = /\d{16}/;

/** Read JSON. A whole number that a number cannot hold is a bigint, so that it is shown, and sent
 *  again, as it is. Browsers without `context` round it. */
export function readJson(text: string): unknown {
  return MANY_DIGITS.test(text) ? JSON.parse(text, exactly as (key: string, value: unknown) => unknown) : JSON.parse(text);
}

function exactly(_key: string, value: unknown, context?: { source?: string }): unknown {
  if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
  const source = context?.source ?? "";
  return /^-?\d+$/.test(source) ? BigInt(source) : value;
}

/** `JSON.stringify` writes a bigint as the number that it is. */
const { rawJSON } = JSON as { rawJSON?: (text: string) => unknown };
if (rawJSON !== undefined) {
  Object.defineProperty(BigInt.prototype, "toJSON", {
    value(this: bigint) {
      return rawJSON(this.toString());
    },
  });
}
