// Why a run failed, in full: what, where, why, and what to do.

import type { RunAt } from "../../api/queries.ts";
import type { RunDetails } from "../../api/types.ts";
import { useServes } from "../../studio.tsx";
import { Command, Copy } from "../../ui/basics.tsx";
import { parsePlace } from "./places.ts";
import type { ChangeView } from "./run-view.ts";

export function Failure({ at, details, change }: { at: RunAt; details: RunDetails; change: ChangeView }) {
  const { failure } = details;
  const { serves } = useServes(details.graph);
  if (details.status !== "failed" && details.status !== "cancelled" && !details.error) return null;
  if (failure === null) {
    if (!details.error) return null;
    return (
      <section className="problem run-failure" aria-label="Error">
        <p className="strong">{details.error}</p>
      </section>
    );
  }
  const place = parsePlace(failure.place);
  const code = failure.code ?? failure.type;
  return (
    <section className="problem run-failure" aria-label="Error">
      <div className="row wrap">
        <p className="strong failure-message">{failure.message || failure.type}</p>
        <code className="tag">{code}</code>
        <Copy text={errorText(failure, details)} label="Copy error" />
      </div>
      <dl className="fields">
        {place !== null && (
          <>
            <dt>where</dt>
            <dd>
              <button type="button" className="link" onClick={() => change({ step: place.step, path: place.path, field: place.field, tab: "trace", node: "", filter: "" })}>
                {failure.place}
              </button>
            </dd>
          </>
        )}
        {failure.path && (
          <>
            <dt>path</dt>
            <dd>
              <code>{failure.path}</code>
            </dd>
          </>
        )}
        {failure.error && (
          <>
            <dt>cause</dt>
            <dd className="value text">{failure.error}</dd>
          </>
        )}
        {failure.fix && (
          <>
            <dt>fix</dt>
            <dd className="fix">{failure.fix}</dd>
          </>
        )}
        <dt>then</dt>
        <dd className="fix">
          {serves && at.base === "" ? "Resume continues where it stopped, with the current code. " : "Continue where it stopped: "}
          {(!serves || at.base !== "") && <Command text={`bae runs resume ${at.run}`} />}
        </dd>
      </dl>
    </section>
  );
}

function errorText(failure: NonNullable<RunDetails["failure"]>, details: RunDetails): string {
  const lines = [`[${failure.code ?? failure.type}] ${failure.message}`, `run:   ${details.run_id} of ${details.graph}`];
  if (failure.place) lines.push(`place: ${failure.place}`);
  if (failure.path) lines.push(`path:  ${failure.path}`);
  if (failure.error) lines.push(`cause: ${failure.error}`);
  if (failure.fix) lines.push(`fix:   ${failure.fix}`);
  return lines.join("\n");
}
