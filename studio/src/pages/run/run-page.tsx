// One run: its graph, its timeline, and its trace with calls and records.

import "./run.css";
import "./trace.css";
import "./timeline.css";

import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useState } from "react";
import { Link } from "wouter";

import { ApiProblem } from "../../api/client.ts";
import { type RunAt, runQuery, stepQuery, timelineQuery } from "../../api/queries.ts";
import type { RunDetails } from "../../api/types.ts";
import { useMay, useServes } from "../../studio.tsx";
import { Command, Empty, Loading, Problem } from "../../ui/basics.tsx";
import { FilesContext } from "../../ui/file-value.tsx";
import { useIsNarrow } from "../../ui/narrow.ts";
import { Calls } from "./calls.tsx";
import { Failure } from "./failure.tsx";
import { ForkDialog } from "./fork-dialog.tsx";
import { GraphPanel } from "./graph-panel.tsx";
import { TextsContext, useLive } from "./live.ts";
import { Raw } from "./raw.tsx";
import { RunHeader } from "./run-header.tsx";
import { type ChangeView, type RunView, type Tab, useRunView } from "./run-view.ts";
import { Timeline } from "./timeline.tsx";
import { Trace } from "./trace.tsx";
import { WhyPanel } from "./why.tsx";

/** Pixels of two columns beside the navigation. */
const NARROW = 900;

export default function RunPage({ base, run }: RunAt) {
  const at = useMemo(() => ({ base, run }), [base, run]);
  const { data, error } = useQuery(runQuery(at));
  const live = useLive(at, data);
  const isGone = error instanceof ApiProblem && error.status === 404;
  if (data === undefined || isGone) {
    if (isGone) {
      return (
        <Empty isPage mark="?" title={`There is no run ${run}`}>
          <p>It was deleted, or is in another journal.</p>
          <Command text="bae runs list" />
          <Link href="/runs">All runs</Link>
        </Empty>
      );
    }
    return <div className="page">{error === null ? <Loading lines={8} /> : <Problem error={error} />}</div>;
  }
  return (
    <FilesContext value={base}>
      <TextsContext value={live.texts}>
        <OpenedRun at={at} details={data} isElsewhere={live.isElsewhere} />
      </TextsContext>
    </FilesContext>
  );
}

function OpenedRun({ at, details, isElsewhere }: { at: RunAt; details: RunDetails; isElsewhere: boolean }) {
  const [view, change] = useRunView();
  const isNarrow = useIsNarrow(NARROW);
  const [forkStep, setForkStep] = useState<number | null>(null);
  const timeline = useQuery(timelineQuery(at, { start: 0, limit: 1000 }));
  const selected = useQuery({ ...stepQuery(at, view.step ?? 0, { path: view.path, cut: 4_000 }), enabled: view.step !== null });
  const node = view.step === null ? view.node || null : (selected.data?.node ?? null);
  const total = details.steps;
  const lastWhole = Math.max(0, (total ?? 1) - 1);
  const mayFork = useMayFork(at, details);
  const open = useCallback((step: number) => setForkStep(step), []);
  const fork = mayFork ? open : null;
  const firstField = view.step === null ? undefined : (selected.data?.fields.find((field) => field.source !== "body" && field.source !== "caller") ?? selected.data?.fields[0])?.name;
  useKeys({ view, change, total, firstField, onFork: mayFork ? () => setForkStep(view.step ?? lastWhole) : null });
  const tab = isNarrow || (view.tab !== "graph" && view.tab !== "timeline") ? view.tab : "trace";
  return (
    <div className={`run-page${isNarrow ? " narrow" : ""}${view.field !== "" ? " with-details" : ""}`}>
      <RunHeader at={at} details={details} worked={timeline.data?.seconds ?? null} isElsewhere={isElsewhere} change={change} onFork={() => setForkStep(view.step ?? lastWhole)} />
      <Failure at={at} details={details} change={change} />
      {isNarrow && <Tabs tab={tab} tabs={["graph", "timeline", "trace", "calls", "raw"]} change={change} />}
      <div className="run-body">
        {(!isNarrow || tab === "graph") && <GraphPanel at={at} view={view} change={change} selected={node} />}
        <div className="run-right">
          {(!isNarrow || tab === "timeline") && <Timeline at={at} view={view} change={change} isNarrow={isNarrow} />}
          {(!isNarrow || (tab !== "graph" && tab !== "timeline")) && (
            <section className="panel run-work" aria-label={LABELS[tab]}>
              {!isNarrow && (
                <div className="panel-head">
                  <Tabs tab={tab} tabs={["trace", "calls", "raw"]} change={change} />
                </div>
              )}
              <div className="run-tab" role="tabpanel" aria-label={LABELS[tab]}>
                {tab === "trace" && <Trace at={at} details={details} view={view} change={change} onFork={fork} />}
                {tab === "calls" && <Calls at={at} view={view} change={change} />}
                {tab === "raw" && <Raw at={at} />}
              </div>
            </section>
          )}
        </div>
      </div>
      {view.step !== null && view.field !== "" && <WhyPanel key={`${view.path} ${view.step} ${view.field}`} at={at} details={details} step={view.step} path={view.path} field={view.field} change={change} onFork={fork} />}
      {forkStep !== null && <ForkDialog at={at} details={details} step={forkStep} field={forkStep === view.step ? view.field : ""} onStep={setForkStep} onClose={() => setForkStep(null)} />}
    </div>
  );
}

const LABELS: Record<Tab, string> = { graph: "Graph", timeline: "Timeline", trace: "Trace", calls: "Calls", raw: "Raw" };

function Tabs({ tab, tabs, change }: { tab: Tab; tabs: readonly Tab[]; change: ChangeView }) {
  const move = (list: HTMLElement, by: number) => {
    const next = (tabs.indexOf(tab) + by + tabs.length) % tabs.length;
    list.querySelectorAll<HTMLElement>("[role=tab]")[next]?.focus();
    change({ tab: tabs[next]! }, true);
  };
  return (
    <div
      className="tabs"
      role="tablist"
      aria-label="Views of the run"
      onKeyDown={(event) => {
        if (event.key === "ArrowRight") move(event.currentTarget, 1);
        if (event.key === "ArrowLeft") move(event.currentTarget, -1);
      }}
    >
      {tabs.map((each) => (
        <button key={each} type="button" role="tab" className="tab" aria-selected={each === tab} tabIndex={each === tab ? 0 : -1} onClick={() => change({ tab: each }, true)}>
          {LABELS[each]}
        </button>
      ))}
    </div>
  );
}

function useMayFork(at: RunAt, details: RunDetails): boolean {
  const edit = useMay("edit");
  const served = useServes(details.graph);
  return at.base === "" && edit.may && served.serves;
}

interface KeysProps {
  view: RunView;
  change: ChangeView;
  total: number | null;
  firstField: string | undefined;
  onFork: (() => void) | null;
}

/** [ and ] go from step to step, w asks why, f forks, Escape closes the details. */
function useKeys({ view, change, total, firstField, onFork }: KeysProps): void {
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, [contenteditable], dialog")) return;
      if (event.key === "]" || event.key === "[") {
        const last = total === null ? Infinity : Math.max(0, total - 1);
        const next = view.step === null ? (event.key === "]" ? 0 : last) : view.step + (event.key === "]" ? 1 : -1);
        if (next >= 0 && Number.isFinite(next) && (next <= last || view.path !== "")) change({ step: next, field: "", node: "", filter: "", tab: "trace" }, view.step !== null);
      } else if (event.key === "Escape" && view.field !== "") change({ field: "" });
      else if (event.key === "w" && view.step !== null && view.field === "" && firstField !== undefined) change({ field: firstField });
      else if (event.key === "f" && onFork !== null) onFork();
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, [view, change, total, firstField, onFork]);
}
