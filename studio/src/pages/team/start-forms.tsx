// A goal to plan, and a run to start.

import { useMutation, useQuery } from "@tanstack/react-query";
import { type FormEvent, useId, useState } from "react";

import { api, pathOf } from "../../api/client.ts";
import type { GoalBody, JobView, TeamRunBody } from "../../api/types.ts";
import { useMay, useStudio } from "../../studio.tsx";
import { Command, Problem } from "../../ui/basics.tsx";
import { Dialog } from "../../ui/overlays.tsx";
import { useTextDraft } from "../../forms/drafts.ts";
import { plansQuery, useJobs } from "./jobs.tsx";
import { refreshTeam } from "./queries.ts";

/** A box for a goal; where this server starts nothing, the command for a terminal. */
export function GoalForm({ team, isFirst = false, onPlanned }: { team: string; isFirst?: boolean; onPlanned?: () => void }) {
  const { may, why } = useMay("run");
  const jobs = useJobs(team);
  const id = useId();
  const [goal, setGoal, forget] = useTextDraft(`goal/${team}`);
  const [decide, setDecide] = useState(false);
  const [acceptance, setAcceptance] = useState(true);
  const plan = useMutation({
    mutationFn: (body: GoalBody) => api<JobView>(pathOf`/teams/${team}/plans`, { method: "POST", body }),
    onSuccess: () => {
      forget();
      onPlanned?.();
    },
    onSettled: () => refreshTeam(team),
  });
  const plans = useQuery({ ...plansQuery(team), enabled: Boolean(jobs) });
  if (jobs === undefined) return null;
  if (isFirst && plans.data?.plans.some((each) => each.questions.some((question) => !question.answered))) {
    return <p className="note">Planning waits for your answers above. Then the tasks appear here.</p>;
  }
  if (jobs?.jobs.some((job) => job.kind === "plan" && job.status === "running")) {
    return (
      <p className="note" role="status">
        The team is planning: it reads the repository and may ask questions. The tasks appear here.
      </p>
    );
  }
  if (jobs === null) return <Command text="bae team plan 'What to build, in your words'" />;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (goal.trim() !== "" && !plan.isPending) plan.mutate({ goal, decide, acceptance });
  };
  return (
    <form className="goal-form" onSubmit={submit}>
      <label htmlFor={id} className="sr-only">
        Goal
      </label>
      <textarea
        id={id}
        className="textarea"
        rows={4}
        placeholder="What to build, in your words: what it does, for whom, and what it must not do."
        value={goal}
        disabled={!may}
        onChange={(event) => setGoal(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
        }}
      />
      <label className="row">
        <input type="checkbox" checked={decide} onChange={(event) => setDecide(event.target.checked)} /> ask no questions: the LLM decides
      </label>
      <label className="row">
        <input type="checkbox" checked={acceptance} onChange={(event) => setAcceptance(event.target.checked)} /> features begin with acceptance tests
      </label>
      <div className="row">
        <button type="submit" className="button primary" disabled={!may || goal.trim() === "" || plan.isPending} title={why || "Ctrl+Enter"}>
          Plan it
        </button>
        <span className="small muted">Nothing is built before you approve the plan.</span>
      </div>
      {plan.error !== null && <Problem error={plan.error} />}
    </form>
  );
}

const WORKERS: [NonNullable<TeamRunBody["worker"]>, string][] = [
  ["auto", "chosen by the model"],
  ["loop", "a conversation with tools"],
  ["oneshot", "one answer for each attempt"],
  ["claude-code", "Claude Code, a program of this machine"],
  ["codex", "Codex, a program of this machine"],
];
const REVIEWS: [NonNullable<TeamRunBody["review"]>, string][] = [
  ["advise", "advise: findings are noted"],
  ["require", "require: blocking findings refuse the work"],
  ["off", "no reviews"],
];

export function RunDialog({ team, root, onClose }: { team: string; root: string; onClose: () => void }) {
  const jobs = useJobs(team);
  if (jobs === null) {
    return (
      <Dialog title="Start a run" onClose={onClose}>
        <div className="stack">
          <p>In a terminal, in {root}. The page shows it live.</p>
          <Command text="bae team run" />
          <p className="small muted">Three agents, and at most two dollars:</p>
          <Command text="bae team run --max-agents 3 --budget cost=2.00" />
        </div>
      </Dialog>
    );
  }
  return <RunForm team={team} onClose={onClose} />;
}

function RunForm({ team, onClose }: { team: string; onClose: () => void }) {
  const studio = useStudio();
  const { may, why } = useMay("run");
  const id = useId();
  const [body, setBody] = useState<TeamRunBody>({ max_agents: 3, worker: "auto", review: "advise", wait: true });
  const [cost, setCost] = useState("");
  const change = (part: TeamRunBody) => setBody({ ...body, ...part });
  const isProgram = body.worker === "claude-code" || body.worker === "codex";
  const start = useMutation({
    mutationFn: () => api<JobView>(pathOf`/teams/${team}/runs`, { method: "POST", body: { ...body, budget: cost.trim() === "" ? null : { cost: Number(cost) } } }),
    onSuccess: onClose,
    onSettled: () => refreshTeam(team),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!start.isPending) start.mutate();
  };
  return (
    <Dialog
      title="Start a run"
      onClose={onClose}
      foot={
        <>
          <button type="button" className="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" form={id} className="button primary" disabled={!may || start.isPending} title={why}>
            Start
          </button>
        </>
      }
    >
      <form id={id} className="stack" onSubmit={submit}>
        <div className="form-field">
          <label className="form-label" htmlFor={`${id}-agents`}>
            Agents at the same time
          </label>
          <input id={`${id}-agents`} className="input" inputMode="numeric" value={body.max_agents ?? ""} onChange={(event) => change({ max_agents: Number(event.target.value) || 1 })} />
        </div>
        <div className="form-field">
          <label className="form-label" htmlFor={`${id}-cost`}>
            Budget of the run, in dollars <span className="muted">optional</span>
          </label>
          <input id={`${id}-cost`} className="input" inputMode="decimal" placeholder="no limit" value={cost} onChange={(event) => setCost(event.target.value)} />
        </div>
        <div className="form-field">
          <label className="form-label" htmlFor={`${id}-lm`}>
            LLM <span className="muted">optional</span>
          </label>
          <input id={`${id}-lm`} className="input" placeholder={studio.lm ?? "the default of this machine"} value={body.lm ?? ""} onChange={(event) => change({ lm: event.target.value === "" ? null : event.target.value })} />
        </div>
        <Choice id={`${id}-worker`} label="How agents work" options={WORKERS} value={body.worker ?? "auto"} onChange={(worker) => change({ worker })} />
        {isProgram && (
          <label className="row">
            <input type="checkbox" checked={body.allow_network ?? false} onChange={(event) => change({ allow_network: event.target.checked })} /> allow the network, which the program needs
          </label>
        )}
        <Choice id={`${id}-review`} label="Reviews" options={REVIEWS} value={body.review ?? "advise"} onChange={(review) => change({ review })} />
        <label className="row">
          <input type="checkbox" checked={body.wait ?? true} onChange={(event) => change({ wait: event.target.checked })} /> keep running while tasks wait for answers
        </label>
        {start.error !== null && <Problem error={start.error} />}
      </form>
    </Dialog>
  );
}

function Choice<T extends string>({ id, label, options, value, onChange }: { id: string; label: string; options: readonly (readonly [T, string])[]; value: T; onChange: (value: T) => void }) {
  return (
    <div className="form-field">
      <label className="form-label" htmlFor={id}>
        {label}
      </label>
      <select id={id} className="select" value={value} onChange={(event) => onChange(event.target.value as T)}>
        {options.map(([option, words]) => (
          <option key={option} value={option}>
            {words}
          </option>
        ))}
      </select>
    </div>
  );
}
