// The box for the next message: Enter sends, Shift+Enter begins a line, files are attached by a
// button, pasted, or dropped.

import { type ClipboardEvent, type KeyboardEvent, useEffect, useRef, useState } from "react";

import { upload } from "../../api/client.ts";
import { client, graphQuery } from "../../api/queries.ts";
import type { FileView, StudioGraph, TurnView } from "../../api/types.ts";
import { ACCEPTED } from "../../forms/inputs.tsx";
import type { Schema } from "../../forms/schema.ts";
import { useDraft } from "../../forms/drafts.ts";
import { useMay, useStudio } from "../../studio.tsx";
import { Problem } from "../../ui/basics.tsx";
import { FilePreview } from "../../ui/file-value.tsx";
import { Icon } from "../../ui/icons.tsx";
import { placeFiles, type SentFile } from "./turns.ts";

export interface Message {
  text: string;
  files: SentFile[];
  /** It is sent as it was before: only what is not stored is given again. */
  isAsItWas?: boolean;
}

interface ComposerProps {
  graph: StudioGraph;
  thread: string;
  /** The turn whose message is edited, and its text. */
  edited: { turn: TurnView; text: string } | null;
  onCancelEdit: () => void;
  /** The turn that is not over. */
  open: TurnView | null;
  isSending: boolean;
  error: unknown;
  onSend: (message: Message) => Promise<unknown>;
  onStop: () => void;
}

export function Composer({ graph, thread, edited, onCancelEdit, open, isSending, error, onSend, onStop }: ComposerProps) {
  const studio = useStudio();
  const run = useMay("run");
  const [draft, setDraft, forget] = useDraft<Message>(edited === null ? `chat ${graph.name} ${thread}` : `edit ${edited.turn.run_id}`, () => ({ text: edited?.text ?? "", files: [] }));
  const latest = useRef(draft);
  latest.current = draft;
  const [sending, setSending] = useState<string[]>([]);
  const [problem, setProblem] = useState<unknown>(null);
  const [isOver, setOver] = useState(false);
  const box = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const takesFiles = graph.files.length > 0;
  useEffect(() => {
    const area = box.current;
    if (area === null) return;
    if (edited !== null || !matchMedia("(max-width: 760px)").matches) {
      area.focus({ preventScroll: true });
      area.setSelectionRange(area.value.length, area.value.length);
    }
  }, []);

  const attach = async (files: readonly File[]) => {
    setProblem(null);
    for (const file of files) {
      setSending((before) => [...before, file.name]);
      try {
        const found = await upload<FileView>("/files", file);
        const next = [...latest.current.files, { hash: found.hash, type: found.type, name: found.name }];
        const { start_schema } = await client.ensureQueryData(graphQuery(graph.name));
        if (placeFiles(next, graph.files, start_schema as Schema).left.length > 0) setProblem(new Error(`${graph.start} takes no more files like ${found.name || found.type}`));
        else {
          latest.current = { ...latest.current, files: next };
          setDraft(latest.current);
        }
      } catch (reason) {
        setProblem(reason);
      } finally {
        setSending((before) => before.toSpliced(before.indexOf(file.name), 1));
      }
    }
  };
  const blocked = !run.may
    ? run.why
    : open !== null && edited === null
      ? open.status === "waiting"
        ? "The turn waits: answer above, or stop it."
        : "The turn is in progress."
      : "";
  const canSend = blocked === "" && !isSending && sending.length === 0 && draft.text.trim() !== "";
  const send = () => {
    if (!canSend) return;
    const message = latest.current;
    setDraft({ text: "", files: [] });
    onSend(message).then(forget, () => {
      // What was typed is there again, unless something else was typed since.
      if (latest.current.text === "") setDraft(message);
    });
  };
  const key = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (event.nativeEvent.isComposing || event.keyCode === 229) return;
    if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape" && edited !== null) {
      event.preventDefault();
      onCancelEdit();
    }
  };
  const paste = (event: ClipboardEvent) => {
    const files = [...event.clipboardData.files];
    if (files.length === 0 || !takesFiles) return;
    event.preventDefault();
    void attach(files);
  };
  const stops = open !== null && open.status !== "interrupted";
  return (
    <div
      className={`chat-composer${isOver ? " is-over" : ""}`}
      onDragOver={(event) => {
        if (!takesFiles || !event.dataTransfer.types.includes("Files")) return;
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        setOver(false);
        if (!takesFiles) return;
        event.preventDefault();
        void attach([...event.dataTransfer.files]);
      }}
    >
      {(error ?? problem) !== null && (error ?? problem) !== undefined && <Problem error={error ?? problem} />}
      {edited !== null && (
        <p className="row small muted">
          <span className="grow">The new message replaces the last one.</span>
          <button type="button" className="button quiet small" onClick={onCancelEdit}>
            Keep the last one
          </button>
        </p>
      )}
      {(draft.files.length > 0 || sending.length > 0) && (
        <ul className="chat-files" aria-label="Attached">
          {draft.files.map((file, index) => (
            <li key={file.hash + index}>
              <FilePreview file={file} />
              <button type="button" className="button quiet small" aria-label={`Remove ${file.name || "file"}`} onClick={() => setDraft({ ...draft, files: draft.files.toSpliced(index, 1) })}>
                ✕
              </button>
            </li>
          ))}
          {sending.map((name) => (
            <li key={name} className="small muted" role="status">
              Sending {name}…
            </li>
          ))}
        </ul>
      )}
      <div className="chat-box">
        <textarea
          ref={box}
          className="chat-input"
          rows={1}
          aria-label="Message"
          placeholder="Write a message…"
          value={draft.text}
          onChange={(event) => setDraft({ ...draft, text: event.target.value })}
          onKeyDown={key}
          onPaste={paste}
        />
        <div className="chat-buttons">
          {takesFiles && (
            <>
              <input ref={picker} type="file" multiple hidden accept={`${ACCEPTED.image},${ACCEPTED.document}`} onChange={(event) => void attach([...(event.target.files ?? [])]).then(() => picker.current && (picker.current.value = ""))} />
              <button type="button" className="button quiet" aria-label="Attach files" title="Attach files. You can also paste or drop them." onClick={() => picker.current?.click()}>
                <Icon name="clip" />
              </button>
            </>
          )}
          <span className="grow small muted truncate" title={blocked}>
            {blocked || (studio.lm ? `model ${studio.lm}` : "")}
          </span>
          {stops && (
            <button type="button" className="button" onClick={onStop} title="Esc">
              ■ Stop
            </button>
          )}
          {(!stops || edited !== null) && (
            <button type="button" className="button primary" disabled={!canSend} title={blocked || "Enter"} onClick={send}>
              Send
            </button>
          )}
        </div>
      </div>
    </div>
  );
}
