import { useSyncExternalStore } from "react";

const query = matchMedia("(max-width: 760px)");

function watch(listener: () => void): () => void {
  query.addEventListener("change", listener);
  return () => query.removeEventListener("change", listener);
}

/** Whether the page is as narrow as on a phone: it shows one column. */
export function useIsNarrow(): boolean {
  return useSyncExternalStore(watch, () => query.matches);
}
