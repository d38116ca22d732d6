// A turn: the message, what was done for it, and the reply.

import { useQuery } from "@tanstack/react-query";
import { Link } from "wouter";

import { api, pathOf } from "../../api/client.ts";
import { gatesQuery } from "../../api/queries.ts";
import type { StudioGraph, TurnDetails, TurnView } from "../../api/types.ts";
import { GateCard } from "../../gates/gate-card.tsx";
import { gateKey } from "../../gates/answers.ts";
import { useMay } from "../../studio.tsx";
import { Age, Copy, Problem, useNow } from "../../ui/basics.tsx";
import { formatSeconds } from "../../ui/format.ts";
import { FilePreview } from "../../ui/file-value.tsx";
import { Markdown } from "../../ui/markdown.tsx";
import { ShownValue } from "../../ui/value.tsx";
import { Calls, Thoughts } from "./activity.tsx";
import { filesIn, OPEN, typedText } from "./turns.ts";

interface TurnProps {
  graph: StudioGraph;
  thread: string;
  turn: TurnView;
  /** It is on its way to the server. */
  isSent: boolean;
  isLast: boolean;
  /** What is written now, by place; null for a turn that is over. */
  texts: Readonly<Record<string, string>> | null;
  onRetry: () => void;
  onEdit: (text: string) => void;
  onResume: () => void;
  onDrop: () => void;
  isBusy: boolean;
}

type EndProps = Omit<TurnProps, "onEdit"> & { onEdit: () => void };

export function Turn(props: TurnProps) {
  const { graph, thread, turn, isSent, texts } = props;
  const isOpen = OPEN.has(turn.status);
  const { data: details } = useQuery({
    queryKey: ["turn", thread, turn.run_id, isOpen ? "open" : turn.status],
    queryFn: ({ signal }) => api<TurnDetails>(pathOf`/threads/${thread}/turns/${turn.run_id}`, { signal }),
    enabled: !isSent,
    staleTime: isOpen ? 0 : Infinity,
    placeholderData: (before) => before,
  });
  const files = details === undefined ? [] : filesIn(details.start);
  const written = writtenReply(graph, texts);
  const reply = turn.reply || written;
  const typed = typedText(details, graph.message ?? "") ?? turn.user;
  const onEdit = () => props.onEdit(typed);
  return (
    <article className="turn" data-status={turn.status}>
      <div className="turn-user">
        <p className="turn-name">
          You <span className="small muted"><Age at={turn.started} /></span>
        </p>
        <div className="turn-said">
          <Markdown text={typed} />
          {files.length > 0 && (
            <div className="chat-files">
              {files.map((file, index) => (
                <FilePreview key={file.hash + index} file={file} />
              ))}
            </div>
          )}
        </div>
      </div>
      <div className="turn-reply">
        <p className="turn-name">{graph.name}</p>
        <Thoughts thoughts={details?.thoughts ?? []} now={thinking(texts)} />
        {details !== undefined && <Calls calls={details.calls} />}
        {reply !== "" && <Reply graph={graph} details={details} text={reply} isOver={turn.status === "ended"} />}
        {texts !== null && (turn.status === "running" || turn.status === "queued") && <Working turn={turn} texts={texts} isWriting={written !== ""} />}
        {turn.status === "waiting" && !isSent && <Questions turn={turn} />}
        <HowItEnded {...props} onEdit={onEdit} />
        {turn.status === "ended" && <Foot {...props} onEdit={onEdit} />}
      </div>
    </article>
  );
}

/** The text in progress of the field that is the reply. */
function writtenReply(graph: StudioGraph, texts: Readonly<Record<string, string>> | null): string {
  for (const [place, text] of Object.entries(texts ?? {})) {
    const [, node, field] = /^\d+:([^./]+)\.([^./[]+)$/.exec(place) ?? [];
    if (node !== undefined && graph.replies[node] === field) return text;
  }
  return "";
}

/** What a model thinks now: the text at the place of a node, without a field. */
function thinking(texts: Readonly<Record<string, string>> | null): string {
  return Object.entries(texts ?? {}).find(([place]) => !place.slice(place.lastIndexOf("/") + 1).includes("."))?.[1] ?? "";
}

function Reply({ graph, details, text, isOver }: { graph: StudioGraph; details: TurnDetails | undefined; text: string; isOver: boolean }) {
  const isText = !isOver || details?.end == null || details.end in graph.replies;
  if (isText) return <Markdown text={text} />;
  return (
    <dl className="fields">
      {Object.entries(details.reply).map(([name, value]) => (
        <div key={name} style={{ display: "contents" }}>
          <dt>{name}</dt>
          <dd>
            <ShownValue value={value} />
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Working({ turn, texts, isWriting }: { turn: TurnView; texts: Readonly<Record<string, string>>; isWriting: boolean }) {
  const now = useNow(turn.started);
  const place = Object.keys(texts).findLast((each) => each.includes("."));
  const node = place === undefined ? "" : place.replace(/^\d+:/, "").replaceAll(/\/\d+:/g, " › ");
  return (
    <p className="turn-working muted small" role="status">
      <span className="dots" aria-hidden="true" />
      {isWriting ? "writing" : node ? `writing ${node}` : turn.status === "queued" ? "begins" : "thinking"}
      <span aria-hidden="true">{now - turn.started > 2 ? ` · ${formatSeconds(Math.floor(now - turn.started))}` : ""}</span>
    </p>
  );
}

function Questions({ turn }: { turn: TurnView }) {
  const { data, error } = useQuery(gatesQuery({ base: "", run: turn.run_id }, { limit: 100 }));
  if (error) return <Problem error={error} />;
  const gates = data?.gates ?? [];
  return gates.map((gate) => (
    <div key={gateKey(gate)} className="panel turn-gate">
      <GateCard gate={gate} isInside answered={gate.answered ? { by: gate.answered_by ?? "", said: "the run continues when all questions are answered" } : null} />
      <p className="small muted">
        Also in the <Link href={`/inbox?item=${encodeURIComponent(gateKey(gate))}`}>inbox</Link>.
      </p>
    </div>
  ));
}

/** Why a turn has no reply, and the actions on it. */
function HowItEnded({ turn, isLast, isBusy, onRetry, onEdit, onResume, onDrop }: EndProps) {
  const edit = useMay("edit");
  const run = useMay("run");
  const link = `/runs/${encodeURIComponent(turn.run_id)}`;
  const retry = isLast && (
    <>
      <button type="button" className="button small" disabled={!edit.may || isBusy} title={edit.why} onClick={onRetry}>
        Try again
      </button>
      <button type="button" className="button small" disabled={!edit.may || isBusy} title={edit.why} onClick={onEdit}>
        Edit and send again
      </button>
    </>
  );
  switch (turn.status) {
    case "failed":
      return (
        <Problem error={turn.error || "the turn failed"}>
          <p className="row wrap turn-actions">
            {retry} <Link href={link}>Details</Link> <span className="small">Later turns do not see this one.</span>
          </p>
        </Problem>
      );
    case "cancelled":
      return (
        <div className="note row wrap turn-actions">
          <span>Stopped. Later turns do not see this one.</span> {retry} <Link href={link}>Details</Link>
        </div>
      );
    case "interrupted":
      return (
        <div className="note row wrap turn-actions">
          <span>The process of this turn has ended.</span>
          <button type="button" className="button small" disabled={!run.may || isBusy} title={run.why} onClick={onResume}>
            Continue
          </button>
          <button type="button" className="button small" disabled={!run.may || isBusy} title={run.why} onClick={onDrop}>
            Drop it
          </button>
          <Link href={link}>Details</Link>
        </div>
      );
    default:
      return null;
  }
}

function Foot({ turn, isLast, isBusy, onRetry, onEdit }: EndProps) {
  const edit = useMay("edit");
  return (
    <p className="row wrap turn-foot small muted">
      <Copy text={turn.reply} />
      {isLast && (
        <>
          <button type="button" className="button quiet small" disabled={!edit.may || isBusy} title={edit.why} onClick={onRetry}>
            Try again
          </button>
          <button type="button" className="button quiet small" disabled={!edit.may || isBusy} title={edit.why} onClick={onEdit}>
            Edit
          </button>
        </>
      )}
      <Link href={`/runs/${encodeURIComponent(turn.run_id)}`}>Open run</Link>
    </p>
  );
}
