import { useCallback, useMemo, useSyncExternalStore } from "react";

/** Whether the page is as narrow as on a phone: it shows one column. A page with more columns may
 *  need more pixels for them. */
export function useIsNarrow(most = 760): boolean {
  const query = useMemo(() => matchMedia(`(max-width: ${most}px)`), [most]);
  const watch = useCallback(
    (listener: () => void) => {
      query.addEventListener("change", listener);
      return () => query.removeEventListener("change", listener);
    },
    [query],
  );
  return useSyncExternalStore(watch, () => query.matches);
}
