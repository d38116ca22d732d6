// What a task is, why it is where it is, and how each attempt corrected the one before.

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";
import { Link } from "wouter";

import type { AttemptRow, TaskDetails, TaskRow } from "../../api/types.ts";
import { Status } from "../../ui/basics.tsx";
import { formatCost, formatCount } from "../../ui/format.ts";
import { Markdown } from "../../ui/markdown.tsx";
import type { Address, Go } from "./address.ts";
import { Questions } from "./answer-box.tsx";
import { attemptsQuery } from "./queries.ts";
import { countsText, shownStatus } from "./tasks.ts";

export interface TabProps {
  team: string;
  details: TaskDetails;
  address: Address;
  go: Go;
}

export function TaskAbout({ team, details, go, rows }: TabProps & { rows: readonly TaskRow[] }) {
  const { task } = details;
  const known = new Map(rows.map((row) => [row.key, row]));
  const waiters = rows.filter((row) => row.depends_on.includes(task.key)).map((row) => row.key);
  const links = (keys: readonly string[]): ReactNode =>
    keys.map((key) => (
      <span key={key} className="row wrap link-task">
        {known.has(key) ? <Link href={go.to({ task: key })}>{key}</Link> : key}
        {known.has(key) && <Status status={shownStatus(known.get(key)!, true)} />}
      </span>
    ));
  return (
    <div className="stack">
      {task.reason !== "" && !details.blockers.some((each) => each.answer === null) && <p className="note value text">{task.reason}</p>}
      {details.blockers.length > 0 && <Questions team={team} task={task.key} />}
      {task.description !== "" && <Markdown text={task.description} />}
      {task.criteria.length > 0 && (
        <section>
          <h3>Done when</h3>
          <ul className="bullets">
            {task.criteria.map((each, index) => (
              <li key={index}>{each}</li>
            ))}
          </ul>
        </section>
      )}
      <dl className="fields">
        {task.files.length > 0 && <Paths name="Files" paths={task.files} />}
        {task.new_files.length > 0 && <Paths name="New files" paths={task.new_files} />}
        {task.tests.length > 0 && <Paths name="Tests" paths={task.tests} />}
        {task.depends_on.length > 0 && (
          <>
            <dt>After</dt>
            <dd>{links(task.depends_on)}</dd>
          </>
        )}
        {waiters.length > 0 && (
          <>
            <dt>Before</dt>
            <dd>{links(waiters)}</dd>
          </>
        )}
        <dt>Worker</dt>
        <dd>{task.kind}</dd>
        <dt>Proof</dt>
        <dd>{PROOFS[task.proof]}</dd>
        <dt>Existing tests</dt>
        <dd>{MAY[task.may]}</dd>
        {task.feature !== "" && (
          <>
            <dt>Feature</dt>
            <dd>{task.feature}</dd>
          </>
        )}
        {task.priority !== 0 && (
          <>
            <dt>Priority</dt>
            <dd>{task.priority}</dd>
          </>
        )}
        {task.commit !== null && (
          <>
            <dt>Merged as</dt>
            <dd>
              <code>{task.commit.slice(0, 12)}</code>
            </dd>
          </>
        )}
      </dl>
      {task.notes.length > 0 && (
        <section>
          <h3>Notes for the next attempt</h3>
          <ul className="bullets">
            {task.notes.map((each, index) => (
              <li key={index} className="value text">
                {each}
              </li>
            ))}
          </ul>
        </section>
      )}
      <Attempts team={team} task={task.key} go={go} short={details.attempts} />
    </div>
  );
}

const PROOFS = {
  "new-tests": "a new test that fails without the change",
  "named-tests": "the tests that it names",
  "failing-tests": "acceptance tests that fail until the feature is done",
  none: "no test proves it; a person approved that",
};
const MAY = { "add-tests": "may be added to", "change-tests": "may be changed and removed", "change-test-setup": "may be changed, with their setup" };

function Paths({ name, paths }: { name: string; paths: readonly string[] }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>
        {paths.map((path) => (
          <code key={path} className="path">
            {path}
          </code>
        ))}
      </dd>
    </>
  );
}

function Attempts({ team, task, go, short }: { team: string; task: string; go: Go; short: readonly AttemptRow[] }) {
  const isCut = short.some((each) => each.failure.length >= 290);
  const { data } = useQuery({ ...attemptsQuery(team, task), enabled: isCut });
  const attempts = data?.attempts ?? short;
  if (attempts.length === 0) return null;
  return (
    <section className="stack small-gap" aria-label="Attempts">
      <h3>Attempts</h3>
      <ol className="attempts">
        {attempts.map((each) => (
          <li key={each.number} className="attempt">
            <p className="row wrap">
              <span className="strong">Attempt {each.number}</span>
              <Outcome outcome={each.outcome} />
              <span className="small muted">{countsText(each.tests)}</span>
              {each.calls > 0 && (
                <span className="small muted">
                  {formatCount(each.calls)} calls · cost {formatCost(each.cost)}
                </span>
              )}
              <span className="grow" />
              {each.commit !== "" && (
                <Link className="small" href={go.to({ tab: "diff", attempt: each.number })}>
                  diff
                </Link>
              )}
              {each.tests !== null && (
                <Link className="small" href={go.to({ tab: "tests", attempt: each.number })}>
                  tests
                </Link>
              )}
            </p>
            {each.failure !== "" && (
              <>
                <p className="small muted">{each.number < attempts.length ? `Shown to attempt ${each.number + 1}, which corrected it:` : "Shown to the next attempt:"}</p>
                <Long text={each.failure} />
              </>
            )}
          </li>
        ))}
      </ol>
    </section>
  );
}

/** An outcome of an attempt: its own words, as a status. */
export function Outcome({ outcome }: { outcome: string }) {
  const passed = outcome === "passed";
  const [className, glyph] = passed ? ["ended", "✓"] : outcome === "cancelled" ? ["idle", "–"] : ["failed", "✗"];
  return (
    <span className={`status ${className}`}>
      <span className="glyph" aria-hidden="true">
        {glyph}
      </span>
      {outcome}
    </span>
  );
}

const LINES = 12;

/** Output of a program: its first lines, and the rest when it is asked for. */
export function Long({ text }: { text: string }) {
  const [all, setAll] = useState(false);
  const lines = text.split("\n");
  const isLong = lines.length > LINES || text.length > 1_500;
  const shown = all || !isLong ? text : lines.slice(0, LINES).join("\n").slice(0, 1_500);
  return (
    <>
      <pre className="output" tabIndex={0}>
        {shown}
      </pre>
      {isLong && (
        <button type="button" className="button quiet small" onClick={() => setAll(!all)}>
          {all ? "Show less" : `Show all ${formatCount(lines.length)} lines`}
        </button>
      )}
    </>
  );
}
