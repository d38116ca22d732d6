// Inputs of one value each, for forms.

import { useState } from "react";

import { readJson } from "../api/json.ts";
import { upload } from "../api/client.ts";
import type { FileView } from "../api/types.ts";
import { FilePreview, isFile } from "../ui/file-value.tsx";
import { NOT_JSON, numberIn, unparsed, unparsedText } from "./schema.ts";

export interface About {
  id: string;
  "aria-invalid": boolean;
  "aria-describedby": string;
}

interface Changed {
  value: unknown;
  onChange: (value: unknown) => void;
}

export function asText(value: unknown): string {
  return typeof value === "string" ? value : value === undefined || value === null ? "" : String(value);
}

const TYPES: Record<string, string> = { date: "date", time: "time" };
const EXAMPLES: Record<string, string> = { duration: "PT1H30M, or 01:30:00", uuid: "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", email: "name@example.com", uri: "https://…" };
const LOCAL_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?$/;

/** One line of text, a secret, a date or a time. An empty date is not given. */
export function LineInput({ format, secret, value, onChange, ...about }: About & Changed & { format: string; secret: boolean }) {
  const text = asText(value);
  const isLocalTime = format === "date-time" && (text === "" || LOCAL_TIME.test(text));
  const type = secret ? "password" : isLocalTime ? "datetime-local" : (TYPES[format] ?? "text");
  const takesEmpty = type === "text" || type === "password";
  return (
    <input
      {...about}
      className="input"
      type={type}
      step={type === "time" ? 1 : undefined}
      placeholder={EXAMPLES[format]}
      autoComplete="off"
      value={text}
      onChange={(event) => onChange(event.target.value === "" && !takesEmpty ? undefined : event.target.value)}
    />
  );
}

/** Keeps what is typed, so that "1." or "-" can become a number. */
export function NumberInput({ whole, exact, value, onChange, ...about }: About & Changed & { whole: boolean; exact: boolean }) {
  const [typed, setTyped] = useState<string | null>(null);
  const isOld = typed !== null && numberIn(typed, whole, exact) !== value;
  return (
    <input
      {...about}
      className="input number"
      inputMode={whole ? "numeric" : "decimal"}
      autoComplete="off"
      value={typed === null || isOld ? asText(value) : typed}
      onBlur={() => setTyped(null)}
      onChange={(event) => {
        setTyped(event.target.value);
        onChange(numberIn(event.target.value, whole, exact));
      }}
    />
  );
}

export function YesNo({ id, label, value, onChange }: Changed & { id: string; label: string }) {
  return (
    <div id={id} role="radiogroup" aria-label={label} className="row">
      {[true, false].map((each) => (
        <label key={String(each)} className="row choice">
          <input type="radio" name={id} checked={value === each} onChange={() => onChange(each)} data-answer={each ? "yes" : "no"} />
          {each ? "yes" : "no"}
        </label>
      ))}
    </div>
  );
}

/** A choice among values. `none` says that null is among them. */
export function Choice({ options, none, value, onChange, ...about }: About & Changed & { options: unknown[]; none: boolean }) {
  const at = value === null && none ? -2 : options.indexOf(value);
  return (
    <select
      {...about}
      className="select"
      value={at}
      onChange={(event) => {
        const next = Number(event.target.value);
        onChange(next === -2 ? null : options[next]);
      }}
    >
      {at === -1 && (
        <option value={-1} disabled>
          Choose…
        </option>
      )}
      {none && <option value={-2}>none</option>}
      {options.map((option, index) => (
        <option key={index} value={index}>
          {option === null ? "none" : String(option)}
        </option>
      ))}
    </select>
  );
}

/** A value as JSON. Text that is not JSON is kept and marked. */
export function JsonInput({ value, onChange, ...about }: About & Changed) {
  const [typed, setTyped] = useState<string | null>(null);
  const unfinished = unparsedText(value);
  const shown = unfinished ?? typed ?? (value === undefined ? "" : JSON.stringify(value, null, 2));
  return (
    <>
      <textarea
        {...about}
        className="textarea mono"
        rows={3}
        spellCheck={false}
        placeholder="JSON"
        value={shown}
        onBlur={() => setTyped(null)}
        onChange={(event) => {
          const text = event.target.value;
          setTyped(text);
          try {
            onChange(text.trim() === "" ? undefined : readJson(text));
          } catch {
            onChange(unparsed(text));
          }
        }}
      />
      {unfinished !== null && !about["aria-invalid"] && <p className="small fault">{NOT_JSON}</p>}
    </>
  );
}

export const ACCEPTED = { image: "image/jpeg,image/png,image/gif,image/webp", document: "application/pdf,text/plain" };

/** A file, which is sent when it is chosen. */
export function FileInput({ of, value, onChange, ...about }: About & Changed & { of: "image" | "document" }) {
  const [state, setState] = useState("");
  const take = (file: File | undefined) => {
    if (file === undefined) return;
    setState(`Sending ${file.name}…`);
    upload<FileView>("/files", file).then(
      (found) => {
        setState("");
        onChange(found);
      },
      (error: unknown) => setState(error instanceof Error ? error.message : String(error)),
    );
  };
  return (
    <div className="row wrap">
      <input {...about} type="file" className="input file" accept={ACCEPTED[of]} onChange={(event) => take(event.target.files?.[0])} />
      {isFile(value) && <FilePreview file={value} />}
      {state && (
        <span className="small muted" role="status">
          {state}
        </span>
      )}
    </div>
  );
}
