import "./team.css";

import { useQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { Redirect } from "wouter";

import { pathOf } from "../../api/client.ts";
import { useStudio } from "../../studio.tsx";
import { Command, Empty, Loading, Problem } from "../../ui/basics.tsx";
import { useAddress, VIEWS } from "./address.ts";
import { Agents } from "./agents.tsx";
import { Board } from "./board.tsx";
import { Jobs } from "./jobs.tsx";
import { NextSteps } from "./next-steps.tsx";
import { Plan } from "./plan.tsx";
import { useRunsBase } from "./runs-base.ts";
import { FollowAgent, planQuery, tasksQuery, teamQuery, useTeamFeed } from "./queries.ts";
import { TaskGraph } from "./task-graph.tsx";
import { TaskPanel } from "./task-panel.tsx";
import { TeamHeader } from "./team-header.tsx";

const NAMES = { board: "Board", graph: "Graph", plan: "Plan" };

export default function TeamPage({ team }: { team: string | null }) {
  const studio = useStudio();
  const first = studio.teams[0];
  if (first === undefined) {
    return (
      <Empty isPage mark="⚑" title="No team here">
        <p>A team turns a goal into merged, tested code, in your git repository. Set it up there, then open the studio with it:</p>
        <Command text="bae team init ." />
        <Command text="bae studio --team . --open" />
      </Empty>
    );
  }
  if (team === null) return <Redirect to={pathOf`/team/${first.name}`} replace />;
  return <OneTeam key={team} team={team} />;
}

function OneTeam({ team }: { team: string }) {
  const [address, go] = useAddress(team);
  const base = useRunsBase(team);
  const state = useQuery(teamQuery(team));
  const tasks = useQuery(tasksQuery(team));
  const plan = useQuery(planQuery(team));
  useTeamFeed(team);
  useEffect(() => {
    const close = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key !== "Escape" || event.defaultPrevented || address.task === null || target.closest("input, textarea, select, dialog, [popover]")) return;
      go({ task: null });
      document.querySelector<HTMLElement>(`[data-task="${CSS.escape(address.task)}"]`)?.focus();
    };
    document.addEventListener("keydown", close);
    return () => document.removeEventListener("keydown", close);
  });
  const isKey = tasks.data?.some((row) => row.key === address.task) ?? true;
  const named = isKey ? undefined : tasks.data?.find((row) => String(row.id) === address.task)?.key;
  useEffect(() => {
    // A task may be named by its number, as in the runs of agents.
    if (named !== undefined) go({ task: named, tab: address.tab, attempt: address.attempt, file: address.file }, { replace: true });
  }, [named]);
  const error = state.error ?? tasks.error ?? plan.error;
  if (state.data === undefined || tasks.data === undefined || plan.data === undefined) {
    return <div className="page">{error ? <Problem error={error} /> : <Loading lines={6} />}</div>;
  }
  const rows = tasks.data;
  const critical = new Set(plan.data.critical_path);
  const shared = { team: state.data, rows, plan: plan.data, critical, address, go };
  const opened = address.task === null ? undefined : rows.find((row) => row.key === address.task);
  const runs = new Set(rows.map((row) => row.doing?.run).filter((run) => run !== undefined && run !== ""));
  return (
    <div className={`page team${address.task !== null ? " with-task" : ""}${address.wide ? " wide" : ""}`}>
      {[...runs].map((run) => (
        <FollowAgent key={run} team={team} base={base} run={run!} />
      ))}
      <TeamHeader {...shared} />
      <Jobs team={team} isRunning={state.data.running} />
      {error !== null && <Problem error={error} />}
      <div className="team-columns">
        <div className="team-main">
          <div className="row wrap team-tabs">
            <div className="tabs" role="tablist" aria-label="Views">
              {VIEWS.map((view) => (
                <button key={view} type="button" role="tab" className="tab" aria-selected={address.view === view} onClick={() => go({ view }, { replace: true })}>
                  {NAMES[view]}
                  {view === "plan" && plan.data.unapproved.length > 0 && <span className="count team-tab-count">{plan.data.unapproved.length}</span>}
                </button>
              ))}
            </div>
          </div>
          <NextSteps {...shared} />
          {address.view === "board" && <Board {...shared} />}
          {address.view === "graph" && <TaskGraph {...shared} />}
          {address.view === "plan" && <Plan {...shared} />}
          {address.view !== "plan" && rows.length > 0 && <Agents {...shared} />}
        </div>
        {address.task !== null && named === undefined && <TaskPanel key={address.task} team={state.data} row={opened} address={address} go={go} rows={rows} />}
      </div>
    </div>
  );
}
