// A new run that is the same up to a step, with other values.

import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useLocation } from "wouter";

import { api, ApiProblem, pathOf } from "../../api/client.ts";
import { client, type RunAt } from "../../api/queries.ts";
import type { EditableField, ForkFormView, RunDetails } from "../../api/types.ts";
import { SchemaForm } from "../../forms/schema-form.tsx";
import { type Fault, faultsAt, faultsBefore, faultsIn, type Schema } from "../../forms/schema.ts";
import { Loading, Problem } from "../../ui/basics.tsx";
import { Dialog } from "../../ui/overlays.tsx";
import { addressOf } from "./run-view.ts";

interface ForkProps {
  at: RunAt;
  details: RunDetails;
  step: number;
  /** The field that is meant, if one is. */
  field: string;
  onStep: (step: number) => void;
  onClose: () => void;
}

export function ForkDialog({ at, details, step, field, onStep, onClose }: ForkProps) {
  const form = useQuery({
    queryKey: ["run", at.base, at.run, "fork", step],
    queryFn: ({ signal }) => api<ForkFormView>(at.base + pathOf`/runs/${at.run}/steps/${step}/fork`, { query: { cut: 0 }, signal }),
    retry: false,
    staleTime: Infinity,
  });
  return (
    <Dialog title={`Fork ${details.run_id}`} onClose={onClose}>
      <div className="stack">
        <p className="row wrap">
          <label htmlFor="fork-step">From step</label>
          <input
            id="fork-step"
            className="input fork-step"
            inputMode="numeric"
            defaultValue={step}
            key={step}
            onBlur={(event) => changeStep(event.target.value, step, onStep)}
            onKeyDown={(event) => event.key === "Enter" && changeStep(event.currentTarget.value, step, onStep)}
          />
          {form.data !== undefined && <span className="strong">{form.data.node}</span>}
        </p>
        <p className="small muted">The new run has the same nodes up to this step. Later nodes are made again, and people are asked again. This run does not change.</p>
        {form.error !== null && <Problem error={form.error} />}
        {form.error === null && form.data === undefined && <Loading />}
        {form.data !== undefined && <ForkForm key={step} at={at} form={form.data} meant={field} onClose={onClose} />}
      </div>
    </Dialog>
  );
}

function changeStep(text: string, step: number, onStep: (step: number) => void): void {
  if (/^\d{1,9}$/.test(text) && Number(text) !== step) onStep(Number(text));
}

/** Sources of values that a person is likely to change; others are made by functions and tools. */
const LIKELY = new Set(["caller", "lm", "body", "default", "fork", "gate"]);

function ForkForm({ at, form, meant, onClose }: { at: RunAt; form: ForkFormView; meant: string; onClose: () => void }) {
  const [, navigate] = useLocation();
  const [changed, setChanged] = useState<Record<string, unknown>>({});
  const [runId, setRunId] = useState("");
  const [goesOn, setGoesOn] = useState(true);
  const [error, setError] = useState<unknown>(null);
  const [isSending, setSending] = useState(false);
  const element = useRef<HTMLFormElement>(null);
  useEffect(() => {
    const inputs = [...element.current!.querySelectorAll<HTMLElement>("[data-field]")];
    const own = inputs.find((each) => each.dataset.field === meant) ?? inputs[0];
    own?.querySelector<HTMLElement>("input, textarea, select")?.focus();
  }, [meant]);
  /** What keeps the fork from being sent. A value that was taken away is in no request. */
  const before = Object.entries(changed).flatMap(([name, value]): Fault[] => (value === undefined ? [{ loc: [name], msg: "give a value, or undo the change" }] : faultsBefore(value, [name])));
  const isLikely = (field: EditableField) => LIKELY.has(field.source) || field.needed || field.name === meant;
  const likely = form.fields.filter(isLikely);
  const others = form.fields.filter((field) => !isLikely(field));
  const shown = (field: EditableField) => (
    <ForkField
      key={field.name}
      field={field}
      isChanged={field.name in changed}
      value={changed[field.name]}
      faults={[...faultsAt(before, field.name), ...(error instanceof ApiProblem ? faultsIn(error.faults, "body", "changed", field.name) : [])]}
      onChange={(value) => setChanged({ ...changed, [field.name]: value })}
      onUndo={() => setChanged(Object.fromEntries(Object.entries(changed).filter(([name]) => name !== field.name)))}
    />
  );
  const fork = async () => {
    setSending(true);
    setError(null);
    try {
      const body = { at: form.at, changed, go_on: goesOn, ...(runId.trim() ? { run_id: runId.trim() } : {}) };
      const made = await api<RunDetails>(at.base + pathOf`/runs/${at.run}/forks`, { method: "POST", body });
      void client.invalidateQueries({ queryKey: ["run", at.base, at.run] });
      onClose();
      navigate(`${addressOf(at, made.run_id)}?step=${form.at}`);
    } catch (problem) {
      setError(problem);
      setSending(false);
    }
  };
  return (
    <form
      ref={element}
      className="stack"
      onSubmit={(event) => {
        event.preventDefault();
        if (before.length === 0) void fork();
      }}
    >
      {form.fields.length === 0 && <p className="muted">{form.node} has no fields to change.</p>}
      {likely.map(shown)}
      {others.length > 0 && (
        <details open={likely.length === 0}>
          <summary>
            Made by functions and tools: <span className="muted">{others.map((field) => field.name).join(", ")}</span>
          </summary>
          <div className="stack">{others.map(shown)}</div>
        </details>
      )}
      <div className="row wrap">
        <label htmlFor="fork-id">Run id</label>
        <input id="fork-id" className="input grow" placeholder="a new one" value={runId} onChange={(event) => setRunId(event.target.value)} />
      </div>
      <label className="row">
        <input type="checkbox" checked={goesOn} onChange={(event) => setGoesOn(event.target.checked)} />
        Continue at once
      </label>
      {error !== null && <Problem error={error} />}
      <div className="row fork-foot">
        <button type="button" className="button" onClick={onClose}>
          Close
        </button>
        <button type="submit" className="button primary" disabled={isSending || before.length > 0} title={before[0]?.msg}>
          {isSending ? "Forking…" : Object.keys(changed).length > 0 ? `Fork with ${Object.keys(changed).join(", ")}` : "Fork"}
        </button>
      </div>
    </form>
  );
}

interface ForkFieldProps {
  field: EditableField;
  isChanged: boolean;
  value: unknown;
  faults: Fault[];
  onChange: (value: unknown) => void;
  onUndo: () => void;
}

function ForkField({ field, isChanged, value, faults, onChange, onUndo }: ForkFieldProps) {
  const schema: Schema = (field.field_schema ?? {}) as Schema;
  const now = isChanged ? value : field.kept === "value" ? field.value : undefined;
  return (
    <div className={`fork-field${isChanged ? " changed" : ""}`} data-field={field.name}>
      <SchemaForm label={field.name} schema={schema} value={now} onChange={onChange} faults={faults} />
      <p className="row">
        {field.needed && !isChanged && <span className="fault small">needed: no value of it is stored</span>}
        {isChanged && (
          <>
            <span className="tag changed">changed</span>
            <button type="button" className="link small" onClick={onUndo}>
              undo
            </button>
          </>
        )}
      </p>
    </div>
  );
}
