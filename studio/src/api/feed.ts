// One WebSocket for a tab. Each subscription knows the number of its last item, so after a lost
// connection it continues where it stopped.

import { useEffect, useRef, useSyncExternalStore } from "react";

import { readJson } from "./json.ts";
import { getToken, onToken, refuseToken } from "./session.ts";

/** A piece of text in progress: the place of the field, how many characters come before, the text. */
export type TextPiece = [place: string, start: number, delta: string];

export interface FeedMessage {
  items: unknown[];
  last: number;
  status?: string;
  live?: boolean;
  text?: TextPiece[];
  /** Why the feed is over: "ended", "waiting", "gap", "deleted", "reset", "refused" … */
  end?: string;
}

interface Subscription {
  feed: string;
  after: number | "now" | undefined;
  listener: (message: FeedMessage) => void;
}

export type Connection = "connecting" | "open" | "lost";

const FIRST_DELAY = 500;
const LONGEST_DELAY = 10_000;
/** Milliseconds without a message, or the beat of the server every 15 s, after which a connection is
 *  lost: after a sleep of the machine nothing else tells. */
const SILENCE = 40_000;

class Feeds {
  readonly #base: string;
  #socket: WebSocket | null = null;
  #subscriptions = new Map<number, Subscription>();
  #next = 1;
  #delay = FIRST_DELAY;
  #timer: ReturnType<typeof setTimeout> | null = null;
  #silence: ReturnType<typeof setTimeout> | null = null;
  #heard = 0;
  #state: Connection = "connecting";
  #listeners = new Set<() => void>();

  constructor(base: string) {
    this.#base = base;
    onToken(() => this.#restart());
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.#look();
    });
    window.addEventListener("online", () => this.#look());
  }

  readonly state = (): Connection => this.#state;

  readonly watchState = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Follow a feed after a number, until the returned function is called. */
  subscribe(feed: string, after: number | "now" | undefined, listener: (message: FeedMessage) => void): () => void {
    const number = this.#next++;
    this.#subscriptions.set(number, { feed, after, listener });
    if (this.#socket?.readyState === WebSocket.OPEN) this.#ask(number);
    else this.#connect();
    return () => {
      if (this.#subscriptions.delete(number) && this.#socket?.readyState === WebSocket.OPEN) {
        this.#socket.send(JSON.stringify({ unsub: number }));
      }
    };
  }

  #restart(): void {
    this.#delay = FIRST_DELAY;
    this.#socket?.close();
    this.#socket = null;
    this.#connect();
  }

  /** Connect again if there is no connection, or a silent one. */
  #look(): void {
    if (this.#socket !== null && Date.now() - this.#heard > SILENCE / 2) this.#lose(this.#socket);
    this.#connect();
  }

  /** Give up a connection, without waiting until the browser has closed it. */
  #lose(socket: WebSocket): void {
    if (this.#socket !== socket) return;
    this.#socket = null;
    socket.close();
    this.#change("lost");
  }

  #listen(socket: WebSocket): void {
    this.#heard = Date.now();
    if (this.#silence !== null) clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      this.#lose(socket);
      this.#connect();
    }, SILENCE);
  }

  #connect(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    const token = getToken();
    if (this.#socket !== null || token === null || this.#subscriptions.size === 0) return;
    const socket = new WebSocket(`${location.origin.replace("http", "ws")}/api${this.#base}/feed`);
    this.#socket = socket;
    this.#listen(socket);
    socket.onopen = () => {
      socket.send(JSON.stringify({ token }));
      for (const number of this.#subscriptions.keys()) this.#ask(number);
    };
    socket.onmessage = (event: MessageEvent<string>) => {
      if (this.#socket !== socket) return;
      this.#listen(socket);
      this.#delay = FIRST_DELAY;
      this.#change("open");
      this.#take(readJson(event.data) as FeedMessage & { sub?: number });
    };
    socket.onclose = (event) => {
      if (this.#socket !== socket) return;
      this.#socket = null;
      if (event.code === 4401) {
        refuseToken(token);
        return;
      }
      this.#change("lost");
      this.#timer = setTimeout(() => this.#connect(), this.#delay * (0.75 + Math.random() / 2));
      this.#delay = Math.min(this.#delay * 2, LONGEST_DELAY);
    };
  }

  #ask(number: number): void {
    const { feed, after } = this.#subscriptions.get(number)!;
    const frame = after === undefined ? { sub: number, feed } : { sub: number, feed, after };
    this.#socket?.send(JSON.stringify(frame));
  }

  #take(message: FeedMessage & { sub?: number }): void {
    const subscription = message.sub === undefined ? undefined : this.#subscriptions.get(message.sub);
    if (subscription === undefined) return;
    if (typeof message.last === "number" && message.last >= 0) subscription.after = message.last;
    if (message.end !== undefined) this.#subscriptions.delete(message.sub!);
    subscription.listener({ ...message, items: message.items ?? [] });
  }

  #change(state: Connection): void {
    if (this.#state === state) return;
    this.#state = state;
    for (const listener of this.#listeners) listener();
  }
}

/** All feeds of the studio. */
export const feeds = new Feeds("");
const others = new Map<string, Feeds>();

/** The feeds below another path of the API: of the runs of a team's agents. */
export function feedsAt(base: string): Feeds {
  if (base === "") return feeds;
  let found = others.get(base);
  if (found === undefined) others.set(base, (found = new Feeds(base)));
  return found;
}

/** Follow a feed while the component is shown. Nothing is followed without a name. `generation`
 *  subscribes again when it changes, as after a gap or an answer. */
export function useFeed(
  feed: string | null,
  after: number | "now" | undefined,
  listener: (message: FeedMessage) => void,
  { generation = 0, base = "" }: { generation?: unknown; base?: string } = {},
): void {
  const latest = useRef(listener);
  latest.current = listener;
  const start = useRef(after);
  start.current = after;
  useEffect(() => {
    if (feed === null) return;
    return feedsAt(base).subscribe(feed, start.current, (message) => latest.current(message));
  }, [feed, base, generation]);
}

/** Whether the page is connected. */
export function useConnection(): Connection {
  return useSyncExternalStore(feeds.watchState, feeds.state);
}
