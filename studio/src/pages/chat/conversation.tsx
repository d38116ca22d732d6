// One conversation: its turns, what the models write now, and the box for the next message.

import { useMutation, useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useRef, useState } from "react";

import { api, ApiProblem, pathOf } from "../../api/client.ts";
import { client, graphQuery } from "../../api/queries.ts";
import type { StudioGraph, TurnView } from "../../api/types.ts";
import type { Json, Schema } from "../../forms/schema.ts";
import { faultsIn, initialOf, isObject } from "../../forms/schema.ts";
import { SchemaForm } from "../../forms/schema-form.tsx";
import { useDraft } from "../../forms/drafts.ts";
import { useMay } from "../../studio.tsx";
import { Loading, Problem } from "../../ui/basics.tsx";
import { ConfirmDialog, Menu } from "../../ui/overlays.tsx";
import { Composer, type Message } from "./composer.tsx";
import { Turn } from "./turn.tsx";
import { OPEN, placeFiles } from "./turns.ts";
import { useFollow } from "./use-follow.ts";
import { useLiveText } from "./use-live-text.ts";
import { useThread } from "./use-thread.ts";

interface ConversationProps {
  graph: StudioGraph;
  thread: string;
  isNew: boolean;
  onBegun: () => void;
  onBack: (() => void) | null;
  onDeleted: () => void;
}

export function Conversation({ graph, thread, isNew, onBegun, onBack, onDeleted }: ConversationProps) {
  const [isStored, setStored] = useState(!isNew);
  const talk = useThread(thread, isStored);
  const { data: about } = useQuery(graphQuery(graph.name));
  const schema = (about?.start_schema ?? {}) as Schema;
  const elsewhere = [graph.message ?? "", ...graph.files];
  const others = namesOf(schema, elsewhere);
  const [given, setGiven] = useDraft<Json | null>(`fields ${graph.name}`, () => null);
  const fields = given ?? (initialOf(schema, schema) as Json | undefined) ?? {};
  const [showsFields, setShowsFields] = useState(false);
  const [sent, setSent] = useState<TurnView | null>(null);
  const [edited, setEdited] = useState<{ turn: TurnView; text: string } | null>(null);
  const attempt = useRef<{ key: string; run: string } | null>(null);
  const turns = sent === null || talk.turns.some((turn) => turn.run_id === sent.run_id) ? talk.turns : [...talk.turns.filter((turn) => turn.run_id !== sent.replaces), sent];
  const last = turns.at(-1);
  const open = last !== undefined && OPEN.has(last.status) ? last : null;
  const texts = useLiveText(open?.run_id ?? null, `${open?.run_id} ${open?.status}`, () => {
    talk.refresh();
    if (open !== null) void client.invalidateQueries({ queryKey: ["turn", thread, open.run_id] });
  });
  const follow = useFollow();

  const send = useMutation({
    mutationFn: async ({ message, instead }: { message: Message; instead: TurnView | null }) => {
      const key = JSON.stringify([message, instead?.run_id, given]);
      // The same message again is the same run: a lost answer makes no second one.
      if (attempt.current?.key !== key) attempt.current = { key, run: crypto.randomUUID() };
      const run = attempt.current.run;
      setSent(newTurn(run, message.text, instead));
      follow.jump();
      onBegun();
      const known = (await client.ensureQueryData(graphQuery(graph.name))).start_schema as Schema;
      const { fields: files } = placeFiles(message.files, graph.files, known);
      const own: Json = { [graph.message ?? ""]: message.text, ...files };
      if (instead === null || !(await replace(thread, instead, run, message.isAsItWas ? {} : own))) {
        const kept = given ?? (initialOf(known, known) as Json);
        const names = [...namesOf(known, elsewhere), ...Object.keys(own)];
        const start = Object.fromEntries(Object.entries({ ...kept, ...own }).filter(([name]) => names.includes(name)));
        await api(pathOf`/graphs/${graph.name}/runs`, { method: "POST", body: { run_id: run, thread, start, busy: "refuse", metadata: {} } });
      }
    },
    onSuccess: async () => {
      attempt.current = null;
      setEdited(null);
      setStored(true);
      await client.invalidateQueries({ queryKey: ["thread", thread] });
      void client.invalidateQueries({ queryKey: ["threads"] });
    },
    onError: () => setSent(null),
  });
  const again = useMutation({
    mutationFn: async ({ turn, path }: { turn: TurnView; path: "cancel" | "resume" }) => api(pathOf`/runs/${turn.run_id}/${path}`, { method: "POST" }),
    onSettled: () => client.invalidateQueries({ queryKey: ["thread", thread] }),
  });
  const stop = useCallback(() => {
    if (open !== null && open.status !== "interrupted") again.mutate({ turn: open, path: "cancel" });
  }, [open?.run_id, open?.status]);
  useEscape(open === null ? null : stop);

  const faults = send.error instanceof ApiProblem ? faultsIn(send.error.faults, "body", "start") : [];
  const aboutOthers = faults.filter((each) => others.includes(String(each.loc[0])));
  useEffect(() => {
    if (aboutOthers.length > 0) setShowsFields(true);
  }, [send.error]);

  return (
    <section className="chat-talk" aria-label={`Conversation ${thread}`}>
      <Head graph={graph} thread={thread} isNew={isNew} onBack={onBack} onDeleted={onDeleted} last={last} fields={others.length > 0 ? () => setShowsFields(!showsFields) : null} showsFields={showsFields} />
      {showsFields && (
        <div className="chat-fields">
          <p className="small muted">Sent with each message from here:</p>
          <SchemaForm schema={schema} value={fields} onChange={(next) => setGiven(isObject(next) ? next : {})} without={elsewhere} faults={aboutOthers} />
        </div>
      )}
      <div className="chat-scroll" ref={follow.scroller} tabIndex={0} role="log" aria-label="Turns" aria-busy={open !== null}>
        <div className="chat-turns" ref={follow.content}>
          {talk.hasEarlier && (
            <button
              type="button"
              className="button quiet chat-earlier"
              disabled={talk.isLoadingEarlier}
              onClick={() => {
                follow.hold();
                talk.loadEarlier();
              }}
            >
              {talk.isLoadingEarlier ? "Loading…" : "Show earlier turns"}
            </button>
          )}
          {talk.error !== null && talk.error !== undefined && <Problem error={talk.error} />}
          {talk.isPending && turns.length === 0 && <Loading />}
          {turns.length === 0 && !talk.isPending && <Begin graph={graph} />}
          {turns.map((turn) => (
            <Turn
              key={turn.run_id}
              graph={graph}
              thread={thread}
              turn={turn}
              isSent={turn === sent}
              isLast={turn === last}
              texts={turn === open ? texts : null}
              onRetry={() => send.mutate({ message: { text: turn.user, files: [], isAsItWas: true }, instead: turn })}
              onEdit={(text) => setEdited({ turn, text })}
              onResume={() => again.mutate({ turn, path: "resume" })}
              onDrop={() => again.mutate({ turn, path: "cancel" })}
              isBusy={send.isPending || again.isPending}
            />
          ))}
        </div>
      </div>
      {follow.hasNew && (
        <button type="button" className="button chat-new" onClick={follow.jump}>
          ↓ new
        </button>
      )}
      <Composer
        key={edited?.turn.run_id ?? ""}
        graph={graph}
        thread={thread}
        edited={edited}
        onCancelEdit={() => setEdited(null)}
        open={open}
        isSending={send.isPending}
        error={again.error ?? (aboutOthers.length > 0 ? null : send.error)}
        onSend={(message) => send.mutateAsync({ message, instead: edited?.turn ?? null })}
        onStop={stop}
      />
    </section>
  );
}

/** The fields of a start node, but for those that are given by other means. */
function namesOf(schema: Schema, without: string[]): string[] {
  return Object.keys(schema.properties ?? {}).filter((name) => !without.includes(name));
}

/** A turn that is on its way to the server. */
function newTurn(run: string, text: string, instead: TurnView | null): TurnView {
  const now = Date.now() / 1000;
  return { run_id: run, user: text, reply: "", status: "queued", started: now, updated: now, is_shown: false, replaces: instead?.run_id ?? null, waiting: [], error: "", metadata: {} };
}

/** Begin a turn in the place of another. Returns false where that has stopped before its first node
 *  was stored: then there is nothing to replace. */
async function replace(thread: string, turn: TurnView, run: string, changed: Json): Promise<boolean> {
  try {
    if (OPEN.has(turn.status)) await api(pathOf`/runs/${turn.run_id}/cancel`, { method: "POST" });
    await api(pathOf`/runs/${turn.run_id}/forks`, { method: "POST", body: { at: 0, changed, thread, run_id: run, go_on: true } });
    return true;
  } catch (error) {
    if (error instanceof ApiProblem && ["bae-fork-step", "bae-run-unknown"].includes(error.code)) return false;
    throw error;
  }
}

function useEscape(stop: (() => void) | null): void {
  const latest = useRef(stop);
  latest.current = stop;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.defaultPrevented || event.isComposing || latest.current === null) return;
      if ((event.target as HTMLElement).closest("dialog, [popover], .gate-card")) return;
      latest.current();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, []);
}

function Begin({ graph }: { graph: StudioGraph }) {
  return (
    <div className="chat-begin">
      <h2>Chat with {graph.name}</h2>
      <p className="muted">{graph.about && graph.about !== graph.start ? graph.about : "Each message is a run of the graph. The journal keeps the conversation."}</p>
    </div>
  );
}

interface HeadProps {
  graph: StudioGraph;
  thread: string;
  isNew: boolean;
  onBack: (() => void) | null;
  onDeleted: () => void;
  last: TurnView | undefined;
  fields: (() => void) | null;
  showsFields: boolean;
}

function Head({ graph, thread, isNew, onBack, onDeleted, last, fields, showsFields }: HeadProps) {
  const admin = useMay("admin");
  const [asks, setAsks] = useState(false);
  const remove = useMutation({
    mutationFn: () => api(pathOf`/threads/${thread}`, { method: "DELETE" }),
    onSuccess: () => {
      void client.invalidateQueries({ queryKey: ["threads"] });
      onDeleted();
    },
  });
  return (
    <header className="chat-head">
      {onBack && (
        <button type="button" className="button quiet" onClick={onBack}>
          ‹ Back
        </button>
      )}
      <h1 className="grow truncate chat-title">
        {graph.name} <span className="muted chat-thread">{isNew ? "new conversation" : thread}</span>
      </h1>
      {fields && (
        <button type="button" className="button quiet" aria-expanded={showsFields} onClick={fields}>
          Fields
        </button>
      )}
      {!isNew && (
        <Menu
          label="⋯"
          className="button quiet"
          actions={[
            { label: "Copy the link", onSelect: () => void navigator.clipboard.writeText(location.href) },
            { label: "Copy the command", hint: `bae chat --thread ${thread}`, onSelect: () => void navigator.clipboard.writeText(`bae chat --thread ${thread}`) },
            { label: "Delete…", disabled: !admin.may || last === undefined, hint: admin.why, onSelect: () => setAsks(true) },
          ]}
        />
      )}
      {asks && (
        <ConfirmDialog title={`Delete ${thread}?`} action="Delete" cancel="Keep it" isDanger isPending={remove.isPending} onConfirm={() => remove.mutate()} onClose={() => setAsks(false)}>
          <p>All runs of this conversation are deleted. They cannot be restored.</p>
          {remove.error && <Problem error={remove.error} />}
        </ConfirmDialog>
      )}
    </header>
  );
}
