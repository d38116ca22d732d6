// Which turns a conversation shows, what they were sent with, and where files go.

import type { TurnDetails, TurnView, Value } from "../../api/types.ts";
import { isObject, type Json, kindOf, resolve, type Schema } from "../../forms/schema.ts";

/** Statuses of a turn that is not over. */
export const OPEN = new Set(["queued", "running", "waiting", "interrupted"]);

/** The turns without those that were replaced: a turn takes the place of another from when it begins,
 *  and gives it back if it fails. */
export function inConversation(turns: readonly TurnView[]): TurnView[] {
  const known = new Map(turns.map((turn) => [turn.run_id, turn]));
  const taken = new Set<string>();
  const retried = new Set<string>();
  for (const turn of turns) {
    const takes = OPEN.has(turn.status) || turn.status === "ended";
    for (let before = turn.replaces; before !== null && !(takes ? taken : retried).has(before); before = known.get(before)?.replaces ?? null) {
      (takes ? taken : retried).add(before);
    }
  }
  return turns.filter((turn) => {
    if (taken.has(turn.run_id)) return false;
    return turn.is_shown || OPEN.has(turn.status) || (turn.status !== "ended" && !retried.has(turn.run_id));
  });
}

export interface SentFile {
  hash: string;
  type: string;
  name: string;
}

/** The files among the fields of a node. */
export function filesIn(fields: Record<string, Value>): SentFile[] {
  return Object.values(fields).flatMap((each) => (each.kept === "value" ? filesOf(each.value) : []));
}

function filesOf(value: unknown): SentFile[] {
  if (Array.isArray(value)) return value.flatMap(filesOf);
  if (!isObject(value)) return [];
  if (typeof value.hash === "string" && typeof value.type === "string") {
    return [{ hash: value.hash, type: value.type, name: typeof value.name === "string" ? value.name : "" }];
  }
  return Object.values(value).flatMap(filesOf);
}

/** The message as it was typed: what later turns read may have more than that. */
export function typedText(details: TurnDetails | undefined, field: string): string | null {
  const value = details?.start[field];
  return value?.kept === "value" && typeof value.value === "string" ? value.value : null;
}

/** Put files into the fields of a start node that take them: in order, and a list takes several.
 *  Returns the fields, and the files that found no place. */
export function placeFiles(files: readonly SentFile[], names: readonly string[], root: Schema): { fields: Json; left: SentFile[] } {
  const fields: Json = {};
  const left: SentFile[] = [];
  for (const file of files) {
    const wanted = file.type.startsWith("image/") ? "image" : "document";
    const name = names.find((each) => {
      const { isList, takes } = placeOf(root.properties?.[each] ?? {}, root);
      return takes.includes(wanted) && (isList || !(each in fields));
    });
    if (name === undefined) left.push(file);
    else if (placeOf(root.properties![name]!, root).isList) fields[name] = [...((fields[name] as unknown[] | undefined) ?? []), file];
    else fields[name] = file;
  }
  return { fields, left };
}

function placeOf(given: Schema, root: Schema, isList = false): { isList: boolean; takes: string[] } {
  const kind = kindOf(given, root);
  if (kind.kind === "file") return { isList, takes: [kind.of] };
  if (kind.kind === "optional") return placeOf(kind.of, root, isList);
  if (kind.kind === "list") return placeOf(kind.item, root, true);
  if (kind.kind === "union") {
    const parts = kind.options.map((each) => placeOf(resolve(each, root), root, isList));
    return { isList: parts.some((each) => each.isList), takes: parts.flatMap((each) => each.takes) };
  }
  return { isList, takes: [] };
}
