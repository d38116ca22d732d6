// What tests have shown, failed tests first, and what reviewers found.

import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { Review, TestReport } from "../../api/types.ts";
import { Empty, Loading, Problem } from "../../ui/basics.tsx";
import { formatCount, formatSeconds } from "../../ui/format.ts";
import { attemptQuery, reviewsQuery, testsQuery } from "./queries.ts";
import { Long, Outcome, type TabProps } from "./task-about.tsx";

export function TestsTab({ team, details, address, go }: TabProps) {
  const [cut, setCut] = useState(2_000);
  const task = details.task.key;
  const tested = details.attempts.filter((each) => each.tests !== null);
  const { data, error } = useQuery(testsQuery(team, task, cut));
  const asked = address.attempt;
  const chosen = useQuery({ ...attemptQuery(team, task, asked ?? 0, cut), enabled: asked !== null });
  if (data === undefined) return error ? <Problem error={error} /> : <Loading lines={5} />;
  const number = asked ?? data.attempt;
  const report = asked === null ? data.report : chosen.data?.number === asked ? chosen.data.report : undefined;
  if (number === null && data.merged.length === 0) {
    return (
      <Empty mark="✓" title="No tests ran yet">
        <p>They run when the agent checks its work, and again in the merged tree.</p>
      </Empty>
    );
  }
  return (
    <div className="stack">
      {tested.length > 1 && (
        <div className="tabs" role="group" aria-label="Attempts">
          {tested.map((each) => (
            <button key={each.number} type="button" className="tab" aria-current={each.number === number ? "page" : undefined} onClick={() => go({ attempt: each.number }, { replace: true })}>
              Attempt {each.number} {each.outcome === "passed" ? "✓" : "✗"}
            </button>
          ))}
        </div>
      )}
      {data.flaky.length > 0 && (
        <p className="note">
          Flaky: {data.flaky.join(", ")}. {data.flaky.length === 1 ? "It" : "They"} failed, and then passed with the same work.
        </p>
      )}
      {chosen.error !== null && asked !== null && <Problem error={chosen.error} />}
      {report === undefined && !chosen.error && <Loading />}
      {report && <Report title={`Attempt ${number}`} report={report} />}
      {[...data.merged].reverse().map((each, index) => (
        <Report key={data.merged.length - index} title="In the merged tree" report={each} />
      ))}
      {cut !== 0 && (
        <p>
          <button type="button" className="button small" onClick={() => setCut(0)}>
            Show messages and output in full
          </button>
        </p>
      )}
    </div>
  );
}

const FIRST = 50;

function Report({ title, report }: { title: string; report: TestReport }) {
  const [most, setMost] = useState(FIRST);
  const failed = report.cases.filter((each) => each.outcome === "failed");
  const others = report.cases.filter((each) => each.outcome !== "failed");
  const flaky = new Set(report.flaky);
  const well = report.exit_code === 0 && failed.length === 0 && report.problem === "";
  return (
    <section className="stack small-gap" aria-label={title}>
      <p className="row wrap">
        <span className="strong">{title}</span>
        <Outcome outcome={well ? "passed" : "failed"} />
        <span className="small muted">
          {failed.length > 0 && `${failed.length} failed, `}
          {formatCount(others.filter((each) => each.outcome === "passed").length)} passed · {formatSeconds(report.seconds)}
          {report.protection !== "" && ` · ${report.protection}`}
        </span>
      </p>
      <p>
        <code className="muted">{report.command.join(" ")}</code>
      </p>
      {report.problem !== "" && <p className="problem value text">{report.problem}</p>}
      {report.ended_by !== "exit" && <p className="problem">Ended by the limit: {report.ended_by}.</p>}
      <ul className="cases">
        {[...failed, ...others].slice(0, Math.max(most, failed.length)).map((each) => (
          <li key={each.id} className={`case ${each.outcome}`}>
            <p className="row">
              <span aria-hidden="true">{each.outcome === "failed" ? "✗" : each.outcome === "passed" ? "✓" : "–"}</span>
              <span className="sr-only">{each.outcome}:</span>
              <code className="grow">{each.id}</code>
              {flaky.has(each.id) && <span className="tag">flaky</span>}
            </p>
            {each.message !== "" && <Long text={each.message} />}
          </li>
        ))}
      </ul>
      {report.cases.length > Math.max(most, failed.length) && (
        <button type="button" className="button small" onClick={() => setMost(most + 500)}>
          Show more of {formatCount(report.cases.length)} tests
        </button>
      )}
      {report.output !== "" && (
        <details>
          <summary className="small muted">Output of the tests</summary>
          <Long text={report.output} />
        </details>
      )}
    </section>
  );
}

export function ReviewsTab({ team, details }: TabProps) {
  const { data, error } = useQuery(reviewsQuery(team, details.task.key));
  if (data === undefined) return error ? <Problem error={error} /> : <Loading />;
  if (data.reviews.length === 0) {
    return (
      <Empty mark="◎" title="No review yet">
        <p>Work that passes its tests is reviewed before it is merged, if reviews are on.</p>
      </Empty>
    );
  }
  return (
    <div className="stack">
      {data.reviews.map((review, index) => (
        <OneReview key={index} number={index + 1} review={review} />
      ))}
    </div>
  );
}

function OneReview({ number, review }: { number: number; review: Review }) {
  const blocking = review.findings.filter((each) => each.blocking).length;
  return (
    <section className="stack small-gap" aria-label={`Review ${number}`}>
      <p className="row wrap">
        <span className="strong">Review {number}</span>
        <Outcome outcome={review.error ? "error" : blocking > 0 ? "refused" : "passed"} />
        <code className="small muted">{review.commit.slice(0, 12)}</code>
      </p>
      {review.error !== "" && <p className="problem value text">{review.error}</p>}
      {review.summary !== "" && <p className="value text">{review.summary}</p>}
      <ul className="stack small-gap">
        {review.findings.map((each, index) => (
          <li key={index} className={`finding${each.blocking ? " blocking" : ""}`}>
            <p className="row wrap small">
              <span className="strong">{each.kind.replaceAll("-", " ")}</span>
              {each.blocking ? <span className="fault">must be corrected</span> : <span className="muted">noted</span>}
              <code>
                {each.file}
                {each.line !== null && `:${each.line}`}
              </code>
            </p>
            <p className="value text">{each.text}</p>
            {each.code !== "" && <pre className="output">{each.code}</pre>}
          </li>
        ))}
      </ul>
    </section>
  );
}
