// A run of an agent: the page of any run, on the API that has the runs of the team.

import { Link } from "wouter";

import { pathOf } from "../../api/client.ts";
import RunPage from "../run/run-page.tsx";
import { useRunsBase } from "./runs-base.ts";

export default function AgentRunPage({ team, run }: { team: string; run: string }) {
  const base = useRunsBase(team);
  const task = /^task-(\d+)-/.exec(run)?.[1];
  return (
    <>
      <p className="agent-run-back small">
        <Link href={task === undefined ? pathOf`/team/${team}` : pathOf`/team/${team}/tasks/${task}?tab=log`}>← {task === undefined ? team : "its task"}</Link>
      </p>
      <RunPage base={base} run={run} />
    </>
  );
}
