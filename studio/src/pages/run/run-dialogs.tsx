// Dialogs of a run: choose another one to compare it with, what a replay found, and delete it.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useLocation } from "wouter";

import { api, pathOf } from "../../api/client.ts";
import { client, type RunAt, runsQuery } from "../../api/queries.ts";
import type { ReplayView, RunDetails } from "../../api/types.ts";
import { Age, Loading, Problem, Status } from "../../ui/basics.tsx";
import { Dialog } from "../../ui/overlays.tsx";
import { ReplayOutcome } from "./compare-replay.tsx";

export function CompareDialog({ details, onClose }: { details: RunDetails; onClose: () => void }) {
  const [, navigate] = useLocation();
  const [typed, setTyped] = useState("");
  const { data, error } = useQuery(runsQuery({ graph: details.graph, limit: 30, q: typed.trim() }));
  const near = new Set([details.parent, ...details.forks]);
  const others = (data?.runs ?? []).filter((run) => run.run_id !== details.run_id).sort((a, b) => Number(near.has(b.run_id)) - Number(near.has(a.run_id)));
  return (
    <Dialog title={`Compare ${details.run_id} with`} onClose={onClose}>
      <div className="stack">
        <input className="input" type="search" autoFocus placeholder="Search id, error, metadata" aria-label="Search runs" value={typed} onChange={(event) => setTyped(event.target.value)} />
        {error !== null && <Problem error={error} />}
        {data === undefined && error === null && <Loading />}
        {data !== undefined && others.length === 0 && <p className="muted">There is no other run of {details.graph}. Fork this one, and compare it with its fork.</p>}
        <ul className="choices">
          {others.map((run) => (
            <li key={run.run_id}>
              <button type="button" className="choice" onClick={() => navigate(`/runs/${encodeURIComponent(details.run_id)}/vs/${encodeURIComponent(run.run_id)}`)}>
                <Status status={run.status} />
                <span className="strong truncate">{run.run_id}</span>
                {run.run_id === details.parent && <span className="tag">parent</span>}
                {details.forks.includes(run.run_id) && <span className="tag">fork</span>}
                <span className="small muted choice-age">
                  <Age at={run.started} />
                </span>
              </button>
            </li>
          ))}
        </ul>
      </div>
    </Dialog>
  );
}

export function ReplayDialog({ replay, error }: { replay: ReplayView | null; error: unknown }) {
  if (error !== null && replay === null) return <Problem error={error} />;
  if (replay === null) return <Loading />;
  return <ReplayOutcome found={replay} />;
}

export function DeleteDialog({ at, details, onClose, onDeleted }: { at: RunAt; details: RunDetails; onClose: () => void; onDeleted: () => void }) {
  const [error, setError] = useState<unknown>(null);
  const remove = async () => {
    try {
      await api(at.base + pathOf`/runs/${at.run}`, { method: "DELETE" });
      client.removeQueries({ queryKey: ["run", at.base, at.run] });
      void client.invalidateQueries({ queryKey: ["runs"] });
      client.removeQueries({ queryKey: ["run-list"] });
      onDeleted();
    } catch (problem) {
      setError(problem);
    }
  };
  return (
    <Dialog
      title="Delete this run?"
      onClose={onClose}
      foot={
        <>
          <button type="button" className="button" onClick={onClose} autoFocus>
            Keep it
          </button>
          <button type="button" className="button danger" onClick={() => void remove()}>
            Delete {details.run_id}
          </button>
        </>
      }
    >
      <div className="stack">
        <p>All records of {details.run_id} are removed from the journal. This cannot be undone.</p>
        {error !== null && <Problem error={error} />}
      </div>
    </Dialog>
  );
}
