// The plan: what waits for approval, what is worked on at the same time, and tasks to edit.

import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";

import { api, pathOf } from "../../api/client.ts";
import type { ApproveBody, ApprovedView, TaskRow } from "../../api/types.ts";
import { useMay } from "../../studio.tsx";
import { Empty, Problem, Status } from "../../ui/basics.tsx";
import { Markdown } from "../../ui/markdown.tsx";
import { ConfirmDialog, Menu } from "../../ui/overlays.tsx";
import { refreshTeam } from "./queries.ts";
import type { Shared } from "./shared.ts";
import { GoalForm } from "./start-forms.tsx";
import { TaskForm } from "./task-form.tsx";
import { shownStatus } from "./tasks.ts";

export function Plan(props: Shared) {
  const { team, rows, plan } = props;
  const answer = useMay("answer");
  const edit = useMay("edit");
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [form, setForm] = useState<string | null>(null);
  const [asks, setAsks] = useState<readonly string[] | null>(null);
  const [dropping, setDropping] = useState<string | null>(null);
  const untested = new Set(plan.without_tests);
  const tested = plan.unapproved.filter((key) => !untested.has(key));
  const picked = plan.unapproved.filter((key) => chosen.has(key));
  const approve = useMutation({
    mutationFn: (body: ApproveBody) => api<ApprovedView>(pathOf`/teams/${team.team}/approve`, { method: "POST", body }),
    onSuccess: () => setChosen(new Set()),
    onSettled: () => refreshTeam(team.team),
  });
  const drop = useMutation({
    mutationFn: (key: string) => api<undefined>(pathOf`/teams/${team.team}/tasks/${key}`, { method: "DELETE" }),
    onSettled: () => refreshTeam(team.team),
  });
  const approvePicked = () => {
    const without = picked.filter((key) => untested.has(key));
    if (without.length > 0) setAsks(without);
    else approve.mutate({ tasks: picked });
  };
  const toggle = (key: string) => {
    const next = new Set(chosen);
    if (!next.delete(key)) next.add(key);
    setChosen(next);
  };
  const byKey = new Map(rows.map((row) => [row.key, row]));
  const inRounds = new Set(plan.rounds.flat());
  const left = plan.left.filter((each) => !inRounds.has(each.task));
  const others = rows.filter((row) => !inRounds.has(row.key) && !left.some((each) => each.task === row.key));
  const list = (keys: readonly string[]) => (
    <ul className="plan-tasks">
      {keys.flatMap((key) => {
        const row = byKey.get(key);
        if (row === undefined) return [];
        return [<PlanTask key={key} {...props} row={row} isChosen={chosen.has(key)} onChoose={() => toggle(key)} onEdit={() => setForm(key)} onDrop={() => setDropping(key)} reason={left.find((each) => each.task === key)?.reason ?? ""} />];
      })}
    </ul>
  );
  return (
    <div className="stack plan">
      <div className="row wrap plan-actions">
        {plan.unapproved.length > 0 && (
          <>
            <button type="button" className="button primary" disabled={!answer.may || tested.length === 0 || approve.isPending} title={answer.why || (tested.length === 0 ? "No test proves these tasks: choose each below" : "")} onClick={() => approve.mutate({})}>
              Approve {untested.size === 0 ? "all" : "all with tests"} ({tested.length})
            </button>
            <button type="button" className="button" disabled={!answer.may || picked.length === 0 || approve.isPending} title={answer.why || (picked.length === 0 ? "Choose tasks below" : "")} onClick={approvePicked}>
              Approve chosen ({picked.length})
            </button>
          </>
        )}
        <button type="button" className="button" disabled={!edit.may} title={edit.why} onClick={() => setForm("")}>
          Add a task
        </button>
        <span className="small muted" aria-live="polite">
          {approve.data && (approve.data.approved === 1 ? "1 task is approved." : `${approve.data.approved} tasks are approved.`)}
        </span>
      </div>
      {approve.error !== null && <Problem error={approve.error} />}
      {drop.error !== null && <Problem error={drop.error} />}
      {rows.length === 0 && (
        <Empty mark="☰" title="No plan yet">
          <p>Describe what to build. The plan appears here for your approval.</p>
          <GoalForm team={team.team} isFirst />
        </Empty>
      )}
      {plan.rounds.map((round, index) => (
        <section key={index} className="panel" aria-label={`Round ${index + 1}`}>
          <h2 className="panel-head small">
            {index === 0 ? "First" : `Then, round ${index + 1}`}
            <span className="muted">{round.length === 1 ? "one task" : `${round.length} tasks at the same time`}</span>
          </h2>
          {list(round)}
        </section>
      ))}
      {left.length > 0 && (
        <section className="panel" aria-label="Left out">
          <h2 className="panel-head small">Cannot start</h2>
          {list(left.map((each) => each.task))}
        </section>
      )}
      {others.length > 0 && (
        <section className="panel" aria-label="Ended">
          <h2 className="panel-head small">Ended</h2>
          {list(others.map((each) => each.key))}
        </section>
      )}
      {team.requirements !== "" && (
        <details className="panel panel-body">
          <summary className="strong">Requirements</summary>
          <Markdown text={team.requirements} />
        </details>
      )}
      {form !== null && <TaskForm team={team.team} task={form === "" ? null : form} schema={plan.task_schema} mayApprove={answer.may} onClose={() => setForm(null)} />}
      {asks !== null && (
        <ConfirmDialog
          title="Approve without tests?"
          action={`Approve ${picked.length}`}
          onConfirm={() => {
            setAsks(null);
            approve.mutate({ tasks: picked, without_tests: true });
          }}
          onClose={() => setAsks(null)}
        >
          <p>No test proves {asks.join(", ")}. The work is merged as its agent leaves it. Read its diff yourself.</p>
        </ConfirmDialog>
      )}
      {dropping !== null && (
        <ConfirmDialog
          title={`Drop ${dropping}?`}
          action="Drop"
          onConfirm={() => {
            drop.mutate(dropping);
            setDropping(null);
          }}
          onClose={() => setDropping(null)}
        >
          <p>The task is removed from the plan, with its attempts. A task that others depend on cannot be dropped.</p>
        </ConfirmDialog>
      )}
    </div>
  );
}

interface PlanTaskProps extends Shared {
  row: TaskRow;
  isChosen: boolean;
  reason: string;
  onChoose: () => void;
  onEdit: () => void;
  onDrop: () => void;
}

const FIXED = new Set(["in_progress", "completed", "merged", "staged"]);

function PlanTask({ team, row, critical, go, isChosen, reason, onChoose, onEdit, onDrop }: PlanTaskProps) {
  const edit = useMay("edit");
  const isFixed = FIXED.has(row.status);
  const why = edit.why || (isFixed ? "Its work has begun" : "");
  return (
    <li className={`plan-task${critical.has(row.key) ? " critical" : ""}`}>
      {!row.approved && <input type="checkbox" aria-label={`Choose ${row.title}`} checked={isChosen} onChange={onChoose} />}
      <div className="grow">
        <p className="row wrap">
          <Link href={go.to({ task: row.key })} className="strong plan-title" data-task={row.key}>
            {row.title}
          </Link>
          {row.approved ? <Status status={shownStatus(row, team.running)} /> : <span className="tag">to approve</span>}
          {row.proof === "none" && <span className="tag warn">no tests</span>}
          {row.feature !== "" && <span className="tag">{row.feature}</span>}
        </p>
        <p className="row wrap small muted">
          <code>{row.key}</code>
          <span>{row.kind}</span>
          {row.depends_on.length > 0 && <span>after {row.depends_on.join(", ")}</span>}
          {critical.has(row.key) && <span>on the critical path</span>}
          {reason !== "" && <span>{reason}</span>}
        </p>
      </div>
      <Menu
        label={
          <>
            ⋯<span className="sr-only">Change {row.title}</span>
          </>
        }
        className="button quiet small"
        actions={[
          { label: "Edit…", onSelect: onEdit, disabled: !edit.may || isFixed, hint: why },
          { label: "Drop…", onSelect: onDrop, disabled: !edit.may || isFixed, hint: why },
        ]}
      />
    </li>
  );
}
