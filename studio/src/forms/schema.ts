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
  | { kind: "optional"; of: Schema }
  | { kind: "union"; options: Schema[] }
  | { kind: "none" }
  | { kind: "file"; of: "image" | "document" }
  | { kind: "json" };

const PLAIN_FORMATS = new Set(["date", "time", "date-time", "duration", "uuid", "email", "uri"]);
/** A text field takes one line if it can have at most so many characters. */
const ONE_LINE = 100;
const DEEPEST = 6;

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
  if (schema.format === "image" || schema.format === "document") return { kind: "file", of: schema.format };
  if ("const" in schema) return { kind: "choice", options: [schema.const] };
  if (schema.enum) return { kind: "choice", options: schema.enum };
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return kindOfSeveral(several.map((each) => resolve(each, root)));
  switch (schema.type) {
    case "string":
      if (schema.format === "binary") return { kind: "json" };
      return {
        kind: "text",
        long: !PLAIN_FORMATS.has(schema.format ?? "") && !isSecret(schema) && (schema.maxLength ?? Infinity) > ONE_LINE,
        format: schema.format ?? "",
        secret: isSecret(schema),
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
      if (isFile(schema)) return { kind: "file", of: "document" };
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

function kindOfSeveral(options: Schema[]): Kind {
  if (options.every((each) => each.enum || "const" in each)) {
    return { kind: "choice", options: options.flatMap((each) => each.enum ?? [each.const]) };
  }
  const rest = options.filter((each) => each.type !== "null");
  if (rest.length === 1 && options.length === 2) return { kind: "optional", of: rest[0]! };
  return { kind: "union", options };
}

function isSecret(schema: Schema): boolean {
  return schema.writeOnly === true || schema.format === "password";
}

/** Whether a schema is that of an image or a document as the API sends it. */
function isFile(schema: Schema): boolean {
  const names = Object.keys(schema.properties ?? {});
  return ["hash", "size", "type"].every((name) => names.includes(name));
}

/** Whether a field has but one value, as the tag of a class in a union: nothing is asked for it. */
export function isFixed(given: Schema, root: Schema): boolean {
  return "const" in resolve(given, root);
}

/** What a form has at first. Undefined is "not given", which differs from an empty text. */
export function initialOf(given: Schema, root: Schema, depth = 0): unknown {
  const schema = resolve(given, root);
  if ("default" in schema) return schema.default;
  const kind = kindOf(schema, root);
  switch (kind.kind) {
    case "model":
      if (depth > DEEPEST) return undefined;
      return Object.fromEntries(kind.fields.map(([name, each]) => [name, initialOf(each, root, depth + 1)] as const).filter(([, value]) => value !== undefined));
    case "list":
      return [];
    case "choice":
      return kind.options.length === 1 ? kind.options[0] : undefined;
    case "none":
    case "optional":
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
  if (schema.format === "image" || schema.format === "document") return schema.format;
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
    case "optional":
      return value === null || fits(value, kind.of, root);
    case "text":
      return typeof value === "string";
    case "number":
      return typeof value === "bigint" || (typeof value === "number" && (!kind.whole || Number.isInteger(value)));
    case "yes-no":
      return typeof value === "boolean";
    case "choice":
      return kind.options.includes(value);
    case "list":
      return Array.isArray(value);
    case "file":
      return isObject(value) && "hash" in value;
    case "model": {
      if (!isObject(value)) return false;
      const fields = new Map(kind.fields.map(([name, each]) => [name, each]));
      return Object.entries(value).every(([name, part]) => {
        const field = fields.get(name);
        return field !== undefined && (!isFixed(field, root) || resolve(field, root).const === part);
      });
    }
    default:
      return true;
  }
}

export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Something that is wrong with an input, and the place inside the value. */
export interface Fault {
  loc: readonly (string | number)[];
  msg: string;
}

/** The faults inside a part, with the rest of their places. */
export function faultsAt(faults: readonly Fault[], name: string | number): Fault[] {
  return faults.filter((fault) => String(fault.loc[0]) === String(name)).map((fault) => ({ ...fault, loc: fault.loc.slice(1) }));
}

/** The faults of a request that are about one part of its body, as `body.value`. */
export function faultsIn(faults: readonly Fault[], ...place: string[]): Fault[] {
  return place.reduce<readonly Fault[]>((found, name) => faultsAt(found, name), faults) as Fault[];
}

const UNPARSED = "$unparsed";

/** A text in a box for JSON that is no JSON yet. It is kept as it is, and never sent. */
export function unparsed(text: string): Json {
  return { [UNPARSED]: text };
}

/** The text of a box for JSON that is no JSON yet. */
export function unparsedText(value: unknown): string | null {
  if (!isObject(value)) return null;
  const text = value[UNPARSED];
  return typeof text === "string" ? text : null;
}

/** What keeps a value from being sent: texts that are no JSON yet. */
export function faultsBefore(value: unknown, loc: (string | number)[] = []): Fault[] {
  const text = unparsedText(value);
  if (text !== null) return [{ loc, msg: "this is not JSON" }];
  if (Array.isArray(value)) return value.flatMap((each, index) => faultsBefore(each, [...loc, index]));
  if (isObject(value)) return Object.entries(value).flatMap(([name, each]) => faultsBefore(each, [...loc, name]));
  return [];
}

/** The number that a text is. A whole number that a number of JavaScript cannot hold stays text, which
 *  the server reads exactly; so does what is no number, and the server says so. */
export function numberIn(text: string, whole: boolean): unknown {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  const number = Number(trimmed);
  if (!Number.isFinite(number) || (whole && !Number.isSafeInteger(number))) return trimmed;
  return number;
}
