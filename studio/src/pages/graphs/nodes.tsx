// The node classes of a graph, with their fields and where the values come from.

import type { ClassFieldView, ClassView } from "../../api/types.ts";

const SOURCES: Record<string, [label: string, className: string, about: string]> = {
  lm: ["LLM", "lm", "filled by the LLM"],
  given: ["given", "body", "given by the caller"],
  code: ["code", "body", "set by the node before"],
  tools: ["tools", "tool", "calls that the LLM makes"],
};

interface NodesProps {
  classes: ClassView[];
  start: string;
  selected: string | null;
  onSelect: (node: string | null) => void;
}

export function Nodes({ classes, start, selected, onSelect }: NodesProps) {
  return (
    <ul className="graph-classes">
      {classes.map((each) => (
        <li key={each.node} id={`class-${each.node}`} className={each.node === selected ? "selected" : ""}>
          <div className="row wrap">
            <button type="button" className="class-name" aria-pressed={each.node === selected} onClick={() => onSelect(each.node === selected ? null : each.node)}>
              {each.node}
            </button>
            {each.node === start && <span className="tag">start</span>}
            {each.ending !== "never" && <span className="tag">{each.ending === "may" ? "may end" : "end"}</span>}
            {each.chosen_by === "lm" && <span className="tag">LLM chooses the next node</span>}
            {each.chosen_by === "code" && <span className="tag">code chooses the next node</span>}
            {each.lm && <span className="tag">LLM {each.lm}</span>}
          </div>
          {each.about && <p className="muted class-about">{each.about}</p>}
          {each.fields.length > 0 && (
            <dl className="class-fields">
              {each.fields.map((field) => (
                <Field key={field.name} field={field} />
              ))}
            </dl>
          )}
        </li>
      ))}
    </ul>
  );
}

function Field({ field }: { field: ClassFieldView }) {
  const [label, color, about] = SOURCES[field.source] ?? [field.source, field.source, field.source];
  return (
    <>
      <dt>
        <code>{field.name}</code>
        {!field.required && <span className="small muted"> optional</span>}
      </dt>
      <dd>
        <code className="muted">{field.type}</code>
        <span className={`source ${color}`} title={about}>
          {label}
        </span>
        {field.origin && <span className="small muted">{field.origin}</span>}
        {field.description && <p className="small muted">{field.description}</p>}
      </dd>
    </>
  );
}
