// The turns of a thread: the newest page, which follows the runs, and earlier pages.

import { useQuery } from "@tanstack/react-query";
import { useCallback, useRef, useState } from "react";

import { api, ApiProblem, pathOf } from "../../api/client.ts";
import { useFeed } from "../../api/feed.ts";
import { client, threadQuery } from "../../api/queries.ts";
import type { ThreadDetails, TurnView } from "../../api/types.ts";
import { useSoon } from "../../ui/soon.ts";
import { inConversation } from "./turns.ts";

const PAGE = 30;

export interface Thread {
  turns: TurnView[];
  isPending: boolean;
  error: unknown;
  /** There are turns before those that are shown. */
  hasEarlier: boolean;
  isLoadingEarlier: boolean;
  loadEarlier: () => void;
  refresh: () => void;
}

/** `isStored` says whether the thread has a turn: before that there is nothing to read. */
export function useThread(thread: string, isStored: boolean): Thread {
  const query = useQuery({ ...threadQuery(thread, { limit: PAGE }), enabled: isStored });
  const known = useRef(new Map<string, TurnView>());
  const [isLoading, setLoading] = useState(false);
  const [failed, setFailed] = useState<unknown>(null);
  const refresh = useSoon(() => void client.invalidateQueries({ queryKey: ["thread", thread] }));
  useFeed("runs", "now", (message) => message.items.some((each) => (each as { thread: string | null }).thread === thread) && refresh());
  const newest = query.data?.turns ?? [];
  if (known.current.size > 0 && newest.length > 0 && !newest.some((turn) => known.current.has(turn.run_id))) known.current.clear();
  for (const turn of newest) known.current.set(turn.run_id, turn);
  const all = [...known.current.values()].sort((a, b) => a.started - b.started);
  const loadEarlier = useCallback(() => {
    const first = [...known.current.values()].sort((a, b) => a.started - b.started)[0];
    if (first === undefined) return;
    setLoading(true);
    api<ThreadDetails>(pathOf`/threads/${thread}`, { query: { limit: PAGE, before: first.run_id } })
      .then((page) => {
        for (const turn of page.turns) known.current.set(turn.run_id, turn);
        setFailed(null);
      }, setFailed)
      .finally(() => setLoading(false));
  }, [thread]);
  const isMissing = query.error instanceof ApiProblem && query.error.status === 404;
  return {
    turns: inConversation(all),
    isPending: query.isLoading,
    error: failed ?? (isMissing ? null : query.error),
    hasEarlier: (query.data?.total ?? 0) > all.length,
    isLoadingEarlier: isLoading,
    loadEarlier,
    refresh,
  };
}
