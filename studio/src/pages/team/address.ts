// The address of everything that is shown of a team.

import { useLocation } from "wouter";

import { pathOf } from "../../api/client.ts";
import { useSearch } from "../../search.ts";

export const VIEWS = ["board", "graph", "plan"] as const;
export const TABS = ["about", "diff", "tests", "reviews", "log"] as const;
export type View = (typeof VIEWS)[number];
export type Tab = (typeof TABS)[number];

export interface Address {
  team: string;
  task: string | null;
  view: View;
  tab: Tab;
  /** Of the diff or of the tests; null is the whole change, or the last one. */
  attempt: number | null;
  file: string | null;
  /** On a phone: the column that is shown. */
  column: string | null;
  wide: boolean;
}

/** The address of a view. What is as usual is left out. */
export function addressOf({ team, task, view, tab, attempt, file, column, wide }: Address): string {
  const query = new URLSearchParams();
  if (view !== "board") query.set("view", view);
  if (column !== null) query.set("column", column);
  if (task !== null) {
    if (tab !== "about") query.set("tab", tab);
    if (attempt !== null) query.set("attempt", String(attempt));
    if (file !== null) query.set("file", file);
    if (wide) query.set("wide", "1");
  }
  const path = task === null ? pathOf`/team/${team}` : pathOf`/team/${team}/tasks/${task}`;
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export interface Go {
  (change: Partial<Address>, options?: { replace?: boolean }): void;
  /** The address for a link. */
  to: (change: Partial<Address>) => string;
}

export function useAddress(team: string): [Address, Go] {
  const [location, navigate] = useLocation();
  const query = new URLSearchParams(useSearch());
  const task = /^\/team\/[^/]+\/tasks\/([^/]+)/.exec(location)?.[1];
  const known = <T extends string>(name: string, from: readonly T[]): T => from.find((each) => each === query.get(name)) ?? from[0]!;
  const attempt = Number(query.get("attempt"));
  const address: Address = {
    team,
    task: task === undefined ? null : decodeURIComponent(task),
    view: known("view", VIEWS),
    tab: known("tab", TABS),
    attempt: Number.isInteger(attempt) && attempt > 0 ? attempt : null,
    file: query.get("file"),
    column: query.get("column"),
    wide: query.get("wide") === "1",
  };
  const to = (change: Partial<Address>) => {
    // Another task begins at its start: what was open of the one before is not its own.
    const fresh = change.task !== undefined && change.task !== address.task ? { tab: address.task === null ? ("about" as const) : address.tab, attempt: null, file: null } : {};
    return addressOf({ ...address, ...fresh, ...change });
  };
  const go: Go = Object.assign((change: Partial<Address>, options: { replace?: boolean } = {}) => navigate(to(change), options), { to });
  return [address, go];
}
