// The actions on a run. A disabled action has its reason as a tooltip.

import { useState } from "react";
import { Link, useLocation } from "wouter";

import { api, pathOf } from "../../api/client.ts";
import { client, refreshRun, type RunAt } from "../../api/queries.ts";
import type { LinePage, RunDetails } from "../../api/types.ts";
import { gateKey } from "../../gates/answers.ts";
import { useMay, useServes } from "../../studio.tsx";
import { Problem } from "../../ui/basics.tsx";
import { saveBlob } from "../../ui/file-value.tsx";
import { Menu, type MenuAction } from "../../ui/overlays.tsx";
import { DeleteRuns } from "../runs/delete-runs.tsx";
import { CompareDialog } from "./compare-dialog.tsx";
import { Replay } from "./compare-replay.tsx";

const OVER = new Set(["ended", "failed", "cancelled"]);

type Open = "" | "compare" | "delete";

export function RunActions({ at, details, onFork }: { at: RunAt; details: RunDetails; onFork: () => void }) {
  const [open, setOpen] = useState<Open>("");
  const [busy, setBusy] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [, navigate] = useLocation();
  const can = useCan(at, details);
  const post = async (what: "resume" | "cancel") => {
    setBusy(what);
    setError(null);
    try {
      await api(at.base + pathOf`/runs/${at.run}/${what}`, { method: "POST" });
      refreshRun(at);
    } catch (problem) {
      setError(problem);
    } finally {
      setBusy("");
    }
  };
  const isOver = OVER.has(details.status);
  const gate = details.waiting.find((each) => !each.answered);
  const forget = () => {
    client.removeQueries({ queryKey: ["run", at.base, at.run] });
    client.removeQueries({ queryKey: ["run-list"] });
    void client.invalidateQueries({ queryKey: ["runs"] });
    navigate("/runs", { replace: true });
  };
  return (
    <>
      <div className="row wrap run-actions">
        {gate !== undefined && details.status === "waiting" && at.base === "" && (
          <Link href={`/inbox?item=${encodeURIComponent(gateKey({ run_id: details.run_id, gate: gate.gate }))}`} className="button primary">
            Answer…
          </Link>
        )}
        {(details.status === "failed" || details.status === "interrupted" || details.status === "cancelled") && (
          <button type="button" className="button primary" disabled={can.resume !== "" || busy !== ""} title={can.resume || "Continue where it stopped"} onClick={() => void post("resume")}>
            {busy === "resume" ? "Resuming…" : "Resume"}
          </button>
        )}
        <button type="button" className="button" disabled={can.fork !== ""} title={can.fork || "A new run from one of its steps, with other values"} onClick={onFork}>
          Fork…
        </button>
        <button type="button" className="button" disabled={at.base !== ""} title={at.base === "" ? "Compare with another run" : "Runs of a team's agents can only be read here"} onClick={() => setOpen("compare")}>
          Compare…
        </button>
        {isOver && <Replay run={at.run} graph={details.graph} className="button" blocked={can.replay} />}
        {!isOver && (
          <button type="button" className="button danger" disabled={can.cancel !== "" || busy !== ""} title={can.cancel || "Stop it for good"} onClick={() => void post("cancel")}>
            {busy === "cancel" ? "Cancelling…" : "Cancel"}
          </button>
        )}
        <Menu
          label={
            <>
              <span aria-hidden="true">⋯</span>
              <span className="sr-only">More actions</span>
            </>
          }
          actions={[
            ...copies(details),
            { label: "Save records as JSON lines", onSelect: () => void saveRecords(at).catch(setError) },
            { label: "Delete…", onSelect: () => setOpen("delete"), disabled: can.delete !== "", hint: can.delete },
          ]}
        />
      </div>
      {error !== null && open === "" && (
        <div className="run-problem">
          <Problem error={error}>
            <button type="button" className="button quiet small" onClick={() => setError(null)}>
              Close
            </button>
          </Problem>
        </div>
      )}
      {open === "compare" && <CompareDialog details={details} onClose={() => setOpen("")} />}
      {open === "delete" && <DeleteRuns rows={[details]} onClose={() => setOpen("")} onDeleted={(gone) => gone.has(at.run) && forget()} />}
    </>
  );
}

/** Why each action is not possible; empty where it is. */
function useCan({ base }: RunAt, details: RunDetails) {
  const [run, edit, admin] = [useMay("run"), useMay("edit"), useMay("admin")];
  const served = useServes(details.graph);
  const ofTeam = base === "" ? "" : "Runs of a team's agents can only be read here";
  const isBusy = details.status === "running" || details.status === "queued";
  return {
    resume: ofTeam || run.why || served.why,
    fork: ofTeam || edit.why || served.why,
    cancel: ofTeam || run.why,
    replay: ofTeam,
    delete: ofTeam || admin.why || (isBusy ? "It is in progress: cancel it first" : details.forks.length > 0 ? "Delete its forks first" : ""),
  };
}

function copies(details: RunDetails): MenuAction[] {
  const id = /^[\w.-]+$/.test(details.run_id) ? details.run_id : `'${details.run_id.replaceAll("'", "'\\''")}'`;
  const copy = (text: string) => () => void navigator.clipboard.writeText(text);
  return [
    { label: "Copy link", onSelect: () => copy(location.href)() },
    ...["show", "timeline", "export", "test"].map((verb) => ({ label: `Copy: bae runs ${verb}`, onSelect: copy(`bae runs ${verb} ${id}`) })),
  ];
}

/** All records of a run as a file. */
async function saveRecords({ base, run }: RunAt): Promise<void> {
  const lines: string[] = [];
  for (let after = -1; ; ) {
    const page = await api<LinePage>(base + pathOf`/runs/${run}/records`, { query: { after, limit: 1000 } });
    lines.push(...page.records.map((record) => JSON.stringify(record)));
    const last = page.records.at(-1);
    if (last === undefined || last.n >= page.last) break;
    after = last.n;
  }
  saveBlob(new Blob([lines.join("\n"), "\n"], { type: "application/x-ndjson" }), `${run.replaceAll("/", "_")}.jsonl`);
}
