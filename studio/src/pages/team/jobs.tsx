// Planning and runs that the studio itself has started, and the questions of planning.

import { queryOptions, useMutation, useQuery } from "@tanstack/react-query";
import { type FormEvent, useEffect, useId } from "react";

import { api, ApiProblem, pathOf } from "../../api/client.ts";
import type { AnsweredView, JobPage, JobView, PlanningPage, PlanningView, QuestionBody } from "../../api/types.ts";
import { useMay } from "../../studio.tsx";
import { Age, Problem, Status } from "../../ui/basics.tsx";
import { useTextDraft } from "../../forms/drafts.ts";
import { refreshTeam } from "./queries.ts";
import { Long } from "./task-about.tsx";

const OFTEN = 1_500;

/** The planning and the run that this server has started. Null if it starts none. */
export function useJobs(team: string): JobPage | null | undefined {
  const { data, error } = useQuery({
    queryKey: ["team", team, "jobs"],
    queryFn: ({ signal }) => api<JobPage>(pathOf`/teams/${team}/jobs`, { signal }),
    refetchInterval: ({ state }) => (state.data?.jobs.some((job) => job.status === "running") ? OFTEN : false),
  });
  return error instanceof ApiProblem && error.status === 404 ? null : data;
}

const NAMES = { plan: "Planning", run: "The run" };

/** The planning or the run that was started here and is in progress. */
export function useJobAtWork(team: string, kind: JobView["kind"]): JobView | undefined {
  return useJobs(team)?.jobs.find((job) => job.kind === kind && job.status === "running");
}

/** Planning in progress, in the header. */
export function PlanningNow({ team }: { team: string }) {
  const job = useJobAtWork(team, "plan");
  if (job === undefined) return null;
  return (
    <span className="row small" title={job.command}>
      <Status status="running" title={job.command} /> planning a goal, started <Age at={job.started} />
      <StopJob team={team} kind="plan" />
    </span>
  );
}

export function StopJob({ team, kind, className = "button small danger" }: { team: string; kind: JobView["kind"]; className?: string }) {
  const { may, why } = useMay("run");
  const stop = useMutation({
    mutationFn: () => api<JobView>(pathOf`/teams/${team}/jobs/${kind}/stop`, { method: "POST" }),
    onSettled: () => refreshTeam(team),
  });
  return (
    <>
      <button type="button" className={className} disabled={!may || stop.isPending} title={why || "Finished work is kept"} onClick={() => stop.mutate()}>
        {kind === "plan" ? "Stop planning" : "Stop"}
      </button>
      {stop.error !== null && <Problem error={stop.error} />}
    </>
  );
}

/** Failed and stopped jobs, and the questions of planning. */
export function Jobs({ team, isRunning }: { team: string; isRunning: boolean }) {
  const jobs = useJobs(team);
  const change = jobs?.change;
  // That planning asks is no event of the team.
  useEffect(() => refreshTeam(team), [team, change]);
  const shown = jobs?.jobs.filter((job) => job.status === "failed" || (job.status === "stopped" && !isRunning)) ?? [];
  if (jobs === null || jobs === undefined) return null;
  return (
    <>
      {shown.map((job) => (
        <Job key={job.kind} job={job} />
      ))}
      <OpenPlanning team={team} />
    </>
  );
}

function Job({ job }: { job: JobView }) {
  return (
    <section className={job.status === "failed" ? "problem job" : "note job"} aria-label={NAMES[job.kind]}>
      <p className="row wrap">
        <span className="strong">{NAMES[job.kind]}</span>
        <Status status={job.status === "stopped" ? "cancelled" : job.status} />
        <span className="small">
          {job.ended !== null && <Age at={job.ended} />}
          {job.by !== "" && `, started by ${job.by}`}
        </span>
      </p>
      {job.reason !== "" && <p>{job.reason}</p>}
      {job.status === "failed" && job.output !== "" && <Long text={job.output} />}
      {job.status === "stopped" && <p>{job.kind === "run" ? "Finished work is kept: the next run continues." : "Finished work is kept: plan the same goal again to continue."}</p>}
      <p className="small">
        <code>{job.command}</code>
      </p>
    </section>
  );
}

export const plansQuery = (team: string) =>
  queryOptions({ queryKey: ["team", team, "plans"], queryFn: ({ signal }) => api<PlanningPage>(pathOf`/teams/${team}/plans`, { signal }) });

/** Goals whose planning waits for answers. */
function OpenPlanning({ team }: { team: string }) {
  const { data } = useQuery(plansQuery(team));
  return data?.plans.map((plan) => <PlanningQuestions key={plan.plan} team={team} plan={plan} />);
}

function PlanningQuestions({ team, plan }: { team: string; plan: PlanningView }) {
  const open = plan.questions.filter((each) => !each.answered);
  if (open.length === 0) return null;
  return (
    <section className="question open" aria-label="Questions about the goal">
      <h3>Planning asks {open.length === 1 ? "a question" : `${open.length} questions`}</h3>
      <p className="value text muted">{plan.goal.length > 300 ? `${plan.goal.slice(0, 300)}…` : plan.goal}</p>
      {open.map((each) => (
        <PlanningQuestion key={each.number} team={team} plan={plan.plan} number={each.number} question={each.question} />
      ))}
    </section>
  );
}

function PlanningQuestion({ team, plan, number, question }: { team: string; plan: string; number: number; question: string }) {
  const { may, why } = useMay("answer");
  const id = useId();
  const [draft, setDraft, forget] = useTextDraft(`plan/${team}/${plan}/${number}`);
  const send = useMutation({
    mutationFn: (body: QuestionBody) => api<AnsweredView>(pathOf`/teams/${team}/plans/${plan}/questions/${number}`, { method: "POST", body }),
    onSuccess: forget,
    onSettled: () => refreshTeam(team),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (draft.trim() !== "" && !send.isPending) send.mutate({ answer: draft });
  };
  return (
    <form className="answer" onSubmit={submit}>
      <label htmlFor={id} className="value text">
        {question}
      </label>
      <textarea
        id={id}
        className="textarea"
        rows={1}
        placeholder="Your answer…"
        value={draft}
        disabled={!may}
        onChange={(event) => setDraft(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
        }}
      />
      <div className="row wrap">
        <button type="submit" className="button primary small" disabled={!may || draft.trim() === "" || send.isPending} title={why || "Ctrl+Enter"}>
          Answer
        </button>
        <button type="button" className="button small" disabled={!may || send.isPending} title={why || "The LLM decides and notes its assumption"} onClick={() => send.mutate({ decide: true })}>
          Let the LLM decide
        </button>
      </div>
      {send.error !== null && <Problem error={send.error} />}
    </form>
  );
}
