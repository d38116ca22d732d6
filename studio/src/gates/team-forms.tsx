// What a team asks: the answer to a question of a task, and which tasks of a plan may run.

import { useMutation, useQuery } from "@tanstack/react-query";

import { api, pathOf } from "../api/client.ts";
import type { PlanView } from "../api/types.ts";
import { useStudio } from "../studio.tsx";
import { Loading, Problem } from "../ui/basics.tsx";
import { firstAnswer, gateKey, say, sendAnswer } from "./answers.ts";
import { useDraft } from "../forms/drafts.ts";
import type { FormOfGate } from "./gate-card.tsx";
import { AnswerForm } from "./value-form.tsx";

export function BlockerForm({ gate, blocked, onAnswered }: FormOfGate) {
  const studio = useStudio();
  const [text, setText, forget] = useDraft(gateKey(gate), () => "");
  const send = useMutation({
    mutationFn: (decide: boolean) => sendAnswer(gate, decide ? { decide } : { answer: text }),
    onSuccess: (_, decide) => {
      forget();
      onAnswered({ by: studio.user, said: decide ? "decide yourself" : say(text) }, true);
    },
    onError: (error) => {
      const first = firstAnswer(error);
      if (first !== null) onAnswered(first, false);
    },
  });
  const cannot = blocked !== "" || send.isPending || text.trim() === "";
  return (
    <AnswerForm onSend={() => !cannot && send.mutate(false)}>
      <label className="form-field">
        <span className="form-label">Answer</span>
        <textarea className="textarea" rows={3} value={text} onChange={(event) => setText(event.target.value)} />
      </label>
      {send.error && firstAnswer(send.error) === null && <Problem error={send.error} />}
      <div className="gate-actions">
        <button type="submit" className="button primary" disabled={cannot} title={blocked || "Ctrl+Enter"}>
          {send.isPending ? "Sending…" : "Send answer"}
        </button>
        {gate.kind === "question" && (
          <button type="button" className="button" disabled={blocked !== "" || send.isPending} title={blocked} onClick={() => send.mutate(true)}>
            Let the LLM decide
          </button>
        )}
        <span className="small muted">answering as {studio.user}</span>
      </div>
      {blocked && <p className="small muted">{blocked}</p>}
    </AnswerForm>
  );
}

export function PlanForm({ gate, blocked, onAnswered }: FormOfGate) {
  const studio = useStudio();
  const plan = useQuery({
    queryKey: ["inbox", "plan", gate.team],
    queryFn: ({ signal }) => api<PlanView>(pathOf`/teams/${gate.team ?? ""}/plan`, { signal }),
  });
  const [changed, setChanged, forget] = useDraft<Record<string, boolean>>(gateKey(gate), () => ({}));
  const untested = new Set(plan.data?.without_tests);
  const keys = plan.data?.unapproved ?? [];
  const isChosen = (key: string) => changed[key] ?? !untested.has(key);
  const chosen = keys.filter(isChosen);
  const send = useMutation({
    mutationFn: () => sendAnswer(gate, { tasks: chosen, without_tests: chosen.some((key) => untested.has(key)) }),
    onSuccess: () => {
      forget();
      void plan.refetch();
      const said = `yes to ${chosen.length} of ${keys.length} tasks`;
      onAnswered({ by: studio.user, said }, true);
    },
  });
  if (plan.data === undefined) return plan.error ? <Problem error={plan.error} /> : <Loading />;
  const cannot = blocked !== "" || send.isPending || chosen.length === 0;
  return (
    <AnswerForm onSend={() => !cannot && send.mutate()} label="Plan">
      <fieldset className="form-group plan-tasks">
        <legend className="sr-only">Tasks to approve</legend>
        {keys.map((key) => (
          <label key={key} className="row plan-task">
            <input type="checkbox" checked={isChosen(key)} onChange={(event) => setChanged({ ...changed, [key]: event.target.checked })} />
            <span className="grow">
              <span className="strong">{typeof gate.context[key]?.value === "string" ? gate.context[key].value : key}</span> <code className="muted">{key}</code>
              {untested.has(key) && <span className="small fault plan-untested">No test proves this task. Select it to approve it.</span>}
            </span>
          </label>
        ))}
      </fieldset>
      {send.error && <Problem error={send.error} />}
      <div className="gate-actions">
        <button type="submit" className="button primary" data-hotkey="a" disabled={cannot} title={blocked || "a, or Ctrl+Enter"}>
          {chosen.length === keys.length ? `Approve all ${keys.length}` : `Approve ${chosen.length} of ${keys.length}`}
        </button>
        <button type="button" className="button quiet" onClick={() => setChanged(Object.fromEntries(keys.map((key) => [key, true])))}>
          Choose all
        </button>
        <button type="button" className="button quiet" onClick={() => setChanged(Object.fromEntries(keys.map((key) => [key, false])))}>
          None
        </button>
      </div>
      {blocked && <p className="small muted">{blocked}</p>}
    </AnswerForm>
  );
}
