// A run is started from a form that is made from the start node of a graph.

import { useMutation, useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { Link, useLocation } from "wouter";

import { api, ApiProblem, pathOf } from "../../api/client.ts";
import { client, graphQuery, threadsQuery } from "../../api/queries.ts";
import type { GraphView, RunDetails } from "../../api/types.ts";
import { type Fault, faultsBefore, faultsIn, initialOf, type Schema } from "../../forms/schema.ts";
import { Faults, SchemaForm, showFirstFault } from "../../forms/schema-form.tsx";
import { useMay, useServes, useStudio } from "../../studio.tsx";
import { Command, Loading, Problem } from "../../ui/basics.tsx";
import { Dialog } from "../../ui/overlays.tsx";

interface Draft {
  start: unknown;
  runId: string;
  thread: string;
  metadata: [key: string, value: string][];
}

/** What was typed, by graph: it stays while the drawer is closed. It is in memory alone, because it
 *  may have secrets. */
const drafts = new Map<string, Draft>();

interface StartRunProps {
  /** The name of the graph; empty for the first one. */
  graph: string;
  /** The thread of a new draft. */
  thread?: string;
  /** Another graph is chosen; without it the graph is fixed. */
  onGraph?: (graph: string) => void;
  onClose: () => void;
}

export function StartRun({ graph, thread = "", onGraph, onClose }: StartRunProps) {
  const studio = useStudio();
  const name = graph || studio.graphs[0]?.name || "";
  const served = useServes(name);
  const { data, error } = useQuery({ ...graphQuery(name), enabled: served.serves });
  if (!served.serves || data === undefined) {
    return (
      <Dialog kind="drawer" title={`Start a run${name && ` of ${name}`}`} onClose={onClose}>
        {!served.serves ? (
          <div className="stack">
            <p>{name ? `The code of ${name} is not loaded here.` : "No graph is loaded here."} Load it:</p>
            <Command text={studio.serve_command} />
          </div>
        ) : error ? (
          <Problem error={error} />
        ) : (
          <Loading />
        )}
      </Dialog>
    );
  }
  return <StartForm key={name} graph={data} thread={thread} onGraph={onGraph} onClose={onClose} />;
}

interface StartFormProps {
  graph: GraphView;
  thread: string;
  onGraph: ((graph: string) => void) | undefined;
  onClose: () => void;
}

function StartForm({ graph, thread, onGraph, onClose }: StartFormProps) {
  const studio = useStudio();
  const { may, why } = useMay("run");
  const [, navigate] = useLocation();
  const schema = graph.start_schema as Schema;
  const [draft, setDraft] = useState<Draft>(() => drafts.get(graph.name) ?? { start: initialOf(schema, schema), runId: "", thread, metadata: [] });
  const [resets, setResets] = useState(0);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => form.current?.querySelector<HTMLElement>("section input, section textarea, section select")?.focus(), []);
  const change = (part: Partial<Draft>) =>
    setDraft((old) => {
      const next = { ...old, ...part };
      drafts.set(graph.name, next);
      return next;
    });
  const start = useMutation({
    mutationFn: () =>
      api<RunDetails>(pathOf`/graphs/${graph.name}/runs`, {
        method: "POST",
        body: {
          start: draft.start ?? {},
          run_id: draft.runId.trim() || null,
          thread: draft.thread.trim() || null,
          metadata: Object.fromEntries(draft.metadata.filter(([key]) => key.trim() !== "").map(([key, value]) => [key.trim(), value])),
        },
      }),
    onSuccess: (run) => {
      drafts.delete(graph.name);
      void client.invalidateQueries({ queryKey: ["threads"] });
      navigate(`/runs/${encodeURIComponent(run.run_id)}`);
    },
  });
  /** How often a person has tried to send a form that cannot be sent. */
  const [tries, setTries] = useState(0);
  const before = faultsBefore(draft.start);
  const shownBefore = tries > 0 ? before : [];
  const faults = start.error instanceof ApiProblem ? start.error.faults : [];
  const at = (part: string) => (part === "start" && before.length > 0 ? shownBefore : faultsIn(faults, "body", part));
  useEffect(() => {
    if (tries > 0 || start.error !== null) showFirstFault(form.current);
  }, [tries, start.error]);
  const send = () => {
    if (!may || start.isPending) return;
    if (before.length > 0) setTries((count) => count + 1);
    else start.mutate();
  };
  const placed = new Set(["start", "run_id", "thread", "metadata"]);
  const isPlaced = faults.length > 0 && faults.every((fault) => fault.loc[0] === "body" && placed.has(String(fault.loc[1])));
  const clear = () => {
    drafts.delete(graph.name);
    setDraft({ start: initialOf(schema, schema), runId: "", thread, metadata: [] });
    setResets((count) => count + 1);
    setTries(0);
    start.reset();
  };
  const isWrong = before.length > 0 ? shownBefore.length > 0 : isPlaced;
  return (
    <Dialog
      kind="drawer"
      title={onGraph ? "Start a run" : `Start a run of ${graph.name}`}
      onClose={onClose}
      foot={
        <>
          {isWrong && (
            <p className="small fault grow" role="alert">
              Not started: see the fields that are marked red.
            </p>
          )}
          <button type="button" className="button quiet" onClick={clear}>
            Clear the form
          </button>
          <button type="submit" form="start-run" className="button primary" disabled={!may || start.isPending} title={why}>
            {start.isPending ? "Starting…" : "Start the run"}
          </button>
        </>
      }
    >
      <form
        id="start-run"
        ref={form}
        className="stack"
        noValidate
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
        }}
      >
        {onGraph && studio.graphs.length > 1 && (
          <label className="form-field">
            <span className="form-label">Graph</span>
            <select className="select" value={graph.name} onChange={(event) => onGraph(event.target.value)}>
              {studio.graphs.map((each) => (
                <option key={each.name}>{each.name}</option>
              ))}
            </select>
          </label>
        )}
        <p className="muted start-about">
          {graph.about && graph.about !== graph.start ? graph.about : `A run of ${graph.name} starts with these fields.`}
          {studio.lm && (
            <>
              {" "}
              <span className="tag">LLM {studio.lm}</span>
            </>
          )}
        </p>
        <section className="stack" aria-label={graph.start}>
          <h3>{graph.start}</h3>
          <SchemaForm key={resets} schema={schema} value={draft.start} onChange={(value) => change({ start: value })} faults={at("start")} />
        </section>
        <MoreFields draft={draft} change={change} at={at} />
        {start.error && !isPlaced && (
          <Problem error={start.error}>
            {start.error instanceof ApiProblem && start.error.code === "bae-run-exists" && (
              <p>
                <Link href={`/runs/${encodeURIComponent(draft.runId.trim())}`}>Open the run that has this id</Link>
              </p>
            )}
          </Problem>
        )}
      </form>
    </Dialog>
  );
}

interface MoreFieldsProps {
  draft: Draft;
  change: (part: Partial<Draft>) => void;
  at: (part: string) => Fault[];
}

/** The id, the thread and the metadata: all of them optional. */
function MoreFields({ draft, change, at }: MoreFieldsProps) {
  const threads = useQuery(threadsQuery({ limit: 100 })).data?.threads ?? [];
  const isOpen = draft.runId !== "" || draft.thread !== "" || draft.metadata.length > 0 || ["run_id", "thread", "metadata"].some((part) => at(part).length > 0);
  return (
    <details className="form-group more-fields" open={isOpen || undefined}>
      <summary>Run id, thread and metadata</summary>
      <TextField label="Run id" about="With your own id, sending the form twice starts one run. Default: a new id." value={draft.runId} onChange={(runId) => change({ runId })} faults={at("run_id")} />
      <TextField label="Thread" about="The conversation that this run continues." value={draft.thread} onChange={(thread) => change({ thread })} faults={at("thread")} list="start-threads" />
      <datalist id="start-threads">
        {threads.map((each) => (
          <option key={each.thread} value={each.thread} />
        ))}
      </datalist>
      <fieldset className="form-field metadata">
        <legend className="form-label">Metadata</legend>
        <p className="small muted">The search finds runs by metadata.</p>
        {draft.metadata.map(([key, value], index) => (
          <div key={index} className="row">
            <input className="input" aria-label={`Key ${index + 1}`} placeholder="key" value={key} onChange={(event) => change({ metadata: draft.metadata.with(index, [event.target.value, value]) })} />
            <input className="input" aria-label={`Value ${index + 1}`} placeholder="value" value={value} onChange={(event) => change({ metadata: draft.metadata.with(index, [key, event.target.value]) })} />
            <button type="button" className="button quiet small" aria-label={`Remove entry ${index + 1}`} onClick={() => change({ metadata: draft.metadata.toSpliced(index, 1) })}>
              ✕
            </button>
          </div>
        ))}
        <p>
          <button type="button" className="button small" onClick={() => change({ metadata: [...draft.metadata, ["", ""]] })}>
            Add
          </button>
        </p>
        <Faults faults={at("metadata")} />
      </fieldset>
    </details>
  );
}

interface TextFieldProps {
  label: string;
  about: string;
  value: string;
  onChange: (value: string) => void;
  faults: Fault[];
  list?: string;
}

function TextField({ label, about, value, onChange, faults, list }: TextFieldProps) {
  const id = `start-${label.replace(/\W/g, "-").toLowerCase()}`;
  return (
    <div className="form-field">
      <label className="form-label" htmlFor={id}>
        {label} <span className="muted">optional</span>
      </label>
      <input id={id} className="input" autoComplete="off" spellCheck={false} list={list} aria-invalid={faults.length > 0} aria-describedby={`${id}-about`} value={value} onChange={(event) => onChange(event.target.value)} />
      <div id={`${id}-about`}>
        <p className="small muted">{about}</p>
        <Faults faults={faults} />
      </div>
    </div>
  );
}
