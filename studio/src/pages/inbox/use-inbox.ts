// All questions that wait, and those that were answered since the page was opened: a row stays where
// it is, whatever happens to others.

import { useQueries, useQueryClient } from "@tanstack/react-query";
import { useEffect, useReducer, useRef, useState } from "react";

import { api, ApiProblem, pathOf } from "../../api/client.ts";
import { gatesQuery, inboxQuery } from "../../api/queries.ts";
import type { BlockerPage, GateView } from "../../api/types.ts";
import { type Answered, gateKey, sayValue } from "../../gates/answers.ts";

export interface Item {
  key: string;
  gate: GateView;
  answered: Answered | null;
}

export interface Inbox {
  items: Item[];
  isPending: boolean;
  error: unknown;
  /** How many questions of runs are not listed yet. */
  more: Record<string, number>;
  showAllOf: (run: string) => void;
  /** There are later questions, and they can be listed. */
  hasNext: boolean;
  showNext: () => void;
  note: (key: string, how: Answered) => void;
}

const LIMIT = 100;

export function useInbox(): Inbox {
  const client = useQueryClient();
  const [afters, setAfters] = useState<number[]>([]);
  const [whole, setWhole] = useState<string[]>([]);
  const known = useRef(new Map<string, Item>());
  const [, redraw] = useReducer((count: number) => count + 1, 0);
  const pages = useQueries({ queries: [inboxQuery(), ...afters.map((after) => inboxQuery({ limit: LIMIT, after }))] });
  const extra = useQueries({ queries: whole.map((run) => ({ ...gatesQuery({ base: "", run }, { limit: 500 }), queryKey: ["inbox", "run", run] })) });
  const found = [...pages.flatMap((page) => page.data?.gates ?? []), ...extra.flatMap((page) => page.data?.gates ?? [])];
  const open = new Map(found.filter((gate) => !gate.answered).map((gate) => [gateKey(gate), gate]));
  const isWhole = [...pages, ...extra].every((page) => page.isSuccess && !page.isPlaceholderData);
  for (const [key, gate] of open) {
    const before = known.current.get(key);
    // A plan of which a part was approved is a question again.
    const isSame = before !== undefined && gate.since === before.gate.since && gate.question === before.gate.question;
    known.current.set(key, { key, gate, answered: isSame ? before.answered : null });
  }
  const gone = isWhole ? [...known.current.values()].filter((item) => item.answered === null && !open.has(item.key)) : [];
  const goneKeys = gone.map((item) => item.key).join("\n");
  useEffect(() => {
    let isOver = false;
    for (const item of gone) {
      void findAnswer(item.gate).then((how) => {
        if (isOver || how === null) return;
        known.current.set(item.key, { ...item, answered: how });
        redraw();
      });
    }
    return () => {
      isOver = true;
    };
  }, [goneKeys]);
  const last = pages.at(-1)?.data;
  const more = Object.fromEntries(pages.flatMap((page) => Object.entries(page.data?.more ?? {})).filter(([run]) => !whole.includes(run)));
  return {
    items: [...known.current.values()],
    isPending: pages[0]!.isPending,
    error: pages.find((page) => page.error)?.error ?? null,
    more,
    showAllOf: (run) => setWhole((before) => [...before, run]),
    hasNext: typeof last?.next === "number",
    showNext: () => typeof last?.next === "number" && setAfters((before) => [...before, last.next!]),
    note: (key, how) => {
      const item = known.current.get(key);
      if (item === undefined) return;
      known.current.set(key, { ...item, answered: how });
      redraw();
      void client.invalidateQueries({ queryKey: ["inbox"] });
    },
  };
}

/** Who has answered a question that waits no more; null if it waits still. */
async function findAnswer(gate: GateView): Promise<Answered | null> {
  try {
    if (gate.kind === "plan") return { by: "", said: "approved" };
    if (gate.kind === "blocker") {
      const { blockers } = await api<BlockerPage>(pathOf`/teams/${gate.team ?? ""}/blockers`);
      const found = blockers.find((each) => gate.gate.endsWith(`/${each.id}`));
      if (found === undefined) return { by: "", said: "the question was withdrawn" };
      return found.answer === null ? null : { by: found.answered_by ?? "", said: found.answer };
    }
    if (gate.run_id === "") return { by: "", said: "answered" };
    const { gates } = await api<{ gates: GateView[] }>(pathOf`/runs/${gate.run_id}/gates`, { query: { past: true, limit: 500 } });
    const found = gates.find((each) => each.gate === gate.gate);
    if (found?.answered && found.answer) return { by: found.answered_by ?? "", said: sayValue(found.answer) };
    const { status } = await api<{ status: string }>(pathOf`/runs/${gate.run_id}`);
    return status === "waiting" ? null : { by: "", said: `nothing; the run is ${status}` };
  } catch (error) {
    return error instanceof ApiProblem && error.status === 404 ? { by: "", said: "nothing; it is deleted" } : null;
  }
}
