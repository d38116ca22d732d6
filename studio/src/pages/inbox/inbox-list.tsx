// The rows of the inbox: one question each.

import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useRef } from "react";

import type { GateView } from "../../api/types.ts";
import { KINDS, sayValue } from "../../gates/answers.ts";
import { Age, useNow } from "../../ui/basics.tsx";
import { formatSeconds } from "../../ui/format.ts";
import type { Inbox, Item } from "./use-inbox.ts";

const ROW = 68;
const MANY = 200;

interface ListProps {
  inbox: Inbox;
  items: Item[];
  selected: string | null;
  onOpen: (item: Item) => void;
}

export function InboxList({ inbox, items, selected, onOpen }: ListProps) {
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    list.current?.querySelector('[aria-current="true"]')?.scrollIntoView({ block: "nearest" });
  }, [selected]);
  const row = (item: Item) => <Row key={item.key} item={item} isSelected={item.key === selected} onOpen={() => onOpen(item)} />;
  const hidden = Object.entries(inbox.more);
  return (
    <nav ref={list} className="panel inbox-list" aria-label="Questions">
      {items.length > MANY ? <VirtualRows items={items} selected={selected} parent={list} row={row} /> : items.map(row)}
      {items.length === 0 && <p className="muted inbox-none">No question of this kind.</p>}
      {hidden.map(([run, count]) => (
        <button key={run} type="button" className="button quiet inbox-more" onClick={() => inbox.showAllOf(run)}>
          {count} more of {run}
        </button>
      ))}
      {inbox.hasNext && (
        <button type="button" className="button quiet inbox-more" onClick={inbox.showNext}>
          Show later questions
        </button>
      )}
    </nav>
  );
}

function VirtualRows({ items, selected, parent, row }: { items: Item[]; selected: string | null; parent: { current: HTMLElement | null }; row: (item: Item) => ReactNode }) {
  const rows = useVirtualizer({ count: items.length, getScrollElement: () => parent.current, estimateSize: () => ROW, overscan: 8 });
  const at = items.findIndex((item) => item.key === selected);
  useEffect(() => {
    if (at >= 0) rows.scrollToIndex(at, { align: "auto" });
  }, [at, rows]);
  return (
    <div style={{ height: rows.getTotalSize(), position: "relative" }}>
      {rows.getVirtualItems().map((each) => (
        <div key={each.key} style={{ position: "absolute", top: each.start, height: ROW, insetInline: 0 }}>
          {row(items[each.index]!)}
        </div>
      ))}
    </div>
  );
}

function Row({ item, isSelected, onOpen }: { item: Item; isSelected: boolean; onOpen: () => void }) {
  const { gate, answered } = item;
  const who = gate.team === null ? gate.run_id : gate.task === null ? gate.team : `${gate.team}/${gate.task}`;
  return (
    <button type="button" className={`inbox-row${answered ? " is-answered" : ""}`} aria-current={isSelected} onClick={onOpen}>
      <span className="inbox-glyph" aria-hidden="true">
        {answered ? "✓" : "?"}
      </span>
      <span className="inbox-text">
        <span className="inbox-line">
          <span className="truncate strong">{gate.question}</span>
          <span className="small muted inbox-age">
            <Age at={gate.since} />
          </span>
        </span>
        <span className="inbox-line small muted">
          <span className="truncate">
            {KINDS[gate.kind] ?? gate.kind} · {who}
            {gate.kind !== "approval" && firstValue(gate)}
          </span>
          {answered ? (
            <span className="truncate inbox-said" aria-live="polite">
              {answered.by ? `${answered.by} said ${answered.said}` : answered.said}
            </span>
          ) : (
            gate.deadline !== null && <Left at={gate.deadline} />
          )}
        </span>
      </span>
    </button>
  );
}

/** The first value that is known, which tells questions with equal words apart. */
function firstValue(gate: GateView): string {
  const [value] = Object.values(gate.context);
  return value === undefined ? "" : ` · ${sayValue(value)}`;
}

function Left({ at }: { at: number }) {
  const left = at - useNow(at);
  return <span className="inbox-age">{left > 0 ? `${formatSeconds(left)} left` : "late"}</span>;
}
