// What is typed stays when another page is opened, or this one is loaded again. It is kept for the
// tab alone, and forgotten once it is sent.

import { readJson } from "../api/json.ts";
import { useCallback, useRef, useState } from "react";

const PREFIX = "bae.draft.";
const memory = new Map<string, string>();

function read(key: string): string | null {
  try {
    return sessionStorage.getItem(PREFIX + key);
  } catch {
    return memory.get(key) ?? null;
  }
}

function write(key: string, text: string | null): void {
  try {
    if (text === null) sessionStorage.removeItem(PREFIX + key);
    else sessionStorage.setItem(PREFIX + key, text);
  } catch {
    if (text === null) memory.delete(key);
    else memory.set(key, text);
  }
}

/** A value that is kept under a key. Give the component that uses it the same key. */
export function useDraft<T>(key: string, initial: () => T): [value: T, change: (value: T) => void, forget: () => void] {
  const [value, setValue] = useState<T>(() => {
    const text = read(key);
    if (text === null) return initial();
    try {
      return readJson(text) as T;
    } catch {
      return initial();
    }
  });
  const first = useRef(initial);
  first.current = initial;
  const change = useCallback(
    (next: T) => {
      setValue(next);
      write(key, JSON.stringify(next) ?? null);
    },
    [key],
  );
  const forget = useCallback(() => {
    setValue(first.current());
    write(key, null);
  }, [key]);
  return [value, change, forget];
}
