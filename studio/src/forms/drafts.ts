// Drafts: typed text survives live updates, a change of page and a reload. A draft belongs to the tab,
// and is removed once it is sent.

import { useMemo, useSyncExternalStore } from "react";

import { readJson } from "../api/json.ts";

const PREFIX = "bae.draft.";
/** The drafts of the tab as JSON; null is none. The browser's storage is for reloads, and can refuse. */
const drafts = new Map<string, string | null>();
const listeners = new Set<() => void>();

function read(key: string): string | null {
  if (!drafts.has(key)) {
    try {
      drafts.set(key, sessionStorage.getItem(PREFIX + key));
    } catch {
      drafts.set(key, null);
    }
  }
  return drafts.get(key)!;
}

/** Store a draft. Undefined removes it. */
export function setDraft(key: string, value: unknown): void {
  const text = value === undefined ? null : (JSON.stringify(value) ?? null);
  drafts.set(key, text);
  try {
    if (text === null) sessionStorage.removeItem(PREFIX + key);
    else sessionStorage.setItem(PREFIX + key, text);
  } catch {
    // The draft lives as long as the page.
  }
  for (const listener of listeners) listener();
}

function watch(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function parse<T>(text: string | null, initial: () => T): T {
  if (text === null) return initial();
  try {
    return readJson(text) as T;
  } catch {
    return initial();
  }
}

/** The draft with a key, the same in all places that show it; `initial` makes it where there is none. */
export function useDraft<T>(key: string, initial: () => T): [draft: T, change: (draft: T) => void, remove: () => void] {
  const text = useSyncExternalStore(watch, () => read(key));
  const draft = useMemo(() => parse(text, initial), [key, text]);
  return [draft, (next) => setDraft(key, next), () => setDraft(key, undefined)];
}

/** A draft of text; empty where there is none. */
export function useTextDraft(key: string): [draft: string, change: (text: string) => void, remove: () => void] {
  const [draft, change, remove] = useDraft(key, () => "");
  return [draft, (text) => (text === "" ? remove() : change(text)), remove];
}
