// What a person may do next: approve, answer, start, and take the work.

import { Command } from "../../ui/basics.tsx";
import { useJobAtWork } from "./jobs.tsx";
import type { Shared } from "./shared.ts";
import { columnOf, isAnswered } from "./tasks.ts";

export function NextSteps({ team, rows, plan, address, go }: Shared) {
  const job = useJobAtWork(team.team, "run");
  if (rows.length === 0) {
    return address.view === "graph" ? <p className="note">There are no tasks yet: describe what to build, on the board.</p> : null;
  }
  const waiting = plan.unapproved.length;
  if (waiting > 0 && address.view !== "plan") {
    return (
      <p className="note row wrap">
        <span className="grow">
          {waiting === 1 ? "One task waits" : `${waiting} tasks wait`} for your approval before {waiting === 1 ? "it starts" : "they start"}.
        </span>
        <button type="button" className="button primary small" onClick={() => go({ view: "plan" })}>
          Review the plan
        </button>
      </p>
    );
  }
  const ready = rows.filter((row) => row.status === "ready" || row.status === "in_progress" || (row.status === "pending" && row.approved) || isAnswered(row, rows)).length;
  if (!team.running && job === undefined && ready > 0 && address.task === null && address.view !== "plan") {
    return (
      <p className="note">
        {ready === 1 ? "One task is" : `${ready} tasks are`} left to do, and no run is in progress. Start one above.
      </p>
    );
  }
  if (address.task === null && rows.every((row) => columnOf(row) === "done")) {
    return (
      <section className="note all-done" aria-label="What next">
        <p className="strong">✓ All tasks are done. The work is on {team.branch}; your own branch is as it was.</p>
        <div className="row wrap">
          <Command text="bae team merge" />
          <Command text={`git diff HEAD...${team.branch}`} />
          <Command text="bae team patch > team.patch" />
        </div>
      </section>
    );
  }
  return null;
}
