// The conversations with a graph. A row stays in its place; new ones are put above.

import { useQuery } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { Link, useLocation } from "wouter";

import { useFeed } from "../../api/feed.ts";
import { client, threadsQuery } from "../../api/queries.ts";
import type { StudioGraph, ThreadRow } from "../../api/types.ts";
import { Age, Loading, Problem, Status } from "../../ui/basics.tsx";
import { useIsNarrow } from "../../ui/narrow.ts";
import { useSoon } from "../../ui/soon.ts";
import { addressOf } from "./chat-page.tsx";

const PAGE = 50;

export function ThreadList({ graph, chats, thread, onNew }: { graph: StudioGraph; chats: StudioGraph[]; thread: string | null; onNew: () => void }) {
  const [, navigate] = useLocation();
  const [q, setQ] = useState("");
  const [limit, setLimit] = useState(PAGE);
  const { data, error } = useQuery(threadsQuery({ graph: graph.name, q, limit }));
  const refresh = useSoon(() => void client.invalidateQueries({ queryKey: ["threads"] }), 1_000);
  useFeed("runs", "now", (message) => message.items.some((each) => (each as { thread: string | null }).thread !== null) && refresh());
  const isNarrow = useIsNarrow();
  const Heading = isNarrow ? "h1" : "h2";
  const rows = useSteady(data?.threads);
  return (
    <aside className="chat-threads" aria-label="Threads">
      {thread === null && chats.length > 1 && isNarrow && <h1 className="sr-only">Chat</h1>}
      <div className="chat-threads-head">
        {chats.length > 1 ? (
          <select className="select" aria-label="Graph" value={graph.name} onChange={(event) => navigate(addressOf(event.target.value))}>
            {chats.map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
          </select>
        ) : (
          <Heading className="grow truncate">Chat</Heading>
        )}
        <button type="button" className="button" onClick={onNew}>
          + New
        </button>
      </div>
      <input className="input" type="search" data-search placeholder="Search threads" aria-label="Search threads" value={q} onChange={(event) => setQ(event.target.value)} />
      {error && <Problem error={error} />}
      {data === undefined && !error && <Loading />}
      <nav className="chat-rows" aria-label="Conversations">
        {rows.map((row) => (
          <Link key={row.thread} href={addressOf(graph.name, row.thread)} className="chat-row" aria-current={row.thread === thread ? "page" : undefined}>
            <span className="chat-row-line">
              <span className="truncate strong">{row.thread}</span>
              <span className="small muted">
                <Age at={row.updated} />
              </span>
            </span>
            <span className="chat-row-line small muted">
              <span className="truncate">{row.text || "…"}</span>
              {row.status !== "ended" && <Status status={row.status} />}
            </span>
          </Link>
        ))}
        {data !== undefined && rows.length === 0 && <p className="muted chat-none">{q ? "No thread id matches." : "No conversations yet. + New begins one."}</p>}
        {data?.next && limit < 200 && (
          <button type="button" className="button quiet" onClick={() => setLimit(limit + PAGE)}>
            Show older threads
          </button>
        )}
      </nav>
    </aside>
  );
}

/** Rows in the order in which they were first seen, with new ones before them. */
function useSteady(rows: ThreadRow[] | undefined): ThreadRow[] {
  const order = useRef<string[]>([]);
  if (rows === undefined) return [];
  const found = new Map(rows.map((row) => [row.thread, row]));
  const known = new Set(order.current);
  const fresh = rows.filter((row) => !known.has(row.thread)).map((row) => row.thread);
  const isOlder = (name: string) => order.current.some((each) => found.has(each) && rows.indexOf(found.get(each)!) < rows.indexOf(found.get(name)!));
  order.current = [...fresh.filter((name) => !isOlder(name)), ...order.current, ...fresh.filter(isOlder)];
  return order.current.flatMap((name) => found.get(name) ?? []);
}
