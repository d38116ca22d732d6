// A list that grows at its end: it follows only while its end is in view, and nothing else moves it.

import { useCallback, useEffect, useRef, useState } from "react";

/** Pixels from the end within which the list follows. */
const NEAR = 80;

export interface Follow {
  scroller: (element: HTMLDivElement | null) => void;
  content: (element: HTMLDivElement | null) => void;
  /** Something was added below what is in view. */
  hasNew: boolean;
  /** Go to the end, and follow again. */
  jump: () => void;
  /** Keep what is in view where it is while something is put before it. */
  hold: () => void;
}

export function useFollow(): Follow {
  const scroller = useRef<HTMLDivElement | null>(null);
  const content = useRef<HTMLDivElement | null>(null);
  const follows = useRef(true);
  const held = useRef<number | null>(null);
  const [hasNew, setNew] = useState(false);
  const [parts, setParts] = useState(0);
  useEffect(() => {
    const box = scroller.current;
    const inner = content.current;
    if (box === null || inner === null) return;
    let height = inner.offsetHeight;
    const end = () => box.scrollHeight - box.clientHeight - box.scrollTop;
    const grow = new ResizeObserver(() => {
      const now = inner.offsetHeight;
      if (held.current !== null && now > height) {
        box.scrollTop = box.scrollHeight - held.current;
        held.current = null;
      } else if (follows.current) box.scrollTop = box.scrollHeight;
      else if (now > height) setNew(end() > NEAR);
      height = now;
    });
    grow.observe(inner);
    grow.observe(box);
    let top = box.scrollTop;
    const scroll = () => {
      // The list may have grown since it was moved: only who moves up stops following.
      if (end() <= NEAR) follows.current = true;
      else if (box.scrollTop < top) follows.current = false;
      top = box.scrollTop;
      if (follows.current) setNew(false);
    };
    box.addEventListener("scroll", scroll, { passive: true });
    return () => {
      grow.disconnect();
      box.removeEventListener("scroll", scroll);
    };
  }, [parts]);
  const jump = useCallback(() => {
    follows.current = true;
    setNew(false);
    if (scroller.current !== null) scroller.current.scrollTop = scroller.current.scrollHeight;
  }, []);
  const hold = useCallback(() => {
    const box = scroller.current;
    if (box !== null) held.current = box.scrollHeight - box.scrollTop;
    follows.current = false;
  }, []);
  const setScroller = useCallback((element: HTMLDivElement | null) => {
    scroller.current = element;
    setParts((count) => count + 1);
  }, []);
  const setContent = useCallback((element: HTMLDivElement | null) => {
    content.current = element;
  }, []);
  return { scroller: setScroller, content: setContent, hasNew, jump, hold };
}
