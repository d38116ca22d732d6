import { useCallback, useEffect, useRef } from "react";

/** Calls a function at most once in so many milliseconds, the last time after the last call. */
export function useSoon(call: () => void, wait = 250): () => void {
  const latest = useRef(call);
  latest.current = call;
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  const last = useRef(0);
  useEffect(
    () => () => {
      if (timer.current !== null) clearTimeout(timer.current);
      timer.current = null;
    },
    [],
  );
  return useCallback(() => {
    if (timer.current !== null) return;
    const due = Math.max(0, last.current + wait - performance.now());
    timer.current = setTimeout(() => {
      timer.current = null;
      last.current = performance.now();
      latest.current();
    }, due);
  }, [wait]);
}
