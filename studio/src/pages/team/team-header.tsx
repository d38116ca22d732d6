import { useState } from "react";
import { useLocation } from "wouter";

import { pathOf } from "../../api/client.ts";
import type { RunSpending } from "../../api/types.ts";
import { useMay, useStudio } from "../../studio.tsx";
import { Problem, Status } from "../../ui/basics.tsx";
import { formatCost, formatCount } from "../../ui/format.ts";
import { Dialog } from "../../ui/overlays.tsx";
import { PlanningNow, StopJob, useJobAtWork } from "./jobs.tsx";
import type { Shared } from "./shared.ts";
import { GoalForm, RunDialog } from "./start-forms.tsx";
import { Asked, Confirm, useAct } from "./steering.tsx";
import { columnOf, type Offer, spentCost } from "./tasks.ts";

const STOP: Offer = { action: "stop", label: "Stop", warning: "The run ends after the attempts that are in progress. Merged work is kept; the next run continues." };
const KILL: Offer = { action: "kill", label: "Kill", warning: "The run ends now, in the middle of the agents' work. Work that is not merged stays on its branches." };

/** What a run has spent of each of its limits. */
function limitsText(run: RunSpending): string {
  const parts: string[] = [];
  if (run.cost !== null) parts.push(`${spentCost(run.spent, formatCost)} of ${formatCost(run.cost)}`);
  if (run.tokens !== null) parts.push(`${formatCount(run.spent.tokens)} of ${formatCount(run.tokens)} tokens`);
  if (run.calls !== null) parts.push(`${formatCount(run.spent.calls)} of ${formatCount(run.calls)} calls`);
  return parts.join(", ");
}

export function TeamHeader({ team, rows }: Shared) {
  const { may, why } = useMay("run");
  const studio = useStudio();
  const [, navigate] = useLocation();
  const act = useAct(team.team);
  const [asking, setAsking] = useState<Offer | null>(null);
  const [shows, setShows] = useState<"run" | "goal" | null>(null);
  const done = rows.filter((row) => columnOf(row) === "done").length;
  const all = rows.filter((row) => row.status !== "cancelled").length;
  const job = useJobAtWork(team.team, "run");
  const isAtWork = team.running || job !== undefined;
  const status = team.paused ? "paused" : isAtWork ? "running" : "not running";
  const isOver = rows.length === 0 || done === all;
  const hold: Offer = team.paused ? { action: "resume", label: "Resume" } : { action: "pause", label: "Pause" };
  const atWork = team.running ? team.agents.filter((agent) => agent.status === "working").length : 0;
  return (
    <header className="team-head">
      <div className="row wrap">
        <div className="row team-title">
          <h1 className="truncate">{team.team}</h1>
          <Status status={status} {...(job && { title: job.command })} />
          {studio.teams.length > 1 && (
            <select className="select team-choice" aria-label="Team" value={team.team} onChange={(event) => navigate(pathOf`/team/${event.target.value}`)}>
              {studio.teams.map((each) => (
                <option key={each.name}>{each.name}</option>
              ))}
            </select>
          )}
          <PlanningNow team={team.team} />
        </div>
        <span className="grow" />
        {rows.length > 0 && (
          <button type="button" className="button" disabled={!may} title={why} onClick={() => setShows("goal")}>
            Plan…
          </button>
        )}
        <button type="button" className="button" disabled={!may || act.isPending} title={why} onClick={() => act.mutate({ action: hold.action })}>
          {hold.label}
        </button>
        {team.running ? (
          <>
            <button type="button" className="button danger" disabled={!may} title={why} onClick={() => setAsking(STOP)}>
              Stop
            </button>
            <button type="button" className="button danger" disabled={!may} title={why} onClick={() => setAsking(KILL)}>
              Kill
            </button>
          </>
        ) : isAtWork ? (
          <StopJob team={team.team} kind="run" className="button danger" />
        ) : (
          <button type="button" className={isOver ? "button" : "button primary"} disabled={!may} title={why} onClick={() => setShows("run")}>
            Run…
          </button>
        )}
      </div>
      {team.goal !== "" && <p className="team-goal">“{team.goal}”</p>}
      <p className="row wrap small muted team-facts">
        <span>
          {done} of {all} done
        </span>
        <span>
          {atWork} {atWork === 1 ? "agent" : "agents"} at work
        </span>
        <span title={`${formatCount(team.spent.calls)} calls, ${formatCount(team.spent.tokens)} tokens${team.spent.unpriced > 0 ? `, ${formatCount(team.spent.unpriced)} calls without a known price` : ""}`}>
          cost {spentCost(team.spent, formatCost)} · {formatCount(team.spent.tokens)} tokens
        </span>
        {team.run !== null && limitsText(team.run) !== "" && <span title="What the last run has spent of its budget, with what is reserved for calls in progress">run: {limitsText(team.run)}</span>}
        <span>
          branch <code>{team.branch}</code>
        </span>
        <span title="What keeps the commands of agents from the rest of this machine">sandbox: {team.sandbox}</span>
        <Asked asked={act.data} />
      </p>
      {team.requests.length > 0 && (
        <p className="note small" role="status">
          Requested: {team.requests.map((each) => `${each.action} ${each.task ?? "the run"}`).join(", ")}.{" "}
          {team.running ? "The run takes it when the work in progress allows." : "The next run takes it."}
        </p>
      )}
      {act.error !== null && <Problem error={act.error} />}
      {asking !== null && (
        <Confirm
          offer={asking}
          name="the run"
          onClose={() => setAsking(null)}
          onYes={() => {
            act.mutate({ action: asking.action });
            setAsking(null);
          }}
        />
      )}
      {shows === "run" && <RunDialog team={team.team} root={team.root} onClose={() => setShows(null)} />}
      {shows === "goal" && (
        <Dialog title="Plan a goal" onClose={() => setShows(null)}>
          <GoalForm team={team.team} onPlanned={() => setShows(null)} />
        </Dialog>
      )}
    </header>
  );
}
