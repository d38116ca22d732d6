// A long list of the API, of which only the blocks in view are read.

import { type QueryKey, useQueries, useQueryClient } from "@tanstack/react-query";
import { useRef } from "react";

interface BlockQuery {
  queryKey: QueryKey;
  queryFn?: unknown;
}

interface Shape<P, T> {
  query: (start: number) => BlockQuery;
  items: (page: P) => readonly T[];
  total: (page: P) => number;
  size: number;
}

export interface Blocks<P, T> {
  /** Any page that is there. */
  page: P | undefined;
  get: (index: number) => T | undefined;
  error: Error | null;
  /** When what is shown was read, in milliseconds. */
  readAt: number;
}

/** The items from `first` to `last`, with the whole blocks that they are in. A page that the server
 *  ends early, because its values are long, is followed by others. */
export function useBlocks<P, T>({ query, items, total, size }: Shape<P, T>, [first, last]: readonly [number, number]): Blocks<P, T> {
  const client = useQueryClient();
  const starts: number[] = [];
  for (let block = Math.floor(first / size); block <= Math.floor(Math.max(first, last) / size); block++) {
    let start = block * size;
    for (;;) {
      starts.push(start);
      const page = client.getQueryData<P>(query(start).queryKey);
      if (page === undefined) break;
      const count = items(page).length;
      if (count === 0 || start + count >= Math.min((block + 1) * size, total(page))) break;
      start += count;
    }
  }
  const asked = starts.map((start) => ({ ...query(start), placeholderData: undefined }) as { queryKey: QueryKey; queryFn: () => Promise<P> });
  const results = useQueries({ queries: asked });
  const get = (index: number): T | undefined => {
    for (let number = starts.length - 1; number >= 0; number--) {
      const page = results[number]?.data;
      if (starts[number]! <= index && page !== undefined) return items(page)[index - starts[number]!];
    }
    return undefined;
  };
  // While another block is read, the list is as long as the last one said.
  const known = useRef<{ list: string; page: P | undefined }>({ list: "", page: undefined });
  const list = JSON.stringify(query(0).queryKey);
  const page = results.find((result) => result.data !== undefined)?.data ?? (known.current.list === list ? known.current.page : undefined);
  known.current = { list, page };
  return {
    page,
    get,
    error: results.find((result) => result.error !== null && result.data === undefined)?.error ?? null,
    readAt: Math.max(0, ...results.map((result) => result.dataUpdatedAt)),
  };
}
