// The choice of a run to compare another one with.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useLocation } from "wouter";

import { runsQuery } from "../../api/queries.ts";
import type { RunDetails } from "../../api/types.ts";
import { Age, Loading, Problem, Status } from "../../ui/basics.tsx";
import { Dialog } from "../../ui/overlays.tsx";

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
