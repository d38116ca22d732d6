// The search of the address. The router's own hooks decode it before it is read, and the path before
// it is written: an id with a percent sign would become another one.

import { useMemo } from "react";
import { navigate, useSearch } from "wouter/use-browser-location";

export { useSearch } from "wouter/use-browser-location";

type Next = Record<string, string> | ((old: URLSearchParams) => URLSearchParams);

/** Change the search of the address, and stay on the page. */
function setParams(next: Next, options: { replace: boolean }): void {
  const params = typeof next === "function" ? next(new URLSearchParams(location.search)) : new URLSearchParams(next);
  const text = params.toString();
  navigate(location.pathname + (text ? `?${text}` : ""), options);
}

export function useSearchParams(): [params: URLSearchParams, change: typeof setParams] {
  const search = useSearch();
  return [useMemo(() => new URLSearchParams(search), [search]), setParams];
}
