// Everything that waits for a person, the oldest first, beside the question that is selected.

import "./inbox.css";

import { useCallback, useEffect, useRef } from "react";
import { useLocation } from "wouter";

import type { Answered } from "../../gates/answers.ts";
import { GateCard } from "../../gates/gate-card.tsx";
import { useSearch } from "../../search.ts";
import { useStudio } from "../../studio.tsx";
import { Command, Empty, Loading, Problem } from "../../ui/basics.tsx";
import { useIsNarrow } from "../../ui/narrow.ts";
import { InboxList } from "./inbox-list.tsx";
import { type Item, useInbox } from "./use-inbox.ts";

const FILTERS: [kind: string, label: string][] = [
  ["", "all"],
  ["gate", "gates"],
  ["approval", "approvals"],
  ["blocker", "blockers"],
  ["plan", "plans"],
];

export default function InboxPage() {
  const inbox = useInbox();
  const isNarrow = useIsNarrow();
  const [, navigate] = useLocation();
  const query = new URLSearchParams(useSearch());
  const kind = query.get("kind") ?? "";
  const asked = query.get("item");
  const items = inbox.items.filter((item) => kind === "" || (item.gate.kind === "question" ? "blocker" : item.gate.kind) === kind);
  const open = inbox.items.filter((item) => item.answered === null);
  const selected = items.find((item) => item.key === asked) ?? (isNarrow ? undefined : (items.find((item) => item.answered === null) ?? items[0]));
  const detail = useRef<HTMLDivElement>(null);
  const wantsFocus = useRef(false);

  const select = useCallback(
    (item: Item | undefined, how: { replace: boolean; focus?: boolean }) => {
      const next = new URLSearchParams(location.search);
      if (item === undefined) next.delete("item");
      else next.set("item", item.key);
      wantsFocus.current = how.focus ?? false;
      const text = next.toString();
      navigate(`/inbox${text ? `?${text}` : ""}`, { replace: how.replace });
    },
    [navigate],
  );
  const filter = (next: string) => navigate(next === "" ? "/inbox" : `/inbox?kind=${next}`, { replace: true });

  useEffect(() => {
    if (!wantsFocus.current) return;
    wantsFocus.current = false;
    detail.current?.querySelector<HTMLElement>("h2")?.focus({ preventScroll: isNarrow ? false : true });
  }, [selected?.key, isNarrow]);

  const answered = (item: Item, how: Answered, isMine: boolean) => {
    inbox.note(item.key, how);
    if (!isMine) return; // Its card says who was first.
    const at = items.indexOf(item);
    const next = [...items.slice(at + 1), ...items.slice(0, at)].find((each) => each.answered === null);
    if (isNarrow) select(undefined, { replace: true });
    else select(next ?? item, { replace: true, focus: true });
  };

  useInboxKeys(items, selected, select, detail);

  if (inbox.isPending) {
    return (
      <div className="page">
        <Loading />
      </div>
    );
  }
  if (inbox.items.length === 0) return inbox.error ? <ErrorPage error={inbox.error} /> : <NothingWaits />;
  const showsDetail = selected !== undefined;
  return (
    <div className="page inbox">
      {isNarrow && showsDetail && <h1 className="sr-only">Waiting for you</h1>}
      {(!isNarrow || !showsDetail) && (
        <header className="page-head">
          <h1>
            Waiting for you{" "}
            <span className="count">
              {open.length + Object.values(inbox.more).reduce((sum, count) => sum + count, 0)}
              {inbox.hasNext && "+"}
            </span>
          </h1>
          <div className="tabs" role="group" aria-label="Kind of question">
            {FILTERS.map(([name, label]) => (
              <button key={name} type="button" className="tab" aria-pressed={kind === name} onClick={() => filter(name)}>
                {label}
              </button>
            ))}
          </div>
          <p className="small muted inbox-keys">
            <kbd>j</kbd> <kbd>k</kbd> move · <kbd>Enter</kbd> answer · <kbd>a</kbd> yes · <kbd>r</kbd> no
          </p>
        </header>
      )}
      {inbox.error !== null && <Problem error={inbox.error} />}
      <div className="inbox-columns">
        {(!isNarrow || !showsDetail) && (
          <InboxList inbox={inbox} items={items} selected={selected?.key ?? null} onOpen={(item) => select(item, { replace: !isNarrow && selected?.key === item.key, focus: isNarrow })} />
        )}
        {showsDetail && (
          <section ref={detail} className="panel inbox-detail" aria-label="Question">
            {isNarrow && (
              <button type="button" className="button quiet inbox-back" onClick={() => select(undefined, { replace: true })}>
                ‹ Back
              </button>
            )}
            <GateCard key={selected.key} gate={selected.gate} answered={selected.answered} onAnswered={(how, isMine) => answered(selected, how, isMine)} />
          </section>
        )}
      </div>
    </div>
  );
}

function ErrorPage({ error }: { error: unknown }) {
  return (
    <div className="page">
      <Problem error={error} />
    </div>
  );
}

function NothingWaits() {
  const studio = useStudio();
  return (
    <Empty isPage mark="✓" title="Nothing waits for you">
      <p>Gates and tool approvals of runs appear here{studio.teams.length > 0 && ", with the questions and plans of teams"}. The title and icon of the tab show their number.</p>
      {studio.read_only !== null && <Command text={studio.read_only.command} />}
    </Empty>
  );
}

/** j and k move, Enter goes to the form, a and r answer. None of them works while something is typed. */
function useInboxKeys(items: Item[], selected: Item | undefined, select: (item: Item, how: { replace: boolean }) => void, detail: { current: HTMLElement | null }): void {
  const latest = useRef({ items, selected, select });
  latest.current = { items, selected, select };
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      if (target.closest("textarea, select, [contenteditable], dialog, input:not([type=radio], [type=checkbox])")) return;
      const { items, selected, select } = latest.current;
      const at = selected === undefined ? -1 : items.findIndex((item) => item.key === selected.key);
      const card = detail.current;
      switch (event.key) {
        case "j":
        case "k": {
          const next = items[at + (event.key === "j" ? 1 : -1)];
          if (next !== undefined) select(next, { replace: true });
          break;
        }
        case "Enter":
          if (target.closest("button, a, input, form")) return;
          card?.querySelector<HTMLElement>("form input, form textarea, form select, form button")?.focus();
          break;
        case "a":
        case "r": {
          const choice = card?.querySelector<HTMLInputElement>(`form [data-answer="${event.key === "a" ? "yes" : "no"}"]`);
          if (choice) {
            choice.click();
            choice.focus();
          } else card?.querySelector<HTMLElement>(`[data-hotkey="${event.key}"]`)?.click();
          break;
        }
        default:
          return;
      }
      event.preventDefault();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, [detail]);
}
