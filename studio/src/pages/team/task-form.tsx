// A task to add or to edit. The server checks it; what is wrong is shown at the field.

import { useMutation, useQuery } from "@tanstack/react-query";
import { type FormEvent, useId, useState } from "react";

import { api, ApiProblem, pathOf } from "../../api/client.ts";
import type { EditBody, InputFault, PlanView, TaskDetails, TaskPage } from "../../api/types.ts";
import { type Fault, initialOf, type Schema } from "../../forms/schema.ts";
import { SchemaForm } from "../../forms/schema-form.tsx";
import { Loading, Problem } from "../../ui/basics.tsx";
import { Dialog } from "../../ui/overlays.tsx";
import { refreshTeam, taskQuery } from "./queries.ts";

interface FormProps {
  team: string;
  /** The task to edit; null adds a task. */
  task: string | null;
  schema: PlanView["task_schema"];
  mayApprove: boolean;
  onClose: () => void;
}

type Values = Record<string, unknown>;

export function TaskForm(props: FormProps) {
  const { team, task, onClose } = props;
  const schema = inLines(props.schema as Schema);
  const found = useQuery({ ...taskQuery(team, task ?? ""), enabled: task !== null, staleTime: Infinity });
  if (task === null) return <Fields {...props} schema={schema} initial={initialOf(schema, schema) as Values} />;
  if (found.data !== undefined) {
    const names = Object.keys(schema.properties ?? {});
    const known = found.data.task as unknown as Values;
    return <Fields {...props} schema={schema} initial={Object.fromEntries(names.map((name) => [name, known[name]]))} />;
  }
  return (
    <Dialog title={`Edit ${task}`} kind="drawer" onClose={onClose}>
      {found.error ? <Problem error={found.error} /> : <Loading lines={6} />}
    </Dialog>
  );
}

interface FieldsProps extends Omit<FormProps, "schema"> {
  schema: Schema;
  initial: Values;
}

function Fields({ team, task, schema, mayApprove, onClose, initial }: FieldsProps) {
  const id = useId();
  const [first] = useState(initial);
  const [value, setValue] = useState<Values>(initial);
  const [approves, setApproves] = useState(false);
  const save = useMutation({
    mutationFn: (): Promise<TaskDetails | TaskPage> =>
      task === null
        ? api<TaskPage>(pathOf`/teams/${team}/tasks`, { method: "POST", body: { tasks: [value], approve: approves } })
        : api<TaskDetails>(pathOf`/teams/${team}/tasks/${task}`, { method: "PATCH", body: changesOf(first, value) }),
    onSuccess: () => {
      refreshTeam(team);
      onClose();
    },
  });
  const faults = save.error instanceof ApiProblem ? faultsOf(save.error.faults, Object.keys(schema.properties ?? {})) : [];
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!save.isPending) save.mutate();
  };
  return (
    <Dialog
      kind="drawer"
      title={task === null ? "Add a task" : `Edit ${task}`}
      onClose={onClose}
      foot={
        <>
          {task === null && (
            <label className="row">
              <input type="checkbox" checked={approves} disabled={!mayApprove} onChange={(event) => setApproves(event.target.checked)} /> approve it now
            </label>
          )}
          <span className="grow" />
          <button type="button" className="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" form={id} className="button primary" disabled={save.isPending}>
            {task === null ? "Add" : "Save"}
          </button>
        </>
      }
    >
      <form id={id} className="stack" onSubmit={submit}>
        {save.error !== null && faults.length === 0 && <Problem error={save.error} />}
        {faults.length > 0 && (
          <p className="problem" role="alert">
            {faults.length === 1 ? "One field is" : `${faults.length} fields are`} not right yet: {[...new Set(faults.map((fault) => fault.loc[0]))].join(", ")}.
          </p>
        )}
        <SchemaForm schema={schema} value={value} onChange={(next) => setValue(next as Values)} faults={faults} />
      </form>
    </Dialog>
  );
}

const LINE = 100;

/** The schema with all texts but the description in one line. The server knows how long they may be. */
function inLines(schema: Schema): Schema {
  const short = (each: Schema): Schema => (each.type === "string" ? { ...each, maxLength: LINE } : each.items ? { ...each, items: short(each.items) } : each);
  const properties = Object.entries(schema.properties ?? {}).map(([name, each]) => [name, name === "description" ? each : short(each)]);
  return { ...schema, properties: Object.fromEntries(properties) as Record<string, Schema> };
}

/** What was changed: the server keeps the rest. */
function changesOf(before: Values, after: Values): EditBody {
  const names = new Set([...Object.keys(before), ...Object.keys(after)]);
  const changed = [...names].filter((name) => JSON.stringify(before[name]) !== JSON.stringify(after[name]));
  return Object.fromEntries(changed.map((name) => [name, after[name] ?? ""]));
}

/** Faults at the fields of the task, wherever the request had it. */
function faultsOf(faults: readonly InputFault[], fields: readonly string[]): Fault[] {
  return faults.flatMap((fault) => {
    const parts = fault.loc.flatMap((part): (string | number)[] => (typeof part === "string" ? part.split(".") : [part]));
    const at = parts.findIndex((part) => fields.includes(String(part)) && part !== "tasks");
    return at < 0 ? [] : [{ loc: parts.slice(at), msg: fault.msg }];
  });
}
