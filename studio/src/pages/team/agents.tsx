// The agents and their current work. Without a run no agent works, whatever was stored last.

import { Link } from "wouter";

import { pathOf } from "../../api/client.ts";
import { Age, Status } from "../../ui/basics.tsx";
import type { Shared } from "./shared.ts";

export function Agents({ team, rows, go }: Shared) {
  const left = rows.filter((row) => row.status === "in_progress");
  if (!team.running) {
    if (left.length === 0) return null;
    return (
      <p className="note agents">
        No run is in progress. {left.length === 1 ? "One task was" : `${left.length} tasks were`} left in progress: the next run continues {left.map((row) => row.key).join(", ")}.
      </p>
    );
  }
  return (
    <section className="panel agents" aria-label="Agents">
      <h2 className="panel-head small">Agents</h2>
      {team.agents.length === 0 && <p className="panel-body muted">The run has no agent yet.</p>}
      <ul>
        {team.agents.map((agent) => {
          const row = rows.find((each) => each.id === agent.task_id);
          return (
            <li key={agent.id} className="agent">
              <span className="agent-name">{agent.id}</span>
              <Status status={agent.status === "working" ? "running" : "idle"} />
              {row && <Link href={go.to({ task: row.key })}>{row.key}</Link>}
              {row && row.doing !== null && (
                <>
                  <span className="mono small truncate grow">{row.doing.text}</span>
                  <span className="small muted">
                    <Age at={row.doing.at} />
                  </span>
                  {row.doing.run !== "" && (
                    <Link href={pathOf`/team/${team.team}/runs/${row.doing.run}`} className="small">
                      its run
                    </Link>
                  )}
                </>
              )}
            </li>
          );
        })}
      </ul>
    </section>
  );
}
