// What the models of a run write at this moment, by place.

import { useMemo, useSyncExternalStore } from "react";

import { useFeed } from "../../api/feed.ts";
import { GrowingTexts } from "../../ui/growing-texts.ts";

/** Follows a run, and returns its text in progress by place. `status` subscribes again when it
 *  changes; `onChange` is called when there is something new to fetch. */
export function useLiveText(run: string | null, status: string, onChange: () => void): Readonly<Record<string, string>> {
  const texts = useMemo(() => new GrowingTexts(), [run]);
  useFeed(
    run === null ? null : `run/${encodeURIComponent(run)}`,
    "now",
    (message) => {
      if (message.items.length > 0 || message.end !== undefined || message.status !== undefined) onChange();
      if (message.end !== undefined) texts.keep();
      if (message.text !== undefined) texts.take(message.text);
    },
    { generation: status },
  );
  return useSyncExternalStore(texts.watch, texts.all);
}
