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
  minLength?: number;
  maxLength?: number;
  minItems?: number;
  writeOnly?: boolean;
}

export type Kind =
  | { kind: "text"; long: boolean; format: string; secret: boolean }
  | { kind: "number"; whole: boolean; exact: boolean; least: number | undefined }
  | { kind: "yes-no" }
  | { kind: "choice"; options: unknown[] }
  | { kind: "list"; item: Schema }
  | { kind: "tuple"; items: Schema[] }
  | { kind: "map"; item: Schema }
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
      return { kind: "number", whole: schema.type === "integer", exact: false, least: schema.minimum };
    case "boolean":
      return { kind: "yes-no" };
    case "null":
      return { kind: "none" };
    case "array":
      if (schema.prefixItems) return schema.items ? { kind: "json" } : { kind: "tuple", items: schema.prefixItems };
      return schema.items ? { kind: "list", item: schema.items } : { kind: "json" };
    case "object":
      if (isFile(schema)) return { kind: "file", of: "document" };
      if (schema.properties) {
        const required = new Set(schema.required);
        const fields = Object.entries(schema.properties);
        return { kind: "model", fields: fields.map(([name, each]) => [name, each, required.has(name)]) };
      }
      if (isTyped(schema.additionalProperties)) return { kind: "map", item: schema.additionalProperties };
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
  if (rest.length < options.length && (rest.length === 1 || isDecimal(rest))) {
    return { kind: "optional", of: rest.length === 1 ? rest[0]! : { anyOf: rest } };
  }
  if (isDecimal(options)) return { kind: "number", whole: false, exact: true, least: undefined };
  return { kind: "union", options };
}

/** A decimal number, which JSON has as a number, or as text with all of its digits. */
function isDecimal(options: readonly Schema[]): boolean {
  return options.length === 2 && options[0]!.type === "number" && options[1]!.type === "string" && !options[1]!.format;
}

/** Whether the values of an object have a type: those of `dict[str, Any]` have none. */
function isTyped(schema: Schema | boolean | undefined): schema is Schema {
  return typeof schema === "object" && Object.keys(schema).some((key) => key !== "title" && key !== "description");
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
    case "tuple":
      return kind.items.map((each) => initialOf(each, root, depth + 1) ?? null);
    case "map":
      return {};
    case "union":
      return kind.options.some((each) => each.type === "null") ? null : undefined;
    case "choice":
      return kind.options.length === 1 ? kind.options[0] : undefined;
    case "none":
    case "optional":
      return null;
    default:
      return undefined;
  }
}

/** The one value of the field by which the class of an object is known, if it has such a field. */
export function tagOf(schema: Schema): string | undefined {
  const tag = Object.values(schema.properties ?? {}).find((each) => "const" in each);
  return tag === undefined ? undefined : String(tag.const);
}

/** The name of one option of a union, as a person reads it. */
export function nameOf(schema: Schema): string {
  if (schema.title) return schema.title;
  if ("const" in schema) return String(schema.const);
  if (schema.type === "null") return "none";
  if (schema.format === "image" || schema.format === "document") return schema.format;
  const tag = tagOf(schema);
  if (tag !== undefined) return tag;
  if (schema.properties) return Object.keys(schema.properties).join(", ") || "no fields";
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
      if (typeof value === "string") return kind.exact;
      return typeof value === "bigint" || (typeof value === "number" && (!kind.whole || Number.isInteger(value)));
    case "yes-no":
      return typeof value === "boolean";
    case "choice":
      return kind.options.includes(value);
    case "list":
      return Array.isArray(value);
    case "tuple":
      return Array.isArray(value) && value.length === kind.items.length;
    case "map":
      return isObject(value);
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
export const NOT_JSON = 'This is not JSON. Put text in quotes: "like this".';

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

const PAIRS = "$pairs";

export type Pair = [key: string, value: unknown];

/** The object of these pairs. While a key is empty or given twice, the pairs are kept as they are,
 *  and never sent. */
export function fromPairs(pairs: readonly Pair[]): Json {
  const keys = pairs.map(([key]) => key);
  const isWhole = new Set(keys).size === keys.length && !keys.includes("");
  return isWhole ? Object.fromEntries(pairs) : { [PAIRS]: pairs };
}

/** The pairs of an object in their order. `last` are those that a person has typed: an object has
 *  keys that are numbers first. */
export function pairsOf(value: unknown, last: readonly Pair[] = []): Pair[] {
  if (!isObject(value)) return [];
  const kept = keptPairs(value);
  if (kept !== null) return kept;
  const isSame = last.length === Object.keys(value).length && last.every(([key]) => Object.hasOwn(value, key));
  return isSame ? last.map(([key]) => [key, value[key]]) : Object.entries(value);
}

function keptPairs(value: Json): Pair[] | null {
  const pairs = value[PAIRS];
  return Array.isArray(pairs) ? (pairs as Pair[]) : null;
}

/** What keeps a value from being sent: texts that are no JSON yet, and keys that are not given. */
export function faultsBefore(value: unknown, loc: (string | number)[] = []): Fault[] {
  const pairs = isObject(value) ? keptPairs(value) : null;
  if (pairs !== null) return [{ loc, msg: pairs.some(([key]) => key === "") ? "give each entry a key" : "two entries have the same key" }];
  const text = unparsedText(value);
  if (text !== null) return [{ loc, msg: NOT_JSON }];
  if (Array.isArray(value)) return value.flatMap((each, index) => faultsBefore(each, [...loc, index]));
  if (isObject(value)) return Object.entries(value).flatMap(([name, each]) => faultsBefore(each, [...loc, name]));
  return [];
}

/** The number that a text is. A whole or exact number that a number of JavaScript cannot hold stays
 *  text, which the server reads exactly; so does what is no number, and the server says so. */
export function numberIn(text: string, whole: boolean, exact = false): unknown {
  const trimmed = text.trim();
  if (trimmed === "") return undefined;
  const number = Number(trimmed);
  if (!Number.isFinite(number) || (whole && !Number.isSafeInteger(number))) return trimmed;
  if (exact && String(number) !== trimmed) return trimmed;
  return number;
}
