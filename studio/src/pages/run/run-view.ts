// What a page of a run shows, as its address says: a link opens the same view again.

import { useCallback, useMemo } from "react";
import { useLocation } from "wouter";

import type { RunAt } from "../../api/queries.ts";
import { useSearch } from "../../search.ts";

export const TABS = ["graph", "timeline", "trace", "calls", "raw"] as const;
export type Tab = (typeof TABS)[number];

export interface RunView {
  step: number | null;
  path: string;
  field: string;
  tab: Tab;
  call: number | null;
  node: string;
  filter: string;
}

export type ChangeView = (change: Partial<RunView>, replaces?: boolean) => void;

const NOTHING: RunView = { step: null, path: "", field: "", tab: "trace", call: null, node: "", filter: "" };

export function readView(search: string): RunView {
  const given = new URLSearchParams(search);
  const number = (name: string) => (/^\d{1,9}$/.test(given.get(name) ?? "") ? Number(given.get(name)) : null);
  return {
    step: number("step"),
    path: given.get("path") ?? "",
    field: given.get("field") ?? "",
    tab: TABS.find((tab) => tab === given.get("tab")) ?? "trace",
    call: number("call"),
    node: given.get("node") ?? "",
    filter: given.get("filter") ?? "",
  };
}

export function writeView(view: RunView): string {
  const parts = new URLSearchParams();
  for (const name of ["step", "path", "field", "tab", "call", "node", "filter"] as const) {
    if (view[name] !== NOTHING[name] && view[name] !== null) parts.set(name, String(view[name]));
  }
  const text = parts.toString();
  return text ? `?${text}` : "";
}

/** What is shown, and how to change it: an opened thing adds an entry to the history, a filter
 *  replaces the entry. */
export function useRunView(): [RunView, ChangeView] {
  const search = useSearch();
  const [, navigate] = useLocation();
  const view = useMemo(() => readView(search), [search]);
  const change = useCallback<ChangeView>(
    (change, replaces = false) => {
      const next = writeView({ ...readView(location.search), ...change });
      if (next !== location.search) navigate(location.pathname + next, { replace: replaces });
    },
    [navigate],
  );
  return [view, change];
}

/** The address of another run beside this one. */
export function addressOf(at: RunAt, run: string): string {
  const own = encodeURIComponent(at.run);
  if (at.base === "" || !location.pathname.endsWith(own)) return `/runs/${encodeURIComponent(run)}`;
  return location.pathname.slice(0, -own.length) + encodeURIComponent(run);
}
