// The board. Cards change in place; while the pointer moves over the board, no card moves.

import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link } from "wouter";

import type { TaskRow } from "../../api/types.ts";
import { Age, Empty, Status } from "../../ui/basics.tsx";
import { answerDraft, AnswerBox } from "./answer-box.tsx";
import { useTextDraft } from "../../forms/drafts.ts";
import type { Shared } from "./shared.ts";
import { GoalForm } from "./start-forms.tsx";
import { attemptOf, type Column, columnOf, COLUMNS, countsText, isAnswered, shownStatus } from "./tasks.ts";

const REST = 1_200;
const MANY = 100;
/** The order in which a phone looks for its first column. */
const FIRST: readonly Column[] = ["needs", "working", "failed", "todo", "done"];

export function Board(props: Shared) {
  const { rows, address, go } = props;
  const board = useRef<HTMLDivElement>(null);
  const [columns, moved, settle] = useHeldColumns(rows, board);
  useBoardKeys(board);
  useEffect(() => {
    // The board is narrower beside a task: its card stays in sight.
    if (address.task !== null) board.current?.querySelector(`[data-task="${CSS.escape(address.task)}"]`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [address.task]);
  if (rows.length === 0) {
    return (
      <Empty mark="☰" title="No tasks yet">
        <p>Describe what to build. The team reads the repository, asks its questions, and makes a plan that you approve.</p>
        <GoalForm team={props.team.team} isFirst />
      </Empty>
    );
  }
  const chosen = address.column ?? FIRST.find((column) => columns.get(column)!.length > 0) ?? "todo";
  return (
    <>
      <div className="board-filter tabs" role="group" aria-label="Status">
        {COLUMNS.map(([column, name]) => (
          <button key={column} type="button" className="tab" aria-pressed={chosen === column} aria-current={chosen === column ? "page" : undefined} onClick={() => go({ column }, { replace: true })}>
            {name} <span>{columns.get(column)!.length}</span>
          </button>
        ))}
      </div>
      {moved > 0 && (
        <p className="board-moved" role="status">
          <button type="button" className="button small" onClick={settle}>
            {moved} {moved === 1 ? "card moves" : "cards move"} when the pointer rests
          </button>
        </p>
      )}
      <div ref={board} className="board">
        {COLUMNS.map(([column, name]) => (
          <BoardColumn key={column} {...props} column={column} name={name} tasks={columns.get(column)!} isChosen={chosen === column} />
        ))}
      </div>
    </>
  );
}

function BoardColumn({ column, name, tasks, isChosen, ...shared }: Shared & { column: Column; name: string; tasks: readonly TaskRow[]; isChosen: boolean }) {
  const [most, setMost] = useState(MANY);
  return (
    <section className={`board-column ${column}${isChosen ? " chosen" : ""}${tasks.length === 0 ? " none" : ""}`} aria-label={`${name}, ${tasks.length}`}>
      <h2 className="board-name">
        {name} <span className="muted">{tasks.length}</span>
      </h2>
      {tasks.length === 0 && <p className="board-empty small muted">{EMPTY[column]}</p>}
      {tasks.slice(0, most).map((row) => (
        <Card key={row.id} row={row} {...shared} />
      ))}
      {tasks.length > most && (
        <button type="button" className="button small" onClick={() => setMost(most + MANY)}>
          Show {Math.min(MANY, tasks.length - most)} more
        </button>
      )}
    </section>
  );
}

const EMPTY: Record<Column, string> = {
  todo: "No task is left to start.",
  working: "No agent is at work.",
  needs: "Nothing waits for you.",
  failed: "Nothing failed.",
  done: "Nothing is merged yet.",
};

function Card({ row, rows, team, critical, address, go }: Shared & { row: TaskRow }) {
  const [draft] = useTextDraft(answerDraft(team.team, row.key));
  const isOpen = address.task === row.key;
  const isCritical = critical.has(row.key);
  const column = columnOf(row);
  const status = isAnswered(row, rows) ? "answered" : shownStatus(row, team.running);
  const isAtWork = status === "in_progress";
  const waits = column === "todo" ? row.depends_on : [];
  return (
    <article className={`card${isOpen ? " open" : ""}${isCritical ? " critical" : ""}`}>
      <div className="row card-top">
        <Link href={go.to({ task: row.key })} className="card-title grow" data-task={row.key} aria-current={isOpen ? "true" : undefined}>
          {row.title}
        </Link>
      </div>
      <div className="row wrap card-facts small muted">
        <Status status={status} />
        {!row.approved && <span className="tag">to approve</span>}
        {isAtWork && <span>attempt {attemptOf(row)}</span>}
        {!isAtWork && row.attempts > 0 && (
          <span>
            {row.attempts} {row.attempts === 1 ? "attempt" : "attempts"}
          </span>
        )}
        {row.since > 0 && (column === "working" || column === "needs") && <Age at={row.since} />}
        {isCritical && <span className="sr-only">on the critical path</span>}
      </div>
      {row.doing !== null && isAtWork && <p className="card-doing mono small">{row.doing.text}</p>}
      {row.question !== "" && <p className="card-question">{row.question.length > 280 ? `${row.question.slice(0, 280)}…` : row.question}</p>}
      {(row.question !== "" || draft !== "") && <AnswerBox team={team.team} task={row.key} compact />}
      {row.question === "" && row.reason !== "" && column !== "done" && <p className="card-reason small">{row.reason}</p>}
      {waits.length > 0 && <p className="small muted truncate">after {waits.join(", ")}</p>}
      {row.outcomes !== null && column !== "todo" && <p className={`small ${(row.outcomes["failed"] ?? 0) > 0 ? "fault" : "muted"}`}>{countsText(row.outcomes)}</p>}
    </article>
  );
}

/** The tasks by column. While the pointer moves over the board, or something is typed there, cards
 *  stay where they are. */
function useHeldColumns(rows: readonly TaskRow[], board: { readonly current: HTMLElement | null }) {
  const [isHeld, setHeld] = useState(false);
  const places = useRef(new Map<number, Column>());
  useEffect(() => {
    const element = board.current;
    if (element === null) return;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const rest = () => {
      const typing = element.contains(document.activeElement) && document.activeElement!.matches("input, textarea");
      if (typing) timer = setTimeout(rest, REST);
      else setHeld(false);
    };
    const hold = () => {
      clearTimeout(timer);
      setHeld(true);
      timer = setTimeout(rest, REST);
    };
    const leave = () => {
      clearTimeout(timer);
      rest();
    };
    element.addEventListener("pointermove", hold);
    element.addEventListener("pointerdown", hold);
    element.addEventListener("focusin", hold);
    element.addEventListener("pointerleave", leave);
    return () => {
      clearTimeout(timer);
      element.removeEventListener("pointermove", hold);
      element.removeEventListener("pointerdown", hold);
      element.removeEventListener("focusin", hold);
      element.removeEventListener("pointerleave", leave);
    };
  }, [board, rows.length === 0]);
  let moved = 0;
  const shown = new Map<Column, TaskRow[]>(COLUMNS.map(([column]) => [column, []]));
  const next = new Map<number, Column>();
  for (const row of rows) {
    const wanted = columnOf(row);
    const before = places.current.get(row.id);
    const column = isHeld && before !== undefined ? before : wanted;
    if (column !== wanted) moved += 1;
    next.set(row.id, column);
    shown.get(column)!.push(row);
  }
  useEffect(() => {
    places.current = next;
  });
  const settle = useCallback(() => setHeld(false), []);
  return useMemo(() => [shown, moved, settle] as const, [rows, isHeld, moved]);
}

/** `j` and `k` go through the cards of the board. */
function useBoardKeys(board: { readonly current: HTMLElement | null }): void {
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog, [popover]")) return;
      if (event.key !== "j" && event.key !== "k") return;
      const cards = [...(board.current?.querySelectorAll<HTMLElement>("[data-task]") ?? [])].filter((card) => card.offsetParent !== null);
      const at = cards.indexOf(document.activeElement as HTMLElement);
      const step = event.key === "j" ? 1 : -1;
      cards[at < 0 ? 0 : Math.min(cards.length - 1, Math.max(0, at + step))]?.focus();
    };
    document.addEventListener("keydown", listen);
    return () => document.removeEventListener("keydown", listen);
  }, [board]);
}
