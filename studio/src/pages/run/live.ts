// A run in progress: its records make the page read again what it shows, and its text in progress
// is kept by place.

import { createContext, useCallback, useContext, useEffect, useRef, useState, useSyncExternalStore } from "react";

import { useFeed } from "../../api/feed.ts";
import { client, type RunAt } from "../../api/queries.ts";
import type { RunDetails, RunRow } from "../../api/types.ts";
import { GrowingTexts } from "../../ui/growing-texts.ts";

const OFTEN = 250;
const NONE = new GrowingTexts();
export const TextsContext = createContext<GrowingTexts>(NONE);

/** The text in progress at a place. */
export function useGrowingText(place: string): string {
  const texts = useContext(TextsContext);
  return useSyncExternalStore(texts.watch, () => texts.at(place));
}

/** The places that have text in progress. */
export function useGrowingPlaces(): readonly string[] {
  const texts = useContext(TextsContext);
  return useSyncExternalStore(texts.watch, texts.places);
}

export interface Live {
  texts: GrowingTexts;
  /** The run is in progress in another process, so that its text is not known here. */
  isElsewhere: boolean;
}

/** Follow a run while it is shown. */
export function useLive(at: RunAt, details: RunDetails | undefined): Live {
  const [texts] = useState(() => new GrowingTexts());
  const [isElsewhere, setElsewhere] = useState(false);
  const [generation, setGeneration] = useState(0);
  const isOver = useRef(false);
  const refresh = useRefresh(at);
  const follow = () => {
    isOver.current = false;
    setGeneration((number) => number + 1);
  };
  useFeed(
    details === undefined ? null : `run/${encodeURIComponent(at.run)}`,
    "now",
    (message) => {
      if (message.text !== undefined) texts.take(message.text);
      const status = message.end ?? message.status;
      if (message.items.length > 0 || (status !== undefined && status !== details?.status)) refresh();
      if (message.live !== undefined) setElsewhere(message.status === "running" && !message.live);
      if (message.end === undefined) return;
      isOver.current = true;
      texts.clear();
      setElsewhere(false);
      if (message.end === "gap" || message.end === "reset") follow();
    },
    { generation, base: at.base },
  );
  // A run that was over may continue: after an answer, or when it is resumed.
  useFeed(
    "runs",
    "now",
    (message) => {
      const row = (message.items as RunRow[]).findLast((item) => item.run_id === at.run);
      if (row === undefined) return;
      refresh();
      if (isOver.current && (row.status === "running" || row.status === "queued")) follow();
    },
    { base: at.base },
  );
  return { texts, isElsewhere };
}

/** Has everything about a run read again, a few times a second at most, and less often where
 *  reading takes long. */
function useRefresh({ base, run }: RunAt): () => void {
  const state = useRef({ timer: 0, last: 0, took: 0, again: false, reading: false });
  const refresh = useCallback(() => {
    const now = state.current;
    if (now.timer !== 0 || now.reading) {
      now.again = true;
      return;
    }
    const wait = Math.max(0, now.last + Math.max(OFTEN, now.took * 3) - Date.now());
    now.timer = window.setTimeout(async () => {
      now.timer = 0;
      now.again = false;
      now.reading = true;
      const began = Date.now();
      await client.invalidateQueries({ queryKey: ["run", base, run] });
      now.reading = false;
      now.last = Date.now();
      now.took = now.last - began;
      if (now.again) refresh();
    }, wait);
  }, [base, run]);
  useEffect(() => () => window.clearTimeout(state.current.timer), []);
  return refresh;
}
