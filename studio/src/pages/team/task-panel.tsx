// One task, beside the board: it has an address of its own, and is the whole page on a phone.

import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef } from "react";

import type { TaskRow, TeamDetails } from "../../api/types.ts";
import { Empty, Loading, Problem, Status } from "../../ui/basics.tsx";
import { formatCost, formatCount } from "../../ui/format.ts";
import { type Address, type Go, type Tab, TABS } from "./address.ts";
import { Diff } from "./diff.tsx";
import { LogTab } from "./log-tab.tsx";
import { taskQuery } from "./queries.ts";
import { Steering } from "./steering.tsx";
import { TaskAbout } from "./task-about.tsx";
import { shownStatus, spentCost } from "./tasks.ts";
import { ReviewsTab, TestsTab } from "./tests-tab.tsx";

interface PanelProps {
  team: TeamDetails;
  row: TaskRow | undefined;
  rows: readonly TaskRow[];
  address: Address;
  go: Go;
}

const NAMES: Record<Tab, string> = { about: "About", diff: "Diff", tests: "Tests", reviews: "Reviews", log: "Log" };

export function TaskPanel({ team, row, rows, address, go }: PanelProps) {
  const panel = useRef<HTMLElement>(null);
  useEffect(() => {
    panel.current?.focus({ preventScroll: true });
  }, []);
  const close = () => go({ task: null });
  return (
    <aside ref={panel} className="task-panel" aria-label={`Task ${row?.key ?? address.task}`} tabIndex={-1}>
      <div className="task-head">
        <div className="row">
          <button type="button" className="button quiet small task-back" onClick={close}>
            ← Board
          </button>
          <h2 className="grow truncate" title={row?.title}>
            {row?.title ?? address.task}
          </h2>
          <button type="button" className="button quiet small task-wide" aria-pressed={address.wide} title={address.wide ? "Beside the board" : "Over the whole width"} onClick={() => go({ wide: !address.wide }, { replace: true })}>
            {address.wide ? "⇥" : "⇤"}
            <span className="sr-only">{address.wide ? "Beside the board" : "Over the whole width"}</span>
          </button>
          <button type="button" className="button quiet small task-close" onClick={close} aria-label="Close">
            ✕
          </button>
        </div>
        {row && (
          <p className="row wrap small muted">
            <Status status={shownStatus(row, team.running)} />
            <code>{row.key}</code>
            <span>
              {row.attempts} {row.attempts === 1 ? "attempt" : "attempts"}
            </span>
            <span title={`${formatCount(row.spent.calls)} calls`}>
              cost {spentCost(row.spent, formatCost)} · {formatCount(row.spent.tokens)} tokens
            </span>
          </p>
        )}
        <div className="tabs" role="tablist" aria-label="Parts of the task">
          {TABS.map((tab) => (
            <button key={tab} type="button" role="tab" className="tab" aria-selected={address.tab === tab} onClick={() => go({ tab }, { replace: true })}>
              {NAMES[tab]}
            </button>
          ))}
        </div>
      </div>
      {row === undefined ? (
        <Empty mark="?" title="There is no such task">
          <p>It may have been dropped.</p>
        </Empty>
      ) : (
        <>
          <TaskBody team={team} row={row} rows={rows} address={address} go={go} />
          <Steering team={team.team} row={row} isRunning={team.running} />
        </>
      )}
    </aside>
  );
}

function TaskBody({ team, row, rows, address, go }: PanelProps & { row: TaskRow }) {
  const { data, error } = useQuery(taskQuery(team.team, row.key));
  if (data === undefined) return <div className="task-body">{error ? <Problem error={error} /> : <Loading lines={5} />}</div>;
  const shared = { team: team.team, details: data, address, go };
  return (
    <div className={`task-body ${address.tab}`}>
      {address.tab === "about" && <TaskAbout {...shared} rows={rows} />}
      {address.tab === "diff" && <Diff {...shared} />}
      {address.tab === "tests" && <TestsTab {...shared} />}
      {address.tab === "reviews" && <ReviewsTab {...shared} />}
      {address.tab === "log" && <LogTab team={team.team} task={row.key} />}
    </div>
  );
}
