import { useState } from "react";

import { useMay } from "../../studio.tsx";
import { Command, Problem, Status } from "../../ui/basics.tsx";
import { formatCost, formatCount } from "../../ui/format.ts";
import { Dialog } from "../../ui/overlays.tsx";
import type { Shared } from "./shared.ts";
import { Asked, Confirm, useAct } from "./steering.tsx";
import { columnOf, type Offer, spentCost } from "./tasks.ts";

const STOP: Offer = { action: "stop", label: "Stop", warning: "The run ends after the attempts that are in progress. Nothing that is merged is lost; the next run goes on." };
const KILL: Offer = { action: "kill", label: "Kill", warning: "The run ends now, in the middle of what its agents do. Work that is not merged stays on its branches." };

export function TeamHeader({ team, rows }: Shared) {
  const { may, why } = useMay("run");
  const act = useAct(team.team);
  const [asking, setAsking] = useState<Offer | null>(null);
  const [showsHow, setShowsHow] = useState(false);
  const done = rows.filter((row) => columnOf(row) === "done").length;
  const all = rows.filter((row) => row.status !== "cancelled").length;
  const status = team.paused ? "paused" : team.running ? "running" : "not running";
  const hold: Offer = team.paused ? { action: "resume", label: "Resume" } : { action: "pause", label: "Pause" };
  const atWork = team.running ? team.agents.filter((agent) => agent.status === "working").length : 0;
  return (
    <header className="team-head">
      <div className="row wrap">
        <h1 className="truncate">{team.team}</h1>
        <Status status={status} />
        <span className="grow" />
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
        ) : (
          <button type="button" className="button primary" onClick={() => setShowsHow(true)}>
            Run
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
        <span>
          branch <code>{team.branch}</code>
        </span>
        <span title="What keeps the commands of agents from the rest of this machine">sandbox: {team.sandbox}</span>
        <Asked asked={act.data} />
      </p>
      {team.requests.length > 0 && (
        <p className="note small" role="status">
          Asked for, and not taken yet: {team.requests.map((each) => `${each.action} ${each.task ?? "the run"}`).join(", ")}.{" "}
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
      {showsHow && (
        <Dialog title="Start a run" onClose={() => setShowsHow(false)}>
          <div className="stack">
            <p>In a terminal, in {team.root}. The page shows it live.</p>
            <Command text="bae team run" />
            <p className="small muted">Three agents, and at most two dollars:</p>
            <Command text="bae team run --max-agents 3 --budget cost=2.00" />
          </div>
        </Dialog>
      )}
    </header>
  );
}
