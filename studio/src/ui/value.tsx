// Values as people read them: fields in order, not JSON. Everything is text for React, so nothing
// that a model wrote becomes part of the page.

import { type ReactNode, useState } from "react";

import type { Value } from "../api/types.ts";
import { FileValue, isFile } from "./file-value.tsx";
import { formatCount } from "./format.ts";
import { readCut } from "./cut-text.ts";
import { Guard } from "./guard.tsx";
import { partsOf } from "./text-parts.ts";

const LONG = 600;
const MANY = 30;
/** How many more items a click shows: the page renders all of them. */
const MORE = 1_000;
const DEEP = 8;

/** Why a value is not shown. */
const KEPT: Record<string, string> = {
  withheld: "🔒 hidden",
  live: "not stored: it is made again when the run is resumed",
  turns: "the earlier turns of the thread",
  missing: "no value",
};

/** A value of the API, which may be cut or hidden. `onAll` fetches all of a value that is cut. */
export function ShownValue({ value, onAll }: { value: Value; onAll?: () => void }) {
  if (value.kept === "cut") {
    const read = readCut(value.text ?? "");
    return (
      <div className="value">
        {read === undefined ? <div className="value text">{value.text}…</div> : <PlainValue value={read} />}
        {onAll && (
          <button type="button" className="button quiet small" onClick={onAll}>
            Show all {formatCount(value.size ?? 0)} characters
          </button>
        )}
      </div>
    );
  }
  if (value.kept !== "value") return <span className="tag">{KEPT[value.kept] ?? value.kept}</span>;
  return <PlainValue value={value.value} />;
}

/** Any JSON value. */
export function PlainValue({ value }: { value: unknown }) {
  return (
    <Guard of={value} instead={(error) => <span className="tag">cannot be shown: {String(error)}</span>}>
      <Part value={value} depth={0} />
    </Guard>
  );
}

function Part({ value, depth, isItem = false }: { value: unknown; depth: number; isItem?: boolean }) {
  const [all, setAll] = useState(false);
  const [many, setMany] = useState(MANY);
  if (value === null || value === undefined) return <span className="value muted">none</span>;
  if (typeof value === "boolean") return <span className="value">{value ? "yes" : "no"}</span>;
  if (typeof value === "number" || typeof value === "bigint") return <span className="value number">{String(value)}</span>;
  if (typeof value === "string") {
    if (value === "") return <span className="value muted">empty text</span>;
    const cut = !all && value.length > LONG;
    return (
      <div className="value text">
        {cut ? `${value.slice(0, LONG)}…` : <TextInParts text={value} />}
        {cut && (
          <>
            {" "}
            <button type="button" className="button quiet small" onClick={() => setAll(true)}>
              Show all {formatCount(value.length)} characters
            </button>
          </>
        )}
      </div>
    );
  }
  if (depth >= DEEP) return <code className="value">{JSON.stringify(value)}</code>;
  if (Array.isArray(value)) {
    if (value.length === 0) return <span className="value muted">empty list</span>;
    const shown = value.slice(0, many);
    const isPlain = value.every((item) => typeof item === "number" || (typeof item === "string" && item.length < 40));
    return (
      <div className="value">
        {isPlain ? (
          <div className="row wrap">
            {shown.map((item, index) => (
              <span key={index} className="tag">
                {String(item)}
              </span>
            ))}
          </div>
        ) : (
          <ol className="items">
            {shown.map((item, index) => (
              <li key={index} className="item">
                <span className="item-number" aria-hidden="true">
                  {index + 1}
                </span>
                <div className="grow">
                  <Part value={item} depth={depth + 1} isItem />
                </div>
              </li>
            ))}
          </ol>
        )}
        <More shown={many} of={value.length} what="items" onMore={setMany} />
      </div>
    );
  }
  if (isFile(value)) return <FileValue file={value} />;
  if (isNode(value)) {
    return (
      <div className="value">
        <span className="tag">{value.type}</span>
        <Part value={value.fields} depth={depth + 1} isItem={isItem} />
      </div>
    );
  }
  const entries = Object.entries(value as Record<string, unknown>);
  if (entries.length === 0) return <span className="value muted">empty</span>;
  return (
    <dl className={depth > 0 && !isItem ? "fields nested" : "fields"}>
      {entries.slice(0, many).map(([name, part]) => (
        <FieldOfValue key={name} name={name} value={part} depth={depth + 1} />
      ))}
      <More shown={many} of={entries.length} what="fields" onMore={setMany} />
    </dl>
  );
}

/** A text of any length: the browser lays out only those parts that are seen. */
export function TextInParts({ text }: { text: string }): ReactNode {
  const parts = partsOf(text);
  if (parts.length === 1) return text;
  return parts.map((part, index) => (
    <span key={index} className="text-part">
      {part}
    </span>
  ));
}

/** A button that shows the rest of a list, or its next part. */
function More({ shown, of, what, onMore }: { shown: number; of: number; what: string; onMore: (shown: number) => void }) {
  if (shown >= of) return null;
  return (
    <button type="button" className="button quiet small" onClick={() => onMore(shown + MORE)}>
      {of - shown <= MORE ? `Show all ${formatCount(of)} ${what}` : `Show ${formatCount(MORE)} more of ${formatCount(of)} ${what}`}
    </button>
  );
}

/** Whether a value is a node, as the journal has it. */
function isNode(value: unknown): value is { type: string; fields: Record<string, unknown> } {
  const { type, fields, withheld: _w, unset: _u, bare: _b, ...more } = value as Record<string, unknown>;
  return typeof type === "string" && typeof fields === "object" && fields !== null && Object.keys(more).length === 0;
}

function FieldOfValue({ name, value, depth }: { name: string; value: unknown; depth: number }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>
        <Part value={value} depth={depth} />
      </dd>
    </>
  );
}
