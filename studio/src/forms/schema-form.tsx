// A form made from a JSON schema. The server validates; what it finds wrong is shown at the field.

import { type ReactNode, useId, useState } from "react";

import { asText, Choice, FileInput, JsonInput, LineInput, NumberInput, YesNo } from "./inputs.tsx";
import { type Fault, faultsAt, fromPairs, initialOf, isFixed, isObject, type Json, kindOf, nameOf, optionOf, type Pair, pairsOf, resolve, type Schema, tagOf } from "./schema.ts";

export interface FormProps {
  schema: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  /** What the server found wrong, by place inside the value. */
  faults?: readonly Fault[];
  /** Names the value. Without it the form shows the fields alone. */
  label?: string;
  /** Fields of a model that are given elsewhere. */
  without?: readonly string[];
}

/** The fields of a schema. `value` is JSON, and undefined where nothing is given. */
export function SchemaForm({ schema, value, onChange, faults = [], label, without = [] }: FormProps) {
  return (
    <Input
      schema={schema}
      root={schema}
      value={value}
      onChange={onChange}
      faults={faults}
      label={label ?? "Value"}
      hidesLabel={label === undefined}
      without={without}
      required
    />
  );
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
  none?: boolean;
  without?: readonly string[];
}

function Input(props: InputProps) {
  const { schema: given, root, value, onChange, faults, label, required, hidesLabel = false, none = false } = props;
  const id = useId();
  const schema = resolve(given, root);
  const kind = kindOf(schema, root);
  const about = { id, "aria-invalid": faults.length > 0, "aria-describedby": `${id}-about` };
  const wrap = (input: ReactNode, words = schema.description) => (
    <div className="form-field">
      <label htmlFor={id} className={hidesLabel ? "sr-only" : "form-label"}>
        {label}
        {!required && <span className="muted"> optional</span>}
      </label>
      {input}
      <div id={`${id}-about`}>
        {words && <p className="small muted">{words}</p>}
        <Faults faults={faults} />
      </div>
    </div>
  );
  /** An empty text is none where none may be given. */
  const change = (part: unknown) => onChange(none && (part === "" || part === undefined) ? null : part);
  switch (kind.kind) {
    case "text":
      if (!kind.long) return wrap(<LineInput {...about} format={kind.format} secret={kind.secret} value={value} onChange={change} />);
      return wrap(<textarea {...about} className="textarea growing" rows={1} value={asText(value)} onChange={(event) => change(event.target.value)} />);
    case "number":
      return wrap(<NumberInput {...about} whole={kind.whole} exact={kind.exact} value={value} onChange={change} />);
    case "yes-no":
      if (none) return wrap(<Choice {...about} options={[true, false]} none value={value} onChange={onChange} />);
      return wrap(<YesNo id={id} label={label} value={value} onChange={onChange} />);
    case "choice":
      return wrap(<Choice {...about} options={kind.options} none={none} value={value} onChange={onChange} />);
    case "none":
      return wrap(
        <span id={id} className="muted">
          none
        </span>,
      );
    case "list":
      return <ListInput {...props} item={kind.item} />;
    case "tuple":
      return <TupleInput {...props} items={kind.items} />;
    case "map":
      return <MapInput {...props} item={kind.item} />;
    case "model":
      return <ModelInput {...props} fields={kind.fields} description={schema.description ?? ""} />;
    case "optional":
      return <OptionalInput {...props} description={schema.description ?? ""} of={kind.of} />;
    case "union":
      return <UnionInput {...props} options={kind.options} />;
    case "file":
      return wrap(<FileInput {...about} of={kind.of} value={value} onChange={onChange} />, isOfPrograms(schema) ? FILES[kind.of] : schema.description);
    case "json":
      return wrap(<JsonInput {...about} value={value} onChange={change} />);
  }
}

/** Show the first input of a form that is wrong. */
export function showFirstFault(form: HTMLElement | null): void {
  const first = form?.querySelector<HTMLElement>('[aria-invalid="true"], .fault');
  first?.focus({ preventScroll: true });
  first?.scrollIntoView({ block: "center" });
}

/** What is wrong with an input, a line each. */
export function Faults({ faults }: { faults: readonly Fault[] }) {
  return faults.map((fault) => (
    <p key={fault.loc.join(".") + fault.msg} className="small fault" role="alert">
      {[...fault.loc, fault.msg].join(": ")}
    </p>
  ));
}

interface ModelProps extends InputProps {
  fields: [string, Schema, boolean][];
  description: string;
}

function ModelInput({ root, value, onChange, faults, label, hidesLabel, fields, description, without = [] }: ModelProps) {
  const given = isObject(value) ? value : {};
  const change = (name: string, part: unknown) => {
    const next: Json = { ...given, [name]: part };
    const names = new Set([...fields.map(([each]) => each), ...Object.keys(next)]); // in the order of the class
    onChange(Object.fromEntries([...names].flatMap((each) => (next[each] === undefined ? [] : [[each, next[each]]]))));
  };
  const shown = fields.filter(([name, schema]) => !isFixed(schema, root) && !without.includes(name));
  const elsewhere = faults.filter((fault) => !shown.some(([name]) => name === fault.loc[0]));
  return (
    <fieldset className={hidesLabel ? "form-group plain" : "form-group"}>
      <legend className={hidesLabel ? "sr-only" : "form-label"}>{label}</legend>
      {!hidesLabel && description && <p className="small muted">{description}</p>}
      {shown.map(([name, schema, required]) => (
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
      {fields.length === 0 && <p className="muted">No fields.</p>}
      <Faults faults={elsewhere} />
    </fieldset>
  );
}

function ListInput({ root, value, onChange, faults, label, hidesLabel, item, required }: InputProps & { item: Schema }) {
  const items: unknown[] = Array.isArray(value) ? value : [];
  const own = faults.filter((fault) => typeof fault.loc[0] !== "number" || fault.loc[0] >= items.length);
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
              onChange={(part) => onChange(items.with(index, part === undefined ? null : part))}
              faults={faultsAt(faults, index)}
              label={`${label} ${index + 1}`}
              hidesLabel
              required
            />
          </div>
          <button type="button" className="button quiet small" aria-label={`Remove item ${index + 1} of ${label}`} onClick={() => onChange(items.toSpliced(index, 1))}>
            ✕
          </button>
        </div>
      ))}
      <button type="button" className="button small form-add" onClick={() => onChange([...items, initialOf(item, root) ?? (kindOf(item, root).kind === "text" ? "" : null)])}>
        Add<span className="sr-only"> to {label}</span>
      </button>
      <Faults faults={own} />
    </fieldset>
  );
}

/** A list with a fixed number of items, each with its own type. */
function TupleInput({ root, value, onChange, faults, label, hidesLabel, items, required }: InputProps & { items: Schema[] }) {
  const parts = items.map((_, index) => (Array.isArray(value) ? (value[index] as unknown) : null));
  return (
    <fieldset className="form-group">
      <legend className={hidesLabel ? "sr-only" : "form-label"}>
        {label}
        {!required && <span className="muted"> optional</span>}
      </legend>
      <div className="form-tuple">
        {items.map((item, index) => (
          <Input
            key={index}
            schema={item}
            root={root}
            value={parts[index] ?? undefined}
            onChange={(part) => onChange(parts.with(index, part ?? null))}
            faults={faultsAt(faults, index)}
            label={item.title ?? String(index + 1)}
            required
          />
        ))}
      </div>
      <Faults faults={faults.filter((fault) => typeof fault.loc[0] !== "number")} />
    </fieldset>
  );
}

/** Values by keys of the person's own choice. */
function MapInput({ root, value, onChange, faults, label, hidesLabel, item, required }: InputProps & { item: Schema }) {
  const [typed, setTyped] = useState<readonly Pair[]>([]);
  const pairs = pairsOf(value, typed);
  const change = (next: readonly Pair[]) => {
    setTyped(next);
    onChange(fromPairs(next));
  };
  const isTwice = (key: string) => key !== "" && pairs.filter(([each]) => each === key).length > 1;
  const own = faults.filter((fault) => !pairs.some(([key]) => key === String(fault.loc[0])));
  return (
    <fieldset className="form-group">
      <legend className={hidesLabel ? "sr-only" : "form-label"}>
        {label}
        {!required && <span className="muted"> optional</span>}
      </legend>
      {pairs.map(([key, part], index) => (
        <div key={index} className="form-pair">
          <div className="form-field">
            <input
              className="input"
              aria-label={`Key ${index + 1} of ${label}`}
              aria-invalid={isTwice(key)}
              placeholder="key"
              autoComplete="off"
              value={key}
              onChange={(event) => change(pairs.with(index, [event.target.value, part]))}
            />
            {isTwice(key) && <Faults faults={[{ loc: [], msg: "another entry has this key" }]} />}
          </div>
          <div className="form-pair-value">
            <Input
              schema={item}
              root={root}
              value={part ?? undefined}
              onChange={(next) => change(pairs.with(index, [key, next ?? null]))}
              faults={faultsAt(faults, key)}
              label={`Value ${index + 1} of ${label}`}
              hidesLabel
              required
            />
          </div>
          <button type="button" className="button quiet small" aria-label={`Remove entry ${index + 1} of ${label}`} onClick={() => change(pairs.toSpliced(index, 1))}>
            ✕
          </button>
        </div>
      ))}
      <button type="button" className="button small form-add" onClick={() => change([...pairs, ["", initialOf(item, root) ?? null]])}>
        Add<span className="sr-only"> to {label}</span>
      </button>
      <Faults faults={own} />
    </fieldset>
  );
}

/** What a person may choose. */
const FILES = { image: "JPEG, PNG, GIF or WebP", document: "PDF or plain text" };

/** Whether a file has the description that the server gives it: programs may also send a data URL. */
function isOfPrograms(schema: Schema): boolean {
  return schema.description === undefined || schema.description.includes("a data URL, or the hash of a file");
}

const LARGE = new Set(["model", "list", "tuple", "map", "union", "json"]);

/** A value or none. A large input is shown once a value is wanted. */
function OptionalInput({ of, description, ...props }: InputProps & { of: Schema; description: string }) {
  const { root, value, onChange, label, hidesLabel } = props;
  const schema = { ...of, ...(description && !of.description ? { description } : {}) };
  if (!LARGE.has(kindOf(schema, root).kind)) return <Input {...props} schema={schema} none />;
  if (value === null || value === undefined) {
    return (
      <div className="form-field">
        <span className={hidesLabel ? "sr-only" : "form-label"}>
          {label} <span className="muted">none</span>
        </span>
        <button type="button" className="button small form-add" onClick={() => onChange(initialOf(of, root) ?? {})}>
          Add<span className="sr-only"> {label}</span>
        </button>
      </div>
    );
  }
  return (
    <div className="form-optional">
      <Input {...props} schema={schema} />
      <button type="button" className="button quiet small" onClick={() => onChange(null)}>
        None<span className="sr-only"> for {label}</span>
      </button>
    </div>
  );
}

function UnionInput({ options, ...props }: InputProps & { options: Schema[] }) {
  const { root, value, onChange, faults, label, required, hidesLabel } = props;
  const [asked, setAsked] = useState(-1);
  const found = optionOf(value, options, root);
  const chosen = asked >= 0 && (found < 0 || found === asked || value === undefined) ? asked : found >= 0 ? found : asked;
  const option = options[chosen];
  const id = useId();
  // The place of a fault may name the option before the field. Other options do not matter.
  const namesOf = (each: Schema) => [each.title, tagOf(each)].filter((name) => name !== undefined);
  const names = option === undefined ? [] : namesOf(option);
  const others = options.filter((each) => each !== option).flatMap(namesOf);
  const inside = faults
    .map((fault) => (names.includes(String(fault.loc[0])) ? { ...fault, loc: fault.loc.slice(1) } : fault))
    .filter((fault) => !others.includes(String(fault.loc[0])));
  return (
    <fieldset className="form-group">
      <legend className={hidesLabel ? "sr-only" : "form-label"}>
        {label}
        {!required && <span className="muted"> optional</span>}
      </legend>
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
      {option === undefined && <Faults faults={faults} />}
      {option !== undefined && option.type === "null" && <Faults faults={inside} />}
      {option !== undefined && option.type !== "null" && <Input {...props} faults={inside} schema={option} hidesLabel />}
    </fieldset>
  );
}
