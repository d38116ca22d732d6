import { useCallback, useEffect, useRef } from "react";

/** A function that calls `call` at most once in `wait` milliseconds: the first time at once, and the
 *  last time after the last request. With `flush`, a call that is due is made when the component goes. */
export function useSoon(call: () => unknown, wait = 250, flush = false): () => void {
  const latest = useRef(call);
  latest.current = call;
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  const last = useRef(-Infinity);
  useEffect(
    () => () => {
      if (timer.current === null) return;
      clearTimeout(timer.current);
      timer.current = null;
      if (flush) latest.current();
    },
    [flush],
  );
  return useCallback(() => {
    timer.current ??= setTimeout(
      () => {
        timer.current = null;
        last.current = performance.now();
        latest.current();
      },
      Math.max(0, last.current + wait - performance.now()),
    );
  }, [wait]);
}
