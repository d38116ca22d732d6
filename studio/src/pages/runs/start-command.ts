// The command that starts a run in a terminal, with the fields that must be given.

import { kindOf, resolve, type Schema } from "../../forms/schema.ts";

/** A sample value for the command. */
function sampleOf(given: Schema, root: Schema): string {
  const schema = resolve(given, root);
  const kind = kindOf(schema, root);
  switch (kind.kind) {
    case "number":
      return String(kind.least ?? 1);
    case "yes-no":
      return "true";
    case "choice":
      return String(kind.options[0] ?? "…");
    case "list":
    case "tuple":
      return "[]";
    case "model":
    case "map":
    case "json":
      return "{}";
    case "file":
      return "@FILE";
    default:
      return "…";
  }
}

const quoted = (text: string) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`);

export function commandFor(command: string, schema: Schema): string {
  const needed = Object.entries(schema.properties ?? {}).filter(([name]) => schema.required?.includes(name));
  return [command, ...needed.map(([name, each]) => `--set ${quoted(`${name}=${sampleOf(each, schema)}`)}`)].join(" ");
}
