// Chats with a graph: its threads, and one of them.

import "./chat.css";

import { useState } from "react";
import { Link, Redirect, useLocation } from "wouter";

import type { StudioGraph } from "../../api/types.ts";
import { useStudio } from "../../studio.tsx";
import { Command, Empty } from "../../ui/basics.tsx";
import { useIsNarrow } from "../../ui/narrow.ts";
import { Conversation } from "./conversation.tsx";
import { ThreadList } from "./thread-list.tsx";

export default function ChatPage({ graph, thread }: { graph: string | null; thread: string | null }) {
  const studio = useStudio();
  const chats = studio.graphs.filter((each) => each.message !== null);
  const found = chats.find((each) => each.name === graph);
  if (found !== undefined) return <Chat key={found.name} graph={found} thread={thread} chats={chats} />;
  if (graph === null && chats.length === 1) return <Redirect to={addressOf(chats[0]!.name)} replace />;
  if (graph === null && chats.length > 1) return <ChooseGraph chats={chats} />;
  return (
    <Empty isPage mark="…" title={graph === null ? "No graph to chat with" : `There is no chat with ${graph}`}>
      <p>A chat needs a graph that is loaded, with a text field in its start node. The field takes the message.</p>
      <Command text={studio.serve_command} />
    </Empty>
  );
}

export function addressOf(graph: string, thread?: string): string {
  return `/chat/${encodeURIComponent(graph)}${thread === undefined ? "" : `/${encodeURIComponent(thread)}`}`;
}

function ChooseGraph({ chats }: { chats: StudioGraph[] }) {
  return (
    <div className="page">
      <header className="page-head">
        <h1>Chat</h1>
      </header>
      <div className="chat-graphs">
        {chats.map((each) => (
          <Link key={each.name} href={addressOf(each.name)} className="panel chat-graph">
            <span className="strong">{each.name}</span>
            <span className="muted">{each.about && each.about !== each.start ? each.about : `begins with ${each.start}`}</span>
          </Link>
        ))}
      </div>
    </div>
  );
}

const LETTERS = "bcdfghjkmnpqrstvwxz23456789";

/** A new id that can be read and typed, as support-1118-x7qd: that of `bae chat`. */
function newThread(graph: string): string {
  const name = graph.toLowerCase().replaceAll(/[^a-z0-9]+/g, "-").replaceAll(/^-|-$/g, "").slice(0, 20) || "chat";
  const now = new Date();
  const day = `${now.getMonth() + 1}`.padStart(2, "0") + `${now.getDate()}`.padStart(2, "0");
  const letters = [...crypto.getRandomValues(new Uint8Array(4))].map((each) => LETTERS[each % LETTERS.length]);
  return `${name}-${day}-${letters.join("")}`;
}

function Chat({ graph, thread, chats }: { graph: StudioGraph; thread: string | null; chats: StudioGraph[] }) {
  const [, navigate] = useLocation();
  const isNarrow = useIsNarrow();
  const [fresh, setFresh] = useState(() => newThread(graph.name));
  const [isNew, setNew] = useState(false);
  const begin = () => {
    setFresh(newThread(graph.name));
    setNew(true);
    navigate(addressOf(graph.name));
  };
  const shown = thread ?? fresh;
  const showsTalk = !isNarrow || thread !== null || isNew;
  return (
    <div className="chat">
      {(!isNarrow || !showsTalk) && <ThreadList graph={graph} chats={chats} thread={thread} onNew={begin} />}
      {showsTalk && (
        <Conversation
          key={shown}
          graph={graph}
          thread={shown}
          isNew={thread === null}
          onBegun={() => thread === null && navigate(addressOf(graph.name, shown))}
          onBack={
            isNarrow
              ? () => {
                  setNew(false);
                  navigate(addressOf(graph.name));
                }
              : null
          }
          onDeleted={begin}
        />
      )}
    </div>
  );
}
