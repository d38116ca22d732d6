// What the models of a run write at this moment, by place.

import { useEffect, useRef, useState } from "react";

import { type FeedMessage, useFeed } from "../../api/feed.ts";
import { withPiece } from "./turns.ts";

/** A text that is gone stays for so many milliseconds: most often its record comes at once. */
const LINGER = 600;

/** Follows a run, and returns its text in progress by place. `status` subscribes again when it
 *  changes; `onChange` is called when there is something new to fetch. */
export function useLiveText(run: string | null, status: string, onChange: () => void): Record<string, string> {
  const [texts, setTexts] = useState<Record<string, string>>({});
  const voids = useRef(new Map<string, ReturnType<typeof setTimeout>>());
  const keep = (place: string) => {
    clearTimeout(voids.current.get(place));
    voids.current.delete(place);
  };
  useFeed(
    run === null ? null : `run/${encodeURIComponent(run)}`,
    "now",
    (message: FeedMessage) => {
      if (message.items.length > 0 || message.end !== undefined || message.status !== undefined) onChange();
      if (message.end !== undefined) for (const place of [...voids.current.keys()]) keep(place);
      if (message.text === undefined) return;
      const pieces = message.text;
      setTexts((before) => {
        const next = { ...before };
        for (const piece of pieces) {
          const [place] = piece;
          const text = withPiece(next[place], piece);
          keep(place);
          if (text !== undefined) next[place] = text;
          else {
            const drop = () => setTexts(({ [place]: _, ...rest }) => rest);
            voids.current.set(place, setTimeout(drop, LINGER));
          }
        }
        return next;
      });
    },
    { generation: status },
  );
  useEffect(() => {
    const timers = voids.current;
    return () => {
      for (const timer of timers.values()) clearTimeout(timer);
    };
  }, [run]);
  return texts;
}
