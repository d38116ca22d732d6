// A question to a person: who asks, what is known, and a form for the answer. The inbox, chats and
// the page of a run show it.

import "./gates.css";

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useId, useState } from "react";
import { Link } from "wouter";

import { gatesQuery } from "../api/queries.ts";
import type { GateView, Value } from "../api/types.ts";
import { useMay, useServes } from "../studio.tsx";
import { Deadline, Problem, useNow } from "../ui/basics.tsx";
import { formatAge, formatTimeFully } from "../ui/format.ts";
import { ShownValue } from "../ui/value.tsx";
import { type Answered, gateKey, KINDS, refreshAfterAnswer } from "./answers.ts";
import { ApprovalForm } from "./approval-form.tsx";
import { BlockerForm, PlanForm } from "./team-forms.tsx";
import { ValueForm } from "./value-form.tsx";

export interface FormOfGate {
  gate: GateView;
  /** Why it cannot be answered; empty if it can. */
  blocked: string;
  onAnswered: (how: Answered, isMine: boolean) => void;
}

interface CardProps {
  gate: GateView;
  /** How it was answered, if it was. */
  answered?: Answered | null;
  onAnswered?: (how: Answered, isMine: boolean) => void;
  /** Without who asks, where the page around it says that. */
  isInside?: boolean;
}

/** A question, with everything that is needed to answer it. */
export function GateCard({ gate, answered = null, onAnswered, isInside = false }: CardProps) {
  const [late, setLate] = useState<Answered | null>(null);
  const heading = useId();
  const blocked = useBlocked(gate);
  const all = useAllValues(gate);
  const shown = all.gate;
  const how = answered ?? late;
  const take = (given: Answered, isMine: boolean) => {
    if (!isMine) setLate(given);
    refreshAfterAnswer(gate);
    onAnswered?.(given, isMine);
  };
  const form = { gate: shown, blocked, onAnswered: take };
  return (
    <article className={`gate-card${how ? " is-answered" : ""}`} aria-labelledby={heading}>
      <header className="gate-head">
        <p className="row wrap small">
          <span className="tag">{KINDS[gate.kind] ?? gate.kind}</span>
          <Asked at={gate.since} />
          {gate.deadline !== null && <Deadline at={gate.deadline} />}
        </p>
        <h2 id={heading} tabIndex={-1} className="gate-question">
          {gate.question}
        </h2>
        {!isInside && <WhoAsks gate={gate} />}
      </header>
      {gate.kind !== "plan" && gate.kind !== "approval" && <Context context={shown.context} onAll={all.fetch} />}
      {all.error !== null && <Problem error={all.error} />}
      <div aria-live="polite">{how && <HowAnswered how={how} isLate={late !== null && answered === null} />}</div>
      {how === null && (
        <div key={gateKey(gate)}>
          {gate.kind === "approval" ? (
            <ApprovalForm {...form} context={<Context context={shown.context} onAll={all.fetch} />} fetchAll={all.fetch} />
          ) : gate.kind === "blocker" || gate.kind === "question" ? (
            <BlockerForm {...form} />
          ) : gate.kind === "plan" ? (
            <PlanForm {...form} />
          ) : (
            <ValueForm {...form} />
          )}
        </div>
      )}
    </article>
  );
}

function HowAnswered({ how, isLate }: { how: Answered; isLate: boolean }) {
  return (
    <p className="note">
      {isLate && "You were not the first: "}
      {how.by === "" ? "Answered: " : <strong>{how.by} said </strong>}
      {how.said}
    </p>
  );
}

function Asked({ at }: { at: number }) {
  const age = formatAge(at, useNow(at));
  return (
    <time className="muted" dateTime={new Date(at * 1000).toISOString()} title={formatTimeFully(at)}>
      {age === "now" ? "asked now" : `asked ${age} ago`}
    </time>
  );
}

function WhoAsks({ gate }: { gate: GateView }) {
  if (gate.team !== null) {
    const team = `/team/${encodeURIComponent(gate.team)}`;
    return (
      <p className="small muted">
        team <Link href={team}>{gate.team}</Link>
        {gate.task !== null && (
          <>
            {" · task "}
            <Link href={`${team}/tasks/${encodeURIComponent(gate.task)}`}>{gate.task}</Link>
          </>
        )}
      </p>
    );
  }
  return (
    <p className="small muted gate-who">
      {gate.graph} · <Link href={`/runs/${encodeURIComponent(gate.run_id)}`}>{gate.run_id}</Link> · <code>{gate.place}</code>
      {gate.thread !== null && (
        <>
          {" · "}
          <Link href={`/chat/${encodeURIComponent(gate.graph)}/${encodeURIComponent(gate.thread)}`}>chat {gate.thread}</Link>
        </>
      )}
    </p>
  );
}

export function Context({ context, onAll }: { context: Record<string, Value>; onAll: () => void }): ReactNode {
  const entries = Object.entries(context);
  if (entries.length === 0) return null;
  return (
    <dl className="fields gate-context">
      {entries.map(([name, value]) => (
        <div key={name} style={{ display: "contents" }}>
          <dt>{name}</dt>
          <dd>
            <ShownValue value={value} onAll={onAll} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

/** The question with whole values, once they are asked for. */
function useAllValues(gate: GateView): { gate: GateView; fetch: () => void; error: unknown } {
  const [wanted, setWanted] = useState("");
  const isWanted = wanted === gateKey(gate) && gate.run_id !== "";
  const { data, error } = useQuery({ ...gatesQuery({ base: "", run: gate.run_id }, { cut: 0, limit: 500 }), enabled: isWanted });
  const found = isWanted ? data?.gates.find((each) => each.gate === gate.gate) : undefined;
  return { gate: found ?? gate, fetch: () => setWanted(gateKey(gate)), error: isWanted ? error : null };
}

/** Why a question cannot be answered here. */
function useBlocked(gate: GateView): string {
  const may = useMay("answer");
  const serves = useServes(gate.graph);
  if (!may.may) return may.why;
  return gate.team === null && !serves.serves ? serves.why : "";
}
