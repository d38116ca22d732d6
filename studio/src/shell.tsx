// The frame around every page: navigation, connection, keys.

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { Link, useLocation } from "wouter";

import { useConnection, useFeed } from "./api/feed.ts";
import { client, inboxQuery } from "./api/queries.ts";
import type { RunRow } from "./api/types.ts";
import { useStudio } from "./studio.tsx";
import { toggleTheme } from "./theme.ts";
import { Copy } from "./ui/basics.tsx";
import { Icon, type IconName } from "./ui/icons.tsx";
import { Dialog } from "./ui/overlays.tsx";
import { useSoon } from "./ui/soon.ts";

const KEYS: [keys: string, what: string][] = [
  ["g i", "Inbox"],
  ["g r", "Runs"],
  ["g c", "Chat"],
  ["g t", "Team"],
  ["/", "Search"],
  ["j k", "Next and previous row"],
  ["Enter", "Open"],
  ["a r", "Yes or no, in the inbox"],
  ["Ctrl Enter", "Send an answer"],
  ["x", "Select a run"],
  ["c", "Compare two selected runs"],
  ["Esc", "Close"],
  ["[ ]", "Previous and next step of a run"],
  ["w", "Where a value came from"],
  ["f", "Fork at a step"],
  ["t", "Light or dark"],
  ["?", "These keys"],
];

const PLACES: Record<string, string> = { i: "/inbox", r: "/runs", c: "/chat", t: "/team" };

export function Shell({ children }: { children: ReactNode }) {
  const studio = useStudio();
  const [location, navigate] = useLocation();
  const [showsKeys, setShowsKeys] = useState(false);
  const waiting = useInboxCount();
  useReconnected();
  useKeys(navigate, () => setShowsKeys(true));
  useTitle(waiting);
  const links: [IconName, string, string][] = [
    ["inbox", "Inbox", "/inbox"],
    ["runs", "Runs", "/runs"],
  ];
  if (studio.graphs.some((graph) => graph.message !== null)) links.push(["chat", "Chat", "/chat"]);
  if (studio.graphs.length > 0) links.push(["graph", "Graphs", "/graphs"]);
  if (studio.teams.length > 0) links.push(["team", "Team", "/team"]);
  return (
    <div className="shell">
      <nav className="nav" aria-label="Pages">
        <Link href="/" className="brand">
          <img src="/icon.svg" alt="" />
          bae studio
        </Link>
        {links.map(([icon, label, href]) => (
          <Link key={href} href={href} className="nav-link" aria-current={location.startsWith(href) ? "page" : undefined}>
            <Icon name={icon} />
            {label}
            {icon === "inbox" && waiting > 0 && <span className="count">{waiting > 99 ? "99+" : waiting}</span>}
          </Link>
        ))}
        <div className="nav-foot">
          <p className="truncate" title={studio.journal}>
            {studio.journal.split("/").at(-1)}
          </p>
          <p className="row wrap">
            <Connected />
            <button type="button" className="button quiet small" onClick={toggleTheme} aria-label="Light or dark">
              ◐
            </button>
            <button type="button" className="button quiet small" onClick={() => setShowsKeys(true)} aria-label="Keys">
              ?
            </button>
          </p>
          <p>bae {studio.bae}</p>
        </div>
      </nav>
      <main className="main">
        <Banners />
        {children}
      </main>
      {showsKeys && (
        <Dialog title="Keys" onClose={() => setShowsKeys(false)}>
          <dl className="fields">
            {KEYS.map(([keys, what]) => (
              <div key={keys} style={{ display: "contents" }}>
                <dt>
                  <kbd>{keys}</kbd>
                </dt>
                <dd>{what}</dd>
              </div>
            ))}
          </dl>
        </Dialog>
      )}
    </div>
  );
}

function Connected() {
  const connection = useConnection();
  return <span className={`live-dot${connection === "open" ? " on" : ""}`}>{connection === "open" ? "live" : "connecting"}</span>;
}

function Banners() {
  const studio = useStudio();
  const connection = useConnection();
  const [location] = useLocation();
  return (
    <>
      {connection === "lost" && (
        <div className="banner" role="status">
          Reconnecting. The page shows the state before the connection was lost.
        </div>
      )}
      {studio.read_only !== null && !location.startsWith("/team") && (
        <div className="banner quiet">
          Read-only: {studio.read_only.reason}. To start, answer and fork runs: <code>{studio.read_only.command}</code> <Copy text={studio.read_only.command} />
        </div>
      )}
    </>
  );
}

/** After a lost connection, data is read again. The list of runs is not: its feed continues where it
 *  stopped, so that no row moves. */
function useReconnected(): void {
  const connection = useConnection();
  const wasLost = useRef(false);
  useEffect(() => {
    if (connection === "open" && wasLost.current) void client.invalidateQueries({ predicate: ({ queryKey }) => queryKey[0] !== "run-list" });
    wasLost.current = connection === "lost" || (wasLost.current && connection !== "open");
  }, [connection]);
}

/** How many questions wait. They are read again when a run begins or ends to wait. */
function useInboxCount(): number {
  const studio = useStudio();
  const { data } = useQuery(inboxQuery());
  const refresh = useSoon(() => void client.invalidateQueries({ queryKey: ["inbox"] }), 500);
  useFeed("runs", "now", (message) => {
    const waited = new Set(data?.gates.map((gate) => gate.run_id));
    if ((message.items as RunRow[]).some((row) => row.status === "waiting" || waited.has(row.run_id))) refresh();
  });
  const team = studio.teams[0];
  useFeed(team === undefined ? null : `team/${encodeURIComponent(team.name)}`, "now", (message) => message.items.length > 0 && refresh());
  if (data === undefined) return 0;
  const more = Object.values(data.more).reduce((sum, count) => sum + count, 0);
  return data.gates.filter((gate) => !gate.answered).length + more;
}

/** The title and the icon of the tab say that something waits. */
function useTitle(waiting: number): void {
  useEffect(() => {
    document.title = waiting > 0 ? `(${waiting}) bae studio` : "bae studio";
    const icon = document.querySelector<HTMLLinkElement>("link[rel=icon]");
    if (icon !== null) icon.href = waiting > 0 ? "/icon-waiting.svg" : "/icon.svg";
  }, [waiting]);
}

function useKeys(navigate: (to: string) => void, showKeys: () => void): void {
  useEffect(() => {
    let isGoing = false;
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, [contenteditable], dialog")) return;
      if (isGoing && PLACES[event.key] !== undefined) navigate(PLACES[event.key]!);
      else if (event.key === "t") toggleTheme();
      else if (event.key === "?") showKeys();
      else if (event.key === "/") {
        const search = document.querySelector<HTMLInputElement>("[data-search]");
        if (search === null) return;
        event.preventDefault();
        search.focus();
      }
      isGoing = event.key === "g";
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, [navigate, showKeys]);
}
