// A question of a task, and the box for its answer. What is typed stays while the page changes.

import { useMutation, useQuery } from "@tanstack/react-query";
import { type FormEvent, useId } from "react";

import { api, pathOf } from "../../api/client.ts";
import type { BlockerView } from "../../api/types.ts";
import { useMay } from "../../studio.tsx";
import { Age, Problem } from "../../ui/basics.tsx";
import { useTextDraft } from "../../forms/drafts.ts";
import { blockersQuery, refreshTeam } from "./queries.ts";
import { useAct } from "./steering.tsx";

/** The box for the open question of a task. Typed text stays when another person answers first. */
export function AnswerBox({ team, task, compact = false }: { team: string; task: string; compact?: boolean }) {
  const { data, error } = useQuery(blockersQuery(team, true));
  const asked = data?.blockers.filter((each) => each.task === task) ?? [];
  const found = asked.find((each) => each.answer === null) ?? asked.at(-1);
  if (found === undefined) return error ? <Problem error={error} /> : null;
  return <Answer key={found.id} blocker={found} compact={compact} />;
}

export const answerDraft = (team: string, task: string) => `answer/${team}/${task}`;

/** An unsent answer to a question that another person has answered meanwhile. */
function Late({ blocker }: { blocker: BlockerView }) {
  const { may, why } = useMay("run");
  const [draft, , forget] = useTextDraft(answerDraft(blocker.team, blocker.task));
  const act = useAct(blocker.team);
  return (
    <div className="late" role="status">
      <p>
        <span className="strong">{blocker.answered_by ?? "A run"} was first:</span> {blocker.answer}
      </p>
      <p className="value text muted">Not sent: {draft}</p>
      <div className="row wrap">
        <button type="button" className="button small" disabled={!may || act.isPending} title={why} onClick={() => act.mutate({ action: "note", task: blocker.task, text: draft }, { onSuccess: forget })}>
          Send it as a note
        </button>
        <button type="button" className="button quiet small" onClick={forget}>
          Discard
        </button>
      </div>
      {act.error !== null && <Problem error={act.error} />}
    </div>
  );
}

/** All questions of a task, with who answered. */
export function Questions({ team, task }: { team: string; task: string }) {
  const { data } = useQuery(blockersQuery(team, true));
  const found = data?.blockers.filter((each) => each.task === task) ?? [];
  if (found.length === 0) return null;
  return (
    <section className="stack small-gap" aria-label="Questions">
      <h3>Questions</h3>
      {found.map((each) => (
        <div key={each.id} className={`question${each.answer === null ? " open" : ""}`}>
          <p className="value text">{each.question}</p>
          {each.since > 0 && (
            <p className="small muted">
              asked <Age at={each.since} />
            </p>
          )}
          {each.answer === null ? (
            <Answer blocker={each} compact={false} />
          ) : (
            <p className="value text answered">
              <span className="muted">{each.answered_by === null ? "a run ended it" : `${each.answered_by} answered`}: </span>
              {each.answer}
            </p>
          )}
          {each.answer !== null && each === found.at(-1) && <Answer blocker={each} compact={false} />}
        </div>
      ))}
    </section>
  );
}

function Answer({ blocker, compact }: { blocker: BlockerView; compact: boolean }) {
  const { may, why } = useMay("answer");
  const id = useId();
  const [draft, setDraft, forget] = useTextDraft(answerDraft(blocker.team, blocker.task));
  const send = useMutation({
    mutationFn: (answer: string) => api<BlockerView>(pathOf`/teams/${blocker.team}/blockers/${blocker.id}`, { method: "POST", body: { answer } }),
    onSuccess: forget,
    onSettled: () => refreshTeam(blocker.team),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (draft.trim() !== "" && !send.isPending) send.mutate(draft);
  };
  if (blocker.answer !== null) return draft !== "" && !send.isPending && !send.isSuccess ? <Late blocker={blocker} /> : null;
  return (
    <form className="answer" onSubmit={submit}>
      <label htmlFor={id} className="sr-only">
        Answer to {blocker.task}
      </label>
      <textarea
        id={id}
        className="textarea"
        rows={compact ? 1 : 2}
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
        {blocker.digest !== null && (
          <button type="button" className="button small" disabled={!may || send.isPending} title={why} onClick={() => send.mutate("yes")}>
            Yes, allow it
          </button>
        )}
        <span className="small muted" aria-live="polite">
          {send.isPending && "Sending…"}
          {send.isSuccess && "Answered."}
        </span>
      </div>
      {send.error !== null && <Problem error={send.error} />}
    </form>
  );
}
