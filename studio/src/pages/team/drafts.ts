// Texts that are being typed. They outlive the component, so that no live update costs them.

import { useSyncExternalStore } from "react";

const drafts = new Map<string, string>();
const listeners = new Set<() => void>();

function watch(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function setDraft(name: string, text: string): void {
  if (text === "") drafts.delete(name);
  else drafts.set(name, text);
  for (const listener of listeners) listener();
}

/** A text by its name, the same in all places that show it. */
export function useDraft(name: string): [draft: string, set: (text: string) => void, forget: () => void] {
  const draft = useSyncExternalStore(watch, () => drafts.get(name) ?? "");
  return [draft, (text) => setDraft(name, text), () => setDraft(name, "")];
}
