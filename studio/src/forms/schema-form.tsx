// A form made from a JSON schema. The server validates; what it finds wrong is shown at the field.

import { type ReactNode, useId, useState } from "react";

import { upload } from "../api/client.ts";
import type { FileView } from "../api/types.ts";
import { type Fault, faultsAt, initialOf, type Json, kindOf, nameOf, optionOf, resolve, type Schema } from "./schema.ts";

export interface FormProps {
  schema: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  /** What the server found wrong, by place inside the value. */
  faults?: readonly Fault[];
}

/** The fields of a schema. `value` is JSON, and undefined where nothing is given. */
export function SchemaForm({ schema, value, onChange, faults = [] }: FormProps) {
  return <Input schema={schema} root={schema} value={value} onChange={onChange} faults={faults} label="Value" hidesLabel required />;
}

interface InputProps {
  schema: Schema;
  root: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  faults: readonly Fault[];
  label: string;
  required: boolean;
  hidesLabel?: boolean;
}

function Input(props: InputProps) {
  const { schema: given, root, value, onChange, faults, label, required, hidesLabel = false } = props;
  const id = useId();
  const schema = resolve(given, root);
  const kind = kindOf(schema, root);
  const own = faults.filter((fault) => fault.loc.length === 0);
  const about = { id, "aria-invalid": own.length > 0, "aria-describedby": `${id}-about` };
  const wrap = (input: ReactNode) => (
    <div className="form-field">
      <label htmlFor={id} className={hidesLabel ? "sr-only" : "form-label"}>
        {label}
        {!required && <span className="muted"> optional</span>}
      </label>
      {input}
      <div id={`${id}-about`}>
        {schema.description && <p className="small muted">{schema.description}</p>}
        <Faults faults={own} />
      </div>
    </div>
  );
  switch (kind.kind) {
    case "text":
      if (kind.long) {
        return wrap(<textarea {...about} className="textarea" rows={2} value={asText(value)} onChange={(event) => onChange(event.target.value)} />);
      }
      return wrap(
        <input
          {...about}
          className="input"
          type={kind.secret ? "password" : kind.format === "date" ? "date" : kind.format === "time" ? "time" : "text"}
          value={asText(value)}
          onChange={(event) => onChange(event.target.value === "" && !required ? undefined : event.target.value)}
        />,
      );
    case "number":
      return wrap(<NumberInput {...about} whole={kind.whole} value={value} onChange={onChange} />);
    case "yes-no":
      return wrap(
        <div id={id} role="radiogroup" aria-label={label} className="row">
          {[true, false].map((each) => (
            <label key={String(each)} className="row choice">
              <input type="radio" name={id} checked={value === each} onChange={() => onChange(each)} />
              {each ? "yes" : "no"}
            </label>
          ))}
        </div>,
      );
    case "choice":
      return wrap(
        <select {...about} className="select" value={kind.options.indexOf(value)} onChange={(event) => onChange(kind.options[Number(event.target.value)])}>
          <option value={-1} disabled>
            Choose…
          </option>
          {kind.options.map((option, index) => (
            <option key={index} value={index}>
              {String(option)}
            </option>
          ))}
        </select>,
      );
    case "none":
      return wrap(<span id={id} className="muted">none</span>);
    case "list":
      return <ListInput {...props} item={kind.item} own={own} />;
    case "model":
      return <ModelInput {...props} fields={kind.fields} own={own} />;
    case "union":
      return <UnionInput {...props} options={kind.options} />;
    case "file":
      return wrap(<FileInput id={id} value={value} onChange={onChange} />);
    case "json":
      return wrap(<JsonInput {...about} value={value} onChange={onChange} />);
  }
}

function Faults({ faults }: { faults: readonly Fault[] }) {
  return faults.map((fault) => (
    <p key={fault.msg} className="small fault" role="alert">
      {[...fault.loc, fault.msg].join(": ")}
    </p>
  ));
}

function asText(value: unknown): string {
  return typeof value === "string" ? value : value === undefined || value === null ? "" : String(value);
}

interface About {
  id: string;
  "aria-invalid": boolean;
  "aria-describedby": string;
}

/** Keeps what is typed, so that "1." or "-" can become a number. */
function NumberInput({ whole, value, onChange, ...about }: About & { whole: boolean; value: unknown; onChange: (value: unknown) => void }) {
  const [typed, setTyped] = useState<string | null>(null);
  return (
    <input
      {...about}
      className="input"
      inputMode={whole ? "numeric" : "decimal"}
      value={typed ?? asText(value)}
      onBlur={() => setTyped(null)}
      onChange={(event) => {
        const text = event.target.value;
        setTyped(text);
        const number = Number(text);
        onChange(text.trim() === "" ? undefined : Number.isFinite(number) ? number : text);
      }}
    />
  );
}

function JsonInput({ value, onChange, ...about }: About & { value: unknown; onChange: (value: unknown) => void }) {
  const [typed, setTyped] = useState<string | null>(null);
  const [wrong, setWrong] = useState("");
  return (
    <>
      <textarea
        {...about}
        className="textarea mono"
        rows={3}
        spellCheck={false}
        placeholder="JSON"
        value={typed ?? (value === undefined ? "" : JSON.stringify(value, null, 2))}
        onChange={(event) => {
          const text = event.target.value;
          setTyped(text);
          try {
            onChange(text.trim() === "" ? undefined : JSON.parse(text));
            setWrong("");
          } catch (error) {
            setWrong(String((error as Error).message));
          }
        }}
      />
      {wrong && <p className="small fault">This is no JSON yet: {wrong}</p>}
    </>
  );
}

function FileInput({ id, value, onChange }: { id: string; value: unknown; onChange: (value: unknown) => void }) {
  const [state, setState] = useState("");
  const name = typeof value === "object" && value !== null ? String((value as Json).name ?? (value as Json).type ?? "") : "";
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
      <input id={id} type="file" accept="image/jpeg,image/png,image/gif,image/webp,application/pdf,text/plain" onChange={(event) => take(event.target.files?.[0])} />
      {(state || name) && <span className="small muted">{state || name}</span>}
    </div>
  );
}

function ModelInput({ root, value, onChange, faults, label, hidesLabel, fields, own }: InputProps & { fields: [string, Schema, boolean][]; own: Fault[] }) {
  const given = (typeof value === "object" && value !== null && !Array.isArray(value) ? value : {}) as Json;
  const change = (name: string, part: unknown) => {
    const next = { ...given };
    if (part === undefined) delete next[name];
    else next[name] = part;
    onChange(next);
  };
  return (
    <fieldset className={hidesLabel ? "form-group plain" : "form-group"}>
      <legend className={hidesLabel ? "sr-only" : "form-label"}>{label}</legend>
      {fields.map(([name, schema, required]) => (
        <Input
          key={name}
          schema={schema}
          root={root}
          value={given[name]}
          onChange={(part) => change(name, part)}
          faults={faultsAt(faults, name)}
          label={name}
          required={required}
        />
      ))}
      {fields.length === 0 && <p className="muted">Nothing is asked for.</p>}
      <Faults faults={[...own, ...faults.filter((fault) => fault.loc.length > 0 && !fields.some(([name]) => name === fault.loc[0]))]} />
    </fieldset>
  );
}

function ListInput({ root, value, onChange, faults, label, hidesLabel, item, own, required }: InputProps & { item: Schema; own: Fault[] }) {
  const items: unknown[] = Array.isArray(value) ? value : [];
  return (
    <fieldset className="form-group">
      <legend className={hidesLabel ? "sr-only" : "form-label"}>
        {label}
        {!required && <span className="muted"> optional</span>}
      </legend>
      {items.map((each, index) => (
        <div key={index} className="row form-item">
          <div className="grow">
            <Input
              schema={item}
              root={root}
              value={each}
              onChange={(part) => onChange(items.with(index, part))}
              faults={faultsAt(faults, index)}
              label={`${index + 1}`}
              required
            />
          </div>
          <button type="button" className="button quiet small" aria-label={`Remove item ${index + 1}`} onClick={() => onChange(items.toSpliced(index, 1))}>
            ✕
          </button>
        </div>
      ))}
      <button type="button" className="button small" onClick={() => onChange([...items, initialOf(item, root)])}>
        Add
      </button>
      <Faults faults={own} />
    </fieldset>
  );
}

function UnionInput({ options, ...props }: InputProps & { options: Schema[] }) {
  const { root, value, onChange, label, required, hidesLabel } = props;
  const [asked, setAsked] = useState(-1);
  const found = optionOf(value, options, root);
  const chosen = asked >= 0 ? asked : found;
  const option = options[chosen];
  const id = useId();
  const rest = options.filter((each) => each.type !== "null");
  if (rest.length === 1 && options.length === 2) {
    // A value or none: the input of the value, and a button that takes it away.
    return (
      <div className="form-optional">
        <Input {...props} schema={{ ...rest[0], ...(props.schema.description ? { description: props.schema.description } : {}) }} value={value ?? undefined} required={required} />
        {value !== null && (
          <button type="button" className="button quiet small" onClick={() => onChange(null)}>
            None
          </button>
        )}
      </div>
    );
  }
  return (
    <fieldset className="form-group">
      <legend className={hidesLabel ? "sr-only" : "form-label"}>{label}</legend>
      <label htmlFor={id} className="sr-only">
        Kind of {label}
      </label>
      <select
        id={id}
        className="select"
        value={chosen}
        onChange={(event) => {
          const next = Number(event.target.value);
          setAsked(next);
          onChange(initialOf(options[next]!, root));
        }}
      >
        <option value={-1} disabled>
          Choose…
        </option>
        {options.map((each, index) => (
          <option key={index} value={index}>
            {nameOf(each)}
          </option>
        ))}
      </select>
      {option && <Input {...props} schema={option} hidesLabel />}
    </fieldset>
  );
}
