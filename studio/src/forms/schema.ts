// JSON schemas of pydantic, as forms need them: what kind of input a field has.

export type Json = Record<string, unknown>;

export interface Schema {
  $ref?: string;
  $defs?: Record<string, Schema>;
  type?: string;
  title?: string;
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: unknown[];
  format?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  prefixItems?: Schema[];
  additionalProperties?: Schema | boolean;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  writeOnly?: boolean;
}

export type Kind =
  | { kind: "text"; long: boolean; format: string; secret: boolean }
  | { kind: "number"; whole: boolean; least: number | undefined; most: number | undefined }
  | { kind: "yes-no" }
  | { kind: "choice"; options: unknown[] }
  | { kind: "list"; item: Schema }
  | { kind: "model"; fields: [name: string, schema: Schema, required: boolean][] }
  | { kind: "union"; options: Schema[] }
  | { kind: "none" }
  | { kind: "file" }
  | { kind: "json" };

const DATES = new Set(["date", "time", "date-time"]);

/** Follow references, and drop a union or an `allOf` of one. */
export function resolve(schema: Schema, root: Schema): Schema {
  let found = schema;
  for (let depth = 0; depth < 20; depth++) {
    if (found.$ref?.startsWith("#/$defs/")) {
      const { $ref, ...beside } = found;
      found = { ...root.$defs?.[decodeURIComponent($ref!.slice("#/$defs/".length))], ...beside };
    } else if (found.allOf?.length === 1 || found.anyOf?.length === 1 || found.oneOf?.length === 1) {
      const { allOf, anyOf, oneOf, ...beside } = found;
      found = { ...(allOf ?? anyOf ?? oneOf)![0], ...beside };
    } else {
      return found;
    }
  }
  return {};
}

/** What kind of input a schema has. What this page knows no input for is a box for JSON. */
export function kindOf(given: Schema, root: Schema): Kind {
  const schema = resolve(given, root);
  if ("const" in schema) return { kind: "choice", options: [schema.const] };
  if (schema.enum) return { kind: "choice", options: schema.enum };
  const several = schema.anyOf ?? schema.oneOf;
  if (several) {
    const options = several.map((each) => resolve(each, root));
    if (options.every((each) => each.enum || "const" in each)) {
      return { kind: "choice", options: options.flatMap((each) => each.enum ?? [each.const]) };
    }
    return { kind: "union", options };
  }
  switch (schema.type) {
    case "string":
      if (schema.format === "binary") return { kind: "json" };
      return {
        kind: "text",
        long: !DATES.has(schema.format ?? "") && !schema.writeOnly && (schema.maxLength ?? 1_000) > 100,
        format: schema.format ?? "",
        secret: schema.writeOnly ?? schema.format === "password",
      };
    case "integer":
    case "number":
      return { kind: "number", whole: schema.type === "integer", least: schema.minimum, most: schema.maximum };
    case "boolean":
      return { kind: "yes-no" };
    case "null":
      return { kind: "none" };
    case "array":
      return schema.items && !schema.prefixItems ? { kind: "list", item: schema.items } : { kind: "json" };
    case "object":
      if (isFile(schema)) return { kind: "file" };
      if (schema.properties) {
        const required = new Set(schema.required);
        const fields = Object.entries(schema.properties);
        return { kind: "model", fields: fields.map(([name, each]) => [name, each, required.has(name)]) };
      }
      return { kind: "json" };
    default:
      return { kind: "json" };
  }
}

/** Whether a schema is that of an image or a document, which have a hash. */
function isFile(schema: Schema): boolean {
  const names = Object.keys(schema.properties ?? {});
  return names.includes("hash") && names.includes("size") && names.includes("type");
}

/** What a form has at first. Undefined is "not given", which differs from an empty text. */
export function initialOf(given: Schema, root: Schema, depth = 0): unknown {
  const schema = resolve(given, root);
  if ("default" in schema) return schema.default;
  const kind = kindOf(schema, root);
  switch (kind.kind) {
    case "model":
      if (depth > 6) return undefined;
      return Object.fromEntries(kind.fields.map(([name, each]) => [name, initialOf(each, root, depth + 1)] as const).filter(([, value]) => value !== undefined));
    case "list":
      return [];
    case "choice":
      return kind.options.length === 1 ? kind.options[0] : undefined;
    case "none":
      return null;
    default:
      return undefined;
  }
}

/** The name of one option of a union, as a person reads it. */
export function nameOf(schema: Schema): string {
  if (schema.title) return schema.title;
  if ("const" in schema) return String(schema.const);
  if (schema.type === "null") return "none";
  return { string: "text", integer: "whole number", number: "number", boolean: "yes or no", array: "list", object: "object" }[schema.type ?? ""] ?? "value";
}

/** Which option of a union a value belongs to. */
export function optionOf(value: unknown, options: Schema[], root: Schema): number {
  if (value === undefined) return -1;
  return options.findIndex((option) => fits(value, option, root));
}

function fits(value: unknown, option: Schema, root: Schema): boolean {
  const kind = kindOf(option, root);
  switch (kind.kind) {
    case "none":
      return value === null;
    case "text":
      return typeof value === "string";
    case "number":
      return typeof value === "number" && (!kind.whole || Number.isInteger(value));
    case "yes-no":
      return typeof value === "boolean";
    case "choice":
      return kind.options.includes(value);
    case "list":
      return Array.isArray(value);
    case "model":
    case "file": {
      if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
      const names = Object.keys(resolve(option, root).properties ?? {});
      return Object.keys(value).every((name) => names.includes(name));
    }
    default:
      return true;
  }
}

/** The faults at a place or inside it, with the rest of their places. */
export interface Fault {
  loc: (string | number)[];
  msg: string;
}

export function faultsAt(faults: readonly Fault[], name: string | number): Fault[] {
  return faults.filter((fault) => String(fault.loc[0]) === String(name)).map((fault) => ({ ...fault, loc: fault.loc.slice(1) }));
}
