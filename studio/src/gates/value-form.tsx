// The answer to a gate: a form made from the type of the field.

import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useId } from "react";

import { ApiProblem } from "../api/client.ts";
import { faultsBefore, faultsIn, initialOf, kindOf, type Schema } from "../forms/schema.ts";
import { SchemaForm } from "../forms/schema-form.tsx";
import { useStudio } from "../studio.tsx";
import { Problem } from "../ui/basics.tsx";
import { fieldOf, firstAnswer, gateKey, say, sendAnswer } from "./answers.ts";
import { useDraft } from "../forms/drafts.ts";
import type { FormOfGate } from "./gate-card.tsx";

export function ValueForm({ gate, blocked, onAnswered }: FormOfGate) {
  const studio = useStudio();
  const schema = (gate.answer_schema ?? {}) as Schema;
  const [value, setValue, forget] = useDraft<{ value?: unknown }>(gateKey(gate), () => ({ value: initialOf(schema, schema) }));
  const send = useMutation({
    mutationFn: () => sendAnswer(gate, { value: value.value ?? null }),
    onSuccess: () => {
      forget();
      onAnswered({ by: studio.user, said: say(value.value) }, true);
    },
    onError: (error) => {
      const first = firstAnswer(error);
      if (first !== null) onAnswered(first, false);
    },
  });
  if (gate.answer_schema === null && blocked !== "") return <p className="note">{blocked}</p>;
  const before = faultsBefore(value.value);
  const faults = send.error instanceof ApiProblem ? faultsIn(send.error.faults, "body", "value") : [];
  const isModel = kindOf(schema, schema).kind === "model";
  return (
    <AnswerForm onSend={() => before.length === 0 && !send.isPending && blocked === "" && send.mutate()}>
      <SchemaForm
        schema={schema}
        value={value.value}
        onChange={(next) => setValue({ value: next })}
        faults={faults}
        {...(isModel ? {} : { label: fieldOf(gate.place) })}
      />
      {send.error && faults.length === 0 && firstAnswer(send.error) === null && <Problem error={send.error} />}
      <div className="gate-actions">
        <button type="submit" className="button primary" disabled={blocked !== "" || send.isPending || before.length > 0} title={blocked || before[0]?.msg || "Ctrl+Enter"}>
          {send.isPending ? "Sending…" : "Send answer"}
        </button>
        <span className="small muted">{before.length > 0 ? [...before[0]!.loc, before[0]!.msg].join(": ") : `answering as ${studio.user}`}</span>
      </div>
      {blocked && <p className="small muted">{blocked}</p>}
    </AnswerForm>
  );
}

/** A form that Ctrl+Enter sends from every field. */
export function AnswerForm({ onSend, children, label = "Answer" }: { onSend: () => void; children: React.ReactNode; label?: string }) {
  const id = useId();
  return (
    <form
      id={id}
      className="gate-form"
      aria-label={label}
      onSubmit={(event: FormEvent) => {
        event.preventDefault();
        onSend();
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          onSend();
        }
      }}
    >
      {children}
    </form>
  );
}
