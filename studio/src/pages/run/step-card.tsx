// One node in the trace: its fields with their values, and where these came from.

import { memo, useLayoutEffect, useRef, useState } from "react";

import { type RunAt, stepQuery } from "../../api/queries.ts";
import { client } from "../../api/queries.ts";
import type { FieldView, RunDetails, StepView, Value } from "../../api/types.ts";
import { Problem } from "../../ui/basics.tsx";
import { formatCost, formatSeconds } from "../../ui/format.ts";
import { ShownValue } from "../../ui/value.tsx";
import { useGrowingPlaces, useGrowingText } from "./live.ts";
import type { ChangeView } from "./run-view.ts";
import { Source, usageText } from "./sources.tsx";

/** Seconds that are not worth a word. */
const SHORT = 0.001;

interface StepCardProps {
  at: RunAt;
  details: RunDetails;
  step: StepView;
  isOpen: boolean;
  onToggle: () => void;
  isSelected: boolean;
  field: string;
  change: ChangeView;
  onFork: ((step: number) => void) | null;
}

export const StepCard = memo(function StepCard(props: StepCardProps) {
  const { at, details, step, isOpen, onToggle, isSelected, field, change, onFork } = props;
  const facts = usageText(step.usage);
  if (step.usage.calls > 0) facts.push(formatCost(step.usage.cost));
  const isOver = details.status !== "running" && details.status !== "waiting" && details.status !== "queued";
  const waits = !isOver && step.fields.some((each) => each.state === "waiting");
  return (
    <article className={`step${isSelected ? " selected" : ""}`} aria-label={`Step ${step.step}, ${step.node}`}>
      <div className="step-head">
        <button type="button" className="step-name" aria-expanded={isOpen} onClick={onToggle}>
          <span aria-hidden="true" className="step-arrow">
            {isOpen ? "▾" : "▸"}
          </span>
          <span className="step-number">{step.step}</span>
          <span className="strong truncate">{step.node}</span>
          {!isOpen && <span className="muted truncate step-preview">{previewOf(step)}</span>}
        </button>
        {step.forked_from && <span className="tag changed">fork of {step.forked_from}</span>}
        {!step.whole && <span className="tag">{waits ? "waits for a person" : isOver ? "not whole" : "in progress"}</span>}
        <span className="small muted step-facts">{facts.join(" · ")}</span>
        {step.path === "" && step.whole && onFork !== null && (
          <button type="button" className="button quiet small step-action" onClick={() => onFork(step.step)} title="A new run that is the same up to here, with other values (f)">
            fork
          </button>
        )}
      </div>
      {isOpen && (
        <div className="step-fields">
          {step.chosen_among.length > 1 && <p className="small muted step-chosen">chosen by the LLM among {step.chosen_among.map((name) => name || "the end").join(", ")}</p>}
          {step.fields.map((each) => (
            <FieldRow
              key={each.name}
              at={at}
              step={step}
              isOver={isOver}
              field={each}
              isChanged={step.changed.includes(each.name)}
              isSelected={isSelected && field === each.name}
              onWhy={() => change({ step: step.step, path: step.path, field: each.name, tab: "trace" })}
            />
          ))}
          <GrowingFields step={step} />
          {step.fields.length === 0 && <p className="small muted step-chosen">It has no fields.</p>}
        </div>
      )}
    </article>
  );
});

/** The first values of a node, in a line. */
function previewOf(step: StepView): string {
  const parts = step.fields.filter((field) => field.kept === "value" && field.value !== null).slice(0, 3);
  return parts.map((field) => `${field.name}=${typeof field.value === "string" ? field.value.slice(0, 60) : JSON.stringify(field.value).slice(0, 40)}`).join("  ");
}

interface FieldRowProps {
  at: RunAt;
  step: StepView;
  /** The run is not in progress, and does not wait. */
  isOver: boolean;
  field: FieldView;
  isChanged: boolean;
  isSelected: boolean;
  onWhy: () => void;
}

function FieldRow({ at, step, isOver, field, isChanged, isSelected, onWhy }: FieldRowProps) {
  const growing = useGrowingText(field.place);
  return (
    <div className={`field${isSelected ? " selected" : ""}${isChanged ? " changed" : ""}`} data-place={field.place}>
      <span className="field-name">
        {field.name}
        {isChanged && <span className="tag changed">changed</span>}
      </span>
      <div className="field-value">
        <FieldValue at={at} step={step} isOver={isOver} field={field} growing={growing} />
      </div>
      <span className="field-source small">
        {growing && field.state !== "there" ? <Source source="lm" by="" /> : field.state !== "absent" && <Source source={field.source} by={field.by} />}
        {field.seconds !== null && field.seconds >= SHORT && <span className="field-took">{formatSeconds(field.seconds)}</span>}
      </span>
      <button type="button" className="button quiet small field-why" onClick={onWhy} aria-label={`Why ${step.node}.${field.name}`} title="Where this value came from (w)">
        why ›
      </button>
    </div>
  );
}

function FieldValue({ at, step, isOver, field, growing }: { at: RunAt; step: StepView; isOver: boolean; field: FieldView; growing: string }) {
  if (growing && field.state !== "there") return <Growing text={growing} />;
  if (field.state === "failed") return <span className="fault value text">✗ {field.error || "failed"}</span>;
  if (isOver && (field.state === "waiting" || field.state === "begun")) return <span className="muted">{field.state === "waiting" ? "not answered" : "not done"}</span>;
  if (field.state === "waiting") return <span className="status waiting">? waits for a person</span>;
  if (field.state === "begun") return <span className="muted">in progress…</span>;
  if (field.state === "absent") return <span className="muted">–</span>;
  return (
    <Clamped>
      <WholeValue at={at} step={step} field={field} />
    </Clamped>
  );
}

/** Text that an LLM writes at this moment. Only its end is shown, so that nothing below it moves. */
export function Growing({ text }: { text: string }) {
  const ref = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    ref.current!.scrollTop = ref.current!.scrollHeight;
  }, [text]);
  return (
    <div ref={ref} className="growing value text" aria-live="off">
      {text}
      <span className="caret" aria-hidden="true" />
    </div>
  );
}

/** Fields that have text in progress before the server lists them. */
function GrowingFields({ step }: { step: StepView }) {
  const places = useGrowingPlaces();
  const own = `${step.path ? `${step.path}/` : ""}${step.step}:${step.node}.`;
  const known = new Set(step.fields.map((field) => field.place));
  return places.filter((place) => place.startsWith(own) && !known.has(place)).map((place) => <GrowingField key={place} place={place} name={place.slice(own.length)} />);
}

function GrowingField({ place, name }: { place: string; name: string }) {
  const text = useGrowingText(place);
  return (
    <div className="field" data-place={place}>
      <span className="field-name">{name}</span>
      <div className="field-value">
        <Growing text={text} />
      </div>
      <span className="field-source small">
        <Source source="lm" by="" />
      </span>
    </div>
  );
}

/** A value; one that is cut is read whole when asked for. */
export function WholeValue({ at, step, field }: { at: RunAt; step: { path: string; step: number }; field: Value & { name: string } }) {
  const [whole, setWhole] = useState<Value | null>(null);
  const [error, setError] = useState<unknown>(null);
  const readAll = () => {
    client.fetchQuery(stepQuery(at, step.step, { path: step.path, cut: 0 })).then(
      (found) => setWhole(found.fields.find((each) => each.name === field.name) ?? null),
      setError,
    );
  };
  if (error !== null) return <Problem error={error} />;
  return <ShownValue value={whole ?? field} onAll={readAll} />;
}

/** What is higher than a few lines is cut, until all of it is wanted. */
export function Clamped({ children }: { children: React.ReactNode }) {
  const ref = useRef<HTMLDivElement>(null);
  const [isCut, setCut] = useState(false);
  const [showsAll, setShowsAll] = useState(false);
  useLayoutEffect(() => {
    const element = ref.current!;
    setCut(element.scrollHeight > element.clientHeight + 4);
  }, [children]);
  return (
    <>
      <div ref={ref} className={showsAll ? "" : "clamped"}>
        {children}
      </div>
      {(isCut || showsAll) && (
        <button type="button" className="link small" onClick={() => setShowsAll(!showsAll)}>
          {showsAll ? "show less" : "show all"}
        </button>
      )}
    </>
  );
}
