// Where a value came from: the chain of functions, LLMs, people and other nodes behind it.

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";

import { type RunAt, stepQuery, whyQuery } from "../../api/queries.ts";
import type { FieldView, RunDetails } from "../../api/types.ts";
import { Loading, Problem } from "../../ui/basics.tsx";
import { formatCost, formatSeconds, formatTime, formatTimeFully } from "../../ui/format.ts";
import { ShownValue } from "../../ui/value.tsx";
import { type Answer, AnswerList, type Round, RoundList } from "./answers.tsx";
import { useGrowingText } from "./live.ts";
import type { ChangeView } from "./run-view.ts";
import { plural, Source, usageText } from "./sources.tsx";
import { Growing, WholeValue } from "./step-card.tsx";

/** `Provenance`, of which the API leaves out what is empty. */
interface Origin {
  place: string;
  path?: string;
  step: number;
  node: string;
  field?: string;
  source: string;
  by?: string;
  at?: number;
  kept?: string;
  value?: unknown;
  state?: string;
  seconds?: number;
  usage?: { calls?: number; input_tokens?: number; output_tokens?: number; cost?: number | null };
  models?: string[];
  attempts?: Answer[];
  rounds?: Round[];
  inputs?: Record<string, Origin>;
  items?: (Origin | null)[];
  origin?: Origin;
  inside?: string;
  error?: string;
  note?: string;
}

const DEEPEST = 6;
const ITEMS = 5;

interface WhyProps {
  at: RunAt;
  details: RunDetails;
  step: number;
  path: string;
  field: string;
  change: ChangeView;
  onFork: ((step: number) => void) | null;
}

/** The details of a field, at the right side of the page. Escape closes them. */
export function WhyPanel({ at, details, step, path, field, change, onFork }: WhyProps) {
  const why = useQuery(whyQuery(at, step, { path, field, cut: 4_000 }));
  const node = useQuery(stepQuery(at, step, { path, cut: 4_000 }));
  const origin = why.data?.provenance as unknown as Origin | undefined;
  const held = node.data?.fields.find((each) => each.name === field);
  const growing = useGrowingText(held?.place ?? "");
  const name = node.data === undefined ? field : `${node.data.node}.${field}`;
  const facts = node.data?.usage;
  return (
    <aside className="run-details" aria-label={`Why ${name}`}>
      <div className="details-head">
        <div className="grow truncate">
          <h2 className="truncate">{name}</h2>
          <p className="small muted truncate">
            step {step}
            {path && ` of ${path}`}
          </p>
        </div>
        {path === "" && onFork !== null && held?.kept === "value" && node.data?.whole && (
          <button type="button" className="button small" onClick={() => onFork(step)}>
            Edit + fork…
          </button>
        )}
        <button type="button" className="button quiet small" onClick={() => change({ field: "" })} aria-label="Close details" title="Esc">
          ✕
        </button>
      </div>
      <div className="details-body">
        <section>
          <h3>Value</h3>
          {growing && held?.state !== "there" ? <Growing text={growing} /> : held === undefined ? <Loading lines={2} /> : <Held at={at} step={step} path={path} field={held} waits={details.status === "waiting"} />}
        </section>
        <section>
          <h3>Where it came from</h3>
          {why.error !== null && origin === undefined && (held?.state === "there" || held === undefined ? <Problem error={why.error} /> : <p className="muted">There is no value yet.</p>)}
          {why.error === null && origin === undefined && <Loading lines={3} />}
          {origin !== undefined && <OriginView origin={origin} change={change} depth={0} />}
        </section>
        {facts !== undefined && facts.calls > 0 && (
          <p className="small muted">
            All LLM calls of this node: {usageText(facts).join(", ")}, {formatCost(facts.cost)}
          </p>
        )}
        {details.status === "waiting" && held?.state === "waiting" && <p className="note">A person is asked: answer at the top of the page.</p>}
      </div>
    </aside>
  );
}

function Held({ at, step, path, field, waits }: { at: RunAt; step: number; path: string; field: FieldView; waits: boolean }) {
  if (field.state === "failed") return <p className="problem">{field.error}</p>;
  if (field.state !== "there") return <p className="muted">{field.state === "waiting" && waits ? "It waits for a person." : "There is no value."}</p>;
  return <WholeValue at={at} step={{ path, step }} field={field} />;
}

function OriginView({ origin, change, depth }: { origin: Origin; change: ChangeView; depth: number }) {
  const facts = [...usageText(origin.usage ?? {})];
  if ((origin.usage?.calls ?? 0) > 0) facts.push(formatCost(origin.usage?.cost));
  if (origin.seconds) facts.push(formatSeconds(origin.seconds));
  const answers = origin.attempts ?? [];
  const rounds = origin.rounds ?? [];
  return (
    <div className="origin">
      <p className="origin-line">
        <Source source={origin.source} by={origin.by ?? ""} {...(origin.models ? { models: origin.models } : {})} />
        <span className="small muted">
          {facts.join(" · ")}
          {origin.at ? (
            <>
              {facts.length > 0 && " · "}
              <time title={formatTimeFully(origin.at)}>{formatTime(origin.at)}</time>
            </>
          ) : null}
        </span>
      </p>
      {origin.source === "body" && origin.step > 0 && (
        <button type="button" className="link" onClick={() => change({ step: origin.step - 1, path: origin.path ?? "", field: "", node: "", filter: "" })}>
          the node before: step {origin.step - 1}
        </button>
      )}
      {origin.error && <p className="fault">✗ {origin.error}</p>}
      {origin.note && <p className="small muted">{origin.note}</p>}
      {answers.length > 0 && <AnswerList answers={answers} rounds={rounds} />}
      {rounds.length > 0 && <RoundList rounds={rounds} />}
      {origin.inside && (
        <button type="button" className="link" onClick={() => change({ path: origin.inside!, step: null, field: "", node: "", filter: "" })}>
          look inside {origin.inside}
        </button>
      )}
      {depth < DEEPEST && origin.origin && (
        <Chain label="the same value as" place={origin.origin} change={change}>
          <OriginView origin={origin.origin} change={change} depth={depth + 1} />
        </Chain>
      )}
      {depth < DEEPEST &&
        Object.entries(origin.inputs ?? {}).map(([name, input]) => (
          <Chain key={name} label={`${name}`} place={input} change={change}>
            <OriginView origin={input} change={change} depth={depth + 1} />
          </Chain>
        ))}
      {depth < DEEPEST && origin.items !== undefined && origin.items.length > 0 && <Items items={origin.items} change={change} depth={depth} />}
    </div>
  );
}

/** A value that another was made from. */
function Chain({ label, place, change, children }: { label: string; place: Origin; change: ChangeView; children: ReactNode }) {
  const go = () => change({ step: place.step, path: place.path ?? "", field: place.field ?? "", node: "", filter: "" });
  return (
    <div className="chain">
      <p className="chain-head">
        <span className="muted">{label}</span>{" "}
        <button type="button" className="link truncate" onClick={go}>
          {place.place}
        </button>
      </p>
      {"value" in place && (
        <div className="clamped">
          <ShownValue value={cutValue(place)} />
        </div>
      )}
      {children}
    </div>
  );
}

/** A long value comes as `{kept: "cut", text, size}` in the place of the value. */
function cutValue(place: Origin): Parameters<typeof ShownValue>[0]["value"] {
  const value = place.value as { kept?: unknown; text?: unknown; size?: unknown } | null | undefined;
  if (value && typeof value === "object" && value.kept === "cut" && typeof value.text === "string") {
    return { kept: "cut", value: null, text: value.text, size: Number(value.size) };
  }
  return { kept: place.kept ?? "value", value: place.value ?? null, text: null, size: null };
}

function Items({ items, change, depth }: { items: readonly (Origin | null)[]; change: ChangeView; depth: number }) {
  const [shown, setShown] = useState(ITEMS);
  return (
    <div className="stack-small">
      <p className="small muted">{plural(items.length, "item")}</p>
      {items.slice(0, shown).map((item, index) =>
        item === null ? (
          <p key={index} className="muted small">
            [{index}] is not done
          </p>
        ) : (
          <Chain key={index} label={`[${index}]`} place={item} change={change}>
            <OriginView origin={item} change={change} depth={depth + 1} />
          </Chain>
        ),
      )}
      {shown < items.length && (
        <button type="button" className="link small" onClick={() => setShown(shown + 50)}>
          show more of {items.length}
        </button>
      )}
    </div>
  );
}
