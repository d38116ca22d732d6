// The runs of a filter, live: rows change in place, and new rows wait until they are asked for.

import { keepPreviousData, type InfiniteData, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";

import { api } from "../../api/client.ts";
import { useFeed } from "../../api/feed.ts";
import { client } from "../../api/queries.ts";
import type { RunCounts, RunPage, RunRow } from "../../api/types.ts";
import { useSoon } from "../../ui/soon.ts";
import { dropRuns, type Filter, nestRows, patchPages, queryOf } from "./rows.ts";

const PAGE = 200;
const HEAD = 50;
const PATCH_WAIT = 250;
const HEAD_WAIT = 1_000;
const COUNT_WAIT = 3_000;
const LOOK_WAIT = 10_000;

/** `loaded` is another number each time the list begins again. */
interface ListedPage extends RunPage {
  loaded: number;
}

type Listed = InfiniteData<ListedPage, string | null>;

let loads = 0;

const now = () => Date.now() / 1000;
const keyOf = (filter: Filter) => ["run-list", filter] as const;

async function load(filter: Filter, before: string | null, signal?: AbortSignal): Promise<ListedPage> {
  const query = { ...queryOf(filter, now()), limit: PAGE, ...(before === null ? {} : { before }) };
  const page = await api<RunPage>("/runs", { query, ...(signal ? { signal } : {}) });
  return { ...page, loaded: ++loads };
}

export function useRuns(filter: Filter) {
  const key = useMemo(() => keyOf(filter), [filter]);
  const query = useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => load(filter, pageParam, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (last) => last.next,
    staleTime: Infinity,
    refetchOnMount: false,
    refetchOnWindowFocus: false,
    refetchOnReconnect: false,
    placeholderData: keepPreviousData,
  });
  const { data, isPlaceholderData } = query;
  const first = isPlaceholderData ? undefined : data?.pages[0];
  const rows = useMemo(() => nestRows(data?.pages ?? []), [data]);
  const [fresh, setFresh] = useState({ loaded: 0, count: 0 });

  const change = useCallback((edit: (pages: ListedPage[]) => ListedPage[]) => client.setQueryData<Listed>(key, (old) => old && { ...old, pages: edit(old.pages) }), [key]);

  /** Have the list begin again, with the new rows. */
  const restart = useCallback(async () => {
    const page = await load(filter, null);
    client.setQueryData<Listed>(key, { pages: [page], pageParams: [null] });
  }, [filter, key]);

  // The server knows which new runs belong to the filter.
  const lookForNew = useSoon(async () => {
    const listed = client.getQueryData<Listed>(key);
    if (listed === undefined) return;
    const known = new Set(listed.pages.flatMap((page) => page.runs.map((row) => row.run_id)));
    const head = await api<RunPage>("/runs", { query: { ...queryOf(filter, now()), limit: HEAD } }).catch(() => null);
    if (head === null) return;
    setFresh({ loaded: listed.pages[0]!.loaded, count: head.runs.filter((row) => !known.has(row.run_id)).length });
  }, HEAD_WAIT);

  const changed = useRef({ rows: new Map<string, RunRow>(), last: 0 });
  const patch = useSoon(async () => {
    const { rows: found, last } = changed.current;
    changed.current = { rows: new Map(), last };
    const listed = client.getQueryData<Listed>(key);
    if (listed === undefined) return;
    const known = new Set(listed.pages.flatMap((page) => page.runs.map((row) => row.run_id)));
    change((pages) => patchPages(pages, found).map((page, index) => (index === 0 ? { ...page, change: Math.max(page.change, last) } : page)));
    if ([...found.keys()].some((id) => !known.has(id))) lookForNew();
  }, PATCH_WAIT, true);

  // A list that was shown before may be old.
  const begun = first?.loaded;
  useEffect(() => {
    if (begun !== undefined && begun !== loads) lookForNew();
  }, [begun, lookForNew]);

  // Nothing is written when the process of a run dies: its row says so after a look.
  const isRunning = rows.some(({ row }) => row.status === "running");
  const { data: interrupted } = useQuery({
    queryKey: ["run-interrupted"],
    queryFn: ({ signal }) => api<RunPage>("/runs", { query: { status: "interrupted", limit: HEAD }, signal }),
    enabled: isRunning,
    refetchInterval: LOOK_WAIT,
  });
  useEffect(() => {
    if (interrupted === undefined || interrupted.runs.length === 0) return;
    for (const row of interrupted.runs) changed.current.rows.set(row.run_id, row);
    patch();
  }, [interrupted, patch]);

  const recount = useSoon(async () => client.invalidateQueries({ queryKey: ["run-counts"] }), COUNT_WAIT);
  useFeed(
    first === undefined ? null : "runs",
    first?.change,
    (message) => {
      if (message.end === "gap" || message.end === "reset") void restart();
      const items = message.items as RunRow[];
      if (items.length === 0) return;
      for (const row of items) changed.current.rows.set(row.run_id, row);
      changed.current.last = message.last;
      patch();
      recount();
    },
    { generation: first?.loaded },
  );
  return {
    query,
    rows,
    fresh: first !== undefined && fresh.loaded === first.loaded ? fresh.count : 0,
    isStale: isPlaceholderData,
    restart,
    drop: useCallback((gone: ReadonlySet<string>) => change((pages) => dropRuns(pages, gone)), [change]),
  };
}

/** How many runs there are. A count is cheap, and it moves no row: it is made again while runs change. */
export function useCounts(filter: Filter) {
  const { status: _, ...rest } = filter;
  return useQuery({
    queryKey: ["run-counts", rest],
    queryFn: ({ signal }) => api<RunCounts>("/run-counts", { query: queryOf({ ...rest, status: "" }, now()), signal }),
    placeholderData: keepPreviousData,
  }).data;
}
