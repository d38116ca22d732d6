// Whether a tool may be called: yes, yes with other arguments, or no with a reason.

import { useMutation } from "@tanstack/react-query";
import { type ReactNode, useEffect, useRef } from "react";

import { ApiProblem } from "../api/client.ts";
import type { AnswerBody, GateView } from "../api/types.ts";
import { faultsBefore, faultsIn, type Schema } from "../forms/schema.ts";
import { SchemaForm } from "../forms/schema-form.tsx";
import { useStudio } from "../studio.tsx";
import { Problem } from "../ui/basics.tsx";
import { firstAnswer, gateKey, sendAnswer } from "./answers.ts";
import { useDraft } from "../forms/drafts.ts";
import type { FormOfGate } from "./gate-card.tsx";
import { AnswerForm } from "./value-form.tsx";

type Mode = "decide" | "edit" | "refuse";

interface Draft {
  mode: Mode;
  arguments: unknown;
  reason: string;
  scope: AnswerBody["scope"];
}

export function ApprovalForm({ gate, blocked, onAnswered, context, fetchAll }: FormOfGate & { context: ReactNode; fetchAll: () => void }) {
  const studio = useStudio();
  const [draft, setDraft, forget] = useDraft<Draft>(gateKey(gate), () => ({ mode: "decide", arguments: null, reason: "", scope: "call" }));
  const reason = useRef<HTMLTextAreaElement>(null);
  const change = (part: Partial<Draft>) => setDraft({ ...draft, ...part });
  const isWhole = Object.values(gate.context).every((each) => each.kept === "value");
  const given = Object.fromEntries(Object.entries(gate.context).map(([name, each]) => [name, each.value]));
  const edited = draft.arguments ?? (isWhole ? given : undefined);
  const schema = (gate.arguments_schema ?? {}) as Schema;
  const send = useMutation({
    mutationFn: (body: Omit<AnswerBody, "gate">) => sendAnswer(gate, body),
    onSuccess: (_, body) => {
      forget();
      const said = body.decision === "refuse" ? (body.reason ? `no: ${body.reason}` : "no") : body.decision === "edit" ? "yes, with other arguments" : "yes";
      onAnswered({ by: studio.user, said }, true);
    },
    onError: (error) => {
      const first = firstAnswer(error);
      if (first !== null) onAnswered(first, false);
    },
  });
  useEffect(() => {
    if (draft.mode === "edit" && !isWhole) fetchAll();
  }, [draft.mode, isWhole]);
  const scope = draft.scope ?? "call";
  const before = draft.mode === "edit" ? faultsBefore(edited) : [];
  const cannot = blocked !== "" || send.isPending;
  const approve = () => !cannot && send.mutate({ decision: "approve", scope });
  const edit = () => !cannot && before.length === 0 && edited !== undefined && send.mutate({ decision: "edit", arguments: edited as Record<string, unknown>, scope });
  const refuse = () => !cannot && send.mutate({ decision: "refuse", reason: draft.reason });
  const faults = send.error instanceof ApiProblem && draft.mode === "edit" ? faultsIn(send.error.faults, "body", "arguments") : [];
  const problem = send.error && faults.length === 0 && firstAnswer(send.error) === null && <Problem error={send.error} />;
  const back = (
    <button type="button" className="button quiet" onClick={() => change({ mode: "decide" })}>
      Back
    </button>
  );
  if (draft.mode === "refuse") {
    return (
      <AnswerForm onSend={refuse} label="Refuse">
        {context}
        <label className="form-field">
          <span className="form-label">
            Why not? <span className="muted">The model reads it.</span>
          </span>
          <textarea ref={reason} className="textarea" rows={2} autoFocus value={draft.reason} onChange={(event) => change({ reason: event.target.value })} />
        </label>
        {problem}
        <div className="gate-actions">
          <button type="submit" className="button danger" disabled={cannot} title={blocked || "Ctrl+Enter"}>
            Refuse
          </button>
          {back}
        </div>
      </AnswerForm>
    );
  }
  if (draft.mode === "edit") {
    return (
      <AnswerForm onSend={edit} label="Approve with edits">
        {edited !== undefined && <SchemaForm schema={schema} value={edited} onChange={(next) => change({ arguments: next })} faults={faults} />}
        {problem}
        <div className="gate-actions">
          <button type="submit" className="button primary" disabled={cannot || before.length > 0 || edited === undefined} title={blocked || "Ctrl+Enter"}>
            Approve with edits
          </button>
          {back}
        </div>
      </AnswerForm>
    );
  }
  return (
    <AnswerForm onSend={approve} label="Approve or refuse">
      {context}
      <ScopeOf gate={gate} scope={scope} onChange={(next) => change({ scope: next })} />
      {problem}
      <div className="gate-actions">
        <button type="submit" className="button primary" data-hotkey="a" disabled={cannot} title={blocked || "a, or Ctrl+Enter"}>
          Approve
        </button>
        <button type="button" className="button" disabled={blocked !== ""} title={blocked} onClick={() => change({ mode: "edit", arguments: isWhole ? given : null })}>
          Approve with edits…
        </button>
        <button type="button" className="button danger" data-hotkey="r" disabled={blocked !== ""} title={blocked || "r"} onClick={() => change({ mode: "refuse" })}>
          Refuse…
        </button>
      </div>
      {blocked && <p className="small muted">{blocked}</p>}
    </AnswerForm>
  );
}

/** How far a yes goes. */
function ScopeOf({ gate, scope, onChange }: { gate: GateView; scope: NonNullable<AnswerBody["scope"]>; onChange: (scope: NonNullable<AnswerBody["scope"]>) => void }) {
  const scopes: [NonNullable<AnswerBody["scope"]>, string][] = [
    ["call", "this call"],
    ["run", `all calls of ${gate.tool} in this run`],
  ];
  if (gate.thread !== null) scopes.push(["thread", `all calls of ${gate.tool} in this conversation`]);
  return (
    <label className="row wrap gate-scope">
      <span className="muted">A yes is for</span>
      <select className="select" value={scope} onChange={(event) => onChange(event.target.value as NonNullable<AnswerBody["scope"]>)}>
        {scopes.map(([name, words]) => (
          <option key={name} value={name}>
            {words}
          </option>
        ))}
      </select>
    </label>
  );
}
