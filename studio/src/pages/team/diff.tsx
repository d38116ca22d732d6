// The change of a task or of one attempt, by file and hunk. Rows are virtual, and nothing is read
// again while the commit is the same.

import { useQueries, useQuery } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";

import { ApiProblem } from "../../api/client.ts";
import type { ChangedFile } from "../../api/types.ts";
import { useMay } from "../../studio.tsx";
import { Empty, Loading, Problem } from "../../ui/basics.tsx";
import { formatCount } from "../../ui/format.ts";
import { describeFile, type DiffRow, longestOf, noteOf, rowsOf } from "./diff-rows.ts";
import { setDraft } from "../../forms/drafts.ts";
import { diffQuery } from "./queries.ts";
import { noteBox, noteDraft } from "./steering.tsx";
import type { TabProps } from "./task-about.tsx";
import { offersOf } from "./tasks.ts";

const ROW = 20;

export function Diff({ team, details, address, go }: TabProps) {
  const { task, attempts } = details;
  const shown = attempts.filter((each) => each.commit !== "");
  const state = address.attempt === null ? `${task.commit ?? ""} ${task.status} ${shown.at(-1)?.commit ?? ""}` : (shown.find((each) => each.number === address.attempt)?.commit ?? "");
  const isStarted = task.commit !== null || task.base !== null || attempts.length > 0;
  const { data, error, isFetching } = useQuery({ ...diffQuery(team, task.key, address.attempt, state), enabled: isStarted });
  const [full, setFull] = useState<readonly string[]>([]);
  const whole = useQueries({ queries: full.map((path) => diffQuery(team, task.key, address.attempt, state, { path, lines: 0 })) });
  useEffect(() => setFull([]), [state, address.attempt]);
  const isMerged = task.commit !== null;
  const loaded = whole.map((each) => each.dataUpdatedAt).join(" ");
  const files = useMemo(() => {
    const found = new Map<string, ChangedFile>(whole.flatMap((each) => each.data?.files.map((file) => [file.path, file] as const) ?? []));
    return data?.files.map((file) => found.get(file.path) ?? file);
  }, [data, loaded]);
  const canNote = offersOf({ status: task.status, paused: false }).length > 0;
  return (
    <div className="diff-tab">
      <div className="row wrap diff-head">
        <div className="tabs" role="group" aria-label="Change">
          <button type="button" className="tab" aria-current={address.attempt === null ? "page" : undefined} onClick={() => go({ attempt: null, file: null }, { replace: true })}>
            {isMerged ? "Merge" : "All of it"}
          </button>
          {shown.map((each) => (
            <button key={each.number} type="button" className="tab" aria-current={address.attempt === each.number ? "page" : undefined} onClick={() => go({ attempt: each.number, file: null }, { replace: true })}>
              Attempt {each.number} {each.outcome === "passed" ? "✓" : "✗"}
            </button>
          ))}
        </div>
        <span className="small muted" aria-live="polite">
          {(isFetching || whole.some((each) => each.isFetching)) && "Loading…"}
        </span>
      </div>
      {whole.map((each, index) => each.error && <Problem key={full[index]} error={each.error} />)}
      {!isStarted ? (
        <Empty mark="±" title="No change yet">
          <p>The change of the agent appears here by file and line.</p>
        </Empty>
      ) : files === undefined ? (
        error ? (
          error instanceof ApiProblem && (error.status === 404 || error.status === 409) ? (
            <Empty mark="±" title="No change yet">
              <p>{error.message}</p>
            </Empty>
          ) : (
            <Problem error={error} />
          )
        ) : (
          <Loading lines={8} />
        )
      ) : files.length === 0 ? (
        <Empty mark="±" title="Nothing is changed">
          <p>{address.attempt === null ? "The task has no commit yet." : "This attempt changed no file."}</p>
        </Empty>
      ) : (
        <Files key={`${address.attempt} ${state}`} files={files} file={address.file} onFile={(file) => go({ file }, { replace: true })} onAll={(path) => setFull([...full, path])} note={canNote ? { team, task: task.key } : null} />
      )}
    </div>
  );
}

interface FilesProps {
  files: readonly ChangedFile[];
  file: string | null;
  onFile: (path: string | null) => void;
  onAll: (path: string) => void;
  note: { team: string; task: string } | null;
}

function Files({ files, file, onFile, onAll, note }: FilesProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const [open, setOpen] = useState<ReadonlyMap<string, boolean>>(() => new Map(file === null ? [] : [[file, true]]));
  const rows = useMemo(() => rowsOf(files, open), [files, open]);
  const longest = useMemo(() => longestOf(rows), [rows]);
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => scroller.current, estimateSize: () => ROW, overscan: 20 });
  const placeOf = (path: string, from = rows) => from.findIndex((row) => row.kind === "file" && row.file.path === path);
  useEffect(() => {
    if (file !== null && placeOf(file) > 0) virtual.scrollToIndex(placeOf(file), { align: "start" });
  }, []);
  const fold = (path: string, isOpen: boolean) => setOpen(new Map(open).set(path, isOpen));
  const show = (path: string) => {
    const next = new Map(open).set(path, true);
    setOpen(next);
    onFile(path);
    const place = placeOf(path, rowsOf(files, next));
    requestAnimationFrame(() => virtual.scrollToIndex(place, { align: "start" }));
  };
  const starts = useMemo(() => rows.flatMap((row, index) => (row.kind === "file" ? [index] : [])), [rows]);
  const top = virtual.range?.startIndex;
  const here = top === undefined ? undefined : Math.max(0, starts.findLastIndex((start) => start <= top));
  const added = files.reduce((sum, each) => sum + each.added, 0);
  const removed = files.reduce((sum, each) => sum + each.removed, 0);
  return (
    <>
      <details className="diff-files" open={files.length <= 8}>
        <summary className="small">
          {formatCount(files.length)} {files.length === 1 ? "file" : "files"} <Counts added={added} removed={removed} />
        </summary>
        <ul>
          {files.slice(0, 500).map((each) => (
            <li key={each.path}>
              <button type="button" className="diff-file" aria-current={file === each.path ? "true" : undefined} onClick={() => show(each.path)}>
                <span className="mono truncate grow">{each.path}</span>
                <span className="small muted">{describeFile(each).join(", ")}</span>
                <Counts added={each.added} removed={each.removed} />
              </button>
            </li>
          ))}
          {files.length > 500 && <li className="small muted">and {formatCount(files.length - 500)} more, below</li>}
        </ul>
      </details>
      {starts.length > 1 && (
        <div className="row diff-current">
          <span className="mono small truncate grow">{here === undefined ? "" : files[here]!.path}</span>
          <span className="small muted">
            {(here ?? 0) + 1} of {formatCount(files.length)}
          </span>
          <button type="button" className="button quiet small" disabled={here === undefined || here === 0} aria-label="File before" onClick={() => virtual.scrollToIndex(starts[here! - 1]!, { align: "start" })}>
            ↑
          </button>
          <button type="button" className="button quiet small" disabled={here === undefined || here + 1 >= starts.length} aria-label="Next file" onClick={() => virtual.scrollToIndex(starts[here! + 1]!, { align: "start" })}>
            ↓
          </button>
        </div>
      )}
      <div ref={scroller} className="diff-scroll" role="region" aria-label="Lines of the change" tabIndex={0}>
        <div className="diff-lines" style={{ height: virtual.getTotalSize(), minWidth: `${longest + 18}ch` }}>
          {virtual.getVirtualItems().map((item) => (
            <div key={item.key} className="diff-place" style={{ transform: `translateY(${item.start}px)`, height: ROW }}>
              <Row row={rows[item.index]!} note={note} onFold={fold} onAll={onAll} />
            </div>
          ))}
        </div>
      </div>
    </>
  );
}

interface RowProps {
  row: DiffRow;
  note: FilesProps["note"];
  onFold: (path: string, isOpen: boolean) => void;
  onAll: (path: string) => void;
}

const WORDS = { "+": "added", "-": "removed", " ": "" };

function Row({ row, note, onFold, onAll }: RowProps) {
  switch (row.kind) {
    case "file":
      return (
        <button type="button" className="diff-row diff-name" aria-expanded={row.isOpen} onClick={() => onFold(row.file.path, !row.isOpen)}>
          <span aria-hidden="true">{row.isOpen ? "▾" : "▸"}</span>
          <span className="mono strong">{row.file.path}</span>
          {describeFile(row.file).map((each) => (
            <span key={each} className="tag">
              {each}
            </span>
          ))}
          <Counts added={row.file.added} removed={row.file.removed} />
          {!row.isOpen && <span className="small muted">folded: open</span>}
        </button>
      );
    case "hunk":
      return <div className="diff-row diff-hunk">{row.text}</div>;
    case "say":
      return <div className="diff-row diff-say">{row.text}</div>;
    case "cut":
      return (
        <div className="diff-row diff-say">
          The rest is left out.{" "}
          <button type="button" className="button quiet small diff-all" onClick={() => onAll(row.path)}>
            Show all of it
          </button>
        </div>
      );
    case "line":
      return (
        <div className={`diff-row diff-line ${row.sign === "+" ? "added" : row.sign === "-" ? "removed" : ""}`}>
          <span className="diff-number">{row.old}</span>
          <span className="diff-number">{row.new}</span>
          {note !== null && <NoteButton row={row} note={note} />}
          <span className="diff-sign" aria-hidden="true">
            {row.sign}
          </span>
          {row.sign !== " " && <span className="sr-only">{WORDS[row.sign]}: </span>}
          <code className="diff-text">{row.text}</code>
        </div>
      );
  }
}

function NoteButton({ row, note }: { row: Extract<DiffRow, { kind: "line" }>; note: { team: string; task: string } }) {
  const { may } = useMay("run");
  const write = () => {
    setDraft(noteDraft(note.team, note.task), noteOf(row));
    const box = document.getElementById(noteBox) as HTMLTextAreaElement | null;
    box?.focus();
    requestAnimationFrame(() => box?.setSelectionRange(box.value.length, box.value.length));
  };
  return (
    <button type="button" className="diff-note" disabled={!may} title="Note to the agent about this line" aria-label={`Note about line ${row.new ?? row.old}`} onClick={write}>
      +
    </button>
  );
}

function Counts({ added, removed }: { added: number; removed: number }) {
  return (
    <span className="diff-counts small">
      <span className="plus">+{formatCount(added)}</span> <span className="minus">−{formatCount(removed)}</span>
    </span>
  );
}
