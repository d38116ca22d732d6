// The tasks by what they depend on, each with its state. The longest chain is drawn strong.

import { Status } from "../../ui/basics.tsx";
import { edgeKey, GraphPicture } from "../../ui/graph-picture.tsx";
import type { Shared } from "./shared.ts";
import { columnOf, shownStatus } from "./tasks.ts";

export function TaskGraph({ team, rows, plan, critical, address, go }: Shared) {
  if (rows.length === 0) return null;
  const byKey = new Map(rows.map((row) => [row.key, row]));
  const path = new Set(plan.edges.filter((edge) => critical.has(edge.source) && critical.has(edge.target)).map((edge) => edgeKey(edge.source, edge.target)));
  const chain = plan.critical_path;
  return (
    <section className="panel panel-body task-graph" aria-label="Task graph">
      <GraphPicture
        name="the tasks"
        boxes={plan.boxes}
        edges={plan.edges}
        taken={path}
        selected={address.task}
        onSelect={(task) => go({ task })}
        describe={(key) => {
          const row = byKey.get(key);
          if (row === undefined) return { content: key, label: key, className: "" };
          const status = shownStatus(row, team.running);
          return {
            label: `${row.title}, ${status.replaceAll("_", " ")}${critical.has(key) ? ", on the critical path" : ""}`,
            className: `task ${columnOf(row)}${critical.has(key) ? " critical" : ""}`,
            content: (
              <>
                <span className="truncate">{row.title}</span>
                <Status status={status} />
              </>
            ),
          };
        }}
      >
        {chain.length > 1 && (
          <span>
            Critical path: {chain.join(" → ")}. More agents do not shorten it.
          </span>
        )}
      </GraphPicture>
    </section>
  );
}
