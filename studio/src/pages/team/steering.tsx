// Requests of a person to a task or to the run, and their outcome.

import { useMutation } from "@tanstack/react-query";
import { type FormEvent, useEffect, useState } from "react";

import { api, pathOf } from "../../api/client.ts";
import type { ActionBody, ActionView, TaskRow } from "../../api/types.ts";
import { useMay } from "../../studio.tsx";
import { Problem } from "../../ui/basics.tsx";
import { ConfirmDialog } from "../../ui/overlays.tsx";
import { useTextDraft } from "../../forms/drafts.ts";
import { refreshTeam } from "./queries.ts";
import { type Offer, offersOf } from "./tasks.ts";

/** Sends a request to the team. */
export function useAct(team: string) {
  return useMutation({
    mutationFn: (body: ActionBody) => api<ActionView>(pathOf`/teams/${team}/actions`, { method: "POST", body }),
    onSettled: () => refreshTeam(team),
  });
}

const WHAT: Record<string, string> = { note: "The note", stop: "Stop", kill: "Kill", pause: "Pause", resume: "Resume", retry: "Retry", skip: "Skip" };

/** The outcome of a request. */
export function Asked({ asked }: { asked: ActionView | undefined }) {
  const [isOld, setOld] = useState(false);
  useEffect(() => {
    setOld(false);
    const timer = setTimeout(() => setOld(true), 10_000);
    return () => clearTimeout(timer);
  }, [asked]);
  return (
    <span className="small muted" aria-live="polite">
      {asked && !isOld && `${WHAT[asked.action] ?? asked.action}: ${asked.running ? "the run takes it now." : "no run is in progress; the next run takes it."}`}
    </span>
  );
}

/** A question before an action of a person on a task or on the run. */
export function Confirm({ offer, name, onYes, onClose }: { offer: Offer; name: string; onYes: () => void; onClose: () => void }) {
  return (
    <ConfirmDialog title={`${offer.label} ${name}?`} action={offer.label} onConfirm={onYes} onClose={onClose}>
      <p>{offer.warning}</p>
    </ConfirmDialog>
  );
}

/** The actions on a task, and the box for a note to its agent. */
export function Steering({ team, row, isRunning }: { team: string; row: TaskRow; isRunning: boolean }) {
  const { may, why } = useMay("run");
  const act = useAct(team);
  const [asking, setAsking] = useState<Offer | null>(null);
  const ask = (offer: Offer) => act.mutate({ action: offer.action, task: row.key });
  const offers = offersOf(row);
  return (
    <section className="steering" aria-label="Steer">
      {offers.length > 0 ? (
        <NoteBox team={team} task={row.key} act={act} isAtWork={isRunning && row.status === "in_progress"} />
      ) : (
        <p className="small muted">The work is merged into the team's branch. For further changes, add a task to the plan.</p>
      )}
      <div className="row wrap">
        {offers.map((offer) => (
          <button
            key={offer.action}
            type="button"
            className={`button small${offer.warning === undefined ? "" : " danger"}`}
            disabled={!may || act.isPending}
            title={why}
            onClick={() => (offer.warning === undefined ? ask(offer) : setAsking(offer))}
          >
            {offer.label}
          </button>
        ))}
        <Asked asked={act.data} />
      </div>
      {act.error !== null && <Problem error={act.error} />}
      {asking !== null && (
        <Confirm
          offer={asking}
          name={row.key}
          onClose={() => setAsking(null)}
          onYes={() => {
            setAsking(null);
            ask(asking);
          }}
        />
      )}
    </section>
  );
}

export const noteDraft = (team: string, task: string) => `note/${team}/${task}`;
export const noteBox = "team-note";

function NoteBox({ team, task, act, isAtWork }: { team: string; task: string; act: ReturnType<typeof useAct>; isAtWork: boolean }) {
  const { may, why } = useMay("run");
  const [draft, setDraft, forget] = useTextDraft(noteDraft(team, task));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (draft.trim() === "" || act.isPending) return;
    act.mutate({ action: "note", task, text: draft }, { onSuccess: forget });
  };
  return (
    <form className="row note-form" onSubmit={submit}>
      <label htmlFor={noteBox} className="sr-only">
        Note to the agent
      </label>
      <textarea
        id={noteBox}
        className="textarea grow"
        rows={1}
        placeholder={isAtWork ? "Note to the agent: it reads it before its next question…" : "Note for the next attempt…"}
        value={draft}
        disabled={!may}
        maxLength={20_000}
        onChange={(event) => setDraft(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
        }}
      />
      <button type="submit" className="button primary" disabled={!may || draft.trim() === "" || act.isPending} title={why || "Ctrl+Enter"}>
        Send
      </button>
    </form>
  );
}
