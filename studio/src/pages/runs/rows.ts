// The rows of the list of runs: pages in the order of the server, with forks below their parents.
// Changes update rows in place.

import type { RunPage, RunRow } from "../../api/types.ts";

export interface Filter {
  status: string;
  graph: string;
  thread: string;
  q: string;
  since: string;
}

/** Spans of time to choose from, in seconds. */
export const SPANS: Record<string, [seconds: number, label: string]> = {
  "1h": [3_600, "last hour"],
  "24h": [86_400, "last 24 hours"],
  "7d": [604_800, "last 7 days"],
  "30d": [2_592_000, "last 30 days"],
};

/** The filter of an address, without invalid parts. */
export function filterOf(params: URLSearchParams): Filter {
  const since = params.get("since") ?? "";
  return {
    status: params.get("status") ?? "",
    graph: params.get("graph") ?? "",
    thread: params.get("thread") ?? "",
    q: (params.get("q") ?? "").slice(0, 200),
    since: Object.hasOwn(SPANS, since) ? since : "",
  };
}

export function isFiltered(filter: Filter): boolean {
  return Object.values(filter).some((value) => value !== "");
}

/** The filter as the API takes it. */
export function queryOf(filter: Filter, now: number): Record<string, string | number> {
  const { since, ...texts } = filter;
  const span = SPANS[since];
  const given = Object.entries(texts).filter(([, value]) => value !== "");
  return { ...Object.fromEntries(given), ...(span ? { since: Math.floor(now - span[0]) } : {}) };
}

type Linked = Pick<RunRow, "run_id" | "parent">;

export interface NestedRow<T = RunRow> {
  row: T;
  /** How many parents are above it in the list. */
  depth: number;
}

/** The rows of all pages. A fork is below its parent if both are in one page: so rows that are shown
 *  stay where they are when another page comes. */
export function nestRows(pages: readonly RunPage[]): NestedRow[] {
  return pages.flatMap((page) => nestPage(page.runs));
}

function nestPage<T extends Linked>(rows: readonly T[]): NestedRow<T>[] {
  const listed = new Set(rows.map((row) => row.run_id));
  const forks = new Map<string, T[]>();
  for (const row of rows) {
    if (row.parent !== null && row.parent !== row.run_id && listed.has(row.parent)) {
      forks.set(row.parent, [...(forks.get(row.parent) ?? []), row]);
    }
  }
  const nested = new Set([...forks.values()].flat());
  const found: NestedRow<T>[] = [];
  const add = (row: T, depth: number) => {
    found.push({ row, depth });
    for (const fork of forks.get(row.run_id) ?? []) add(fork, depth + 1);
  };
  for (const row of rows) if (!nested.has(row)) add(row, 0);
  return found;
}

/** Pages with the rows that have changed in their places. The feed has no previews: they stay. */
export function patchPages<T extends RunPage>(pages: readonly T[], changed: ReadonlyMap<string, RunRow>): T[] {
  return pages.map((page) => {
    if (!page.runs.some((row) => isNewer(changed.get(row.run_id), row))) return page;
    const runs = page.runs.map((row) => {
      const found = changed.get(row.run_id);
      return isNewer(found, row) ? { ...found, preview: found.preview || row.preview } : row;
    });
    return { ...page, runs };
  });
}

function isNewer(found: RunRow | undefined, row: RunRow): found is RunRow {
  return found !== undefined && found.change >= row.change;
}

/** Pages without some runs. */
export function dropRuns<T extends RunPage>(pages: readonly T[], gone: ReadonlySet<string>): T[] {
  return pages.map((page) => ({ ...page, runs: page.runs.filter((row) => !gone.has(row.run_id)) }));
}

/** Runs in an order in which they can be deleted: a fork before its parent. */
export function forksFirst<T extends Linked>(rows: readonly T[]): T[] {
  return nestPage(rows)
    .reverse()
    .map(({ row }) => row);
}
