// What the proof of a graph has found, and the tools that its LLMs may call.

import type { ProblemView, ToolView } from "../../api/types.ts";
import type { Schema } from "../../forms/schema.ts";
import { nameOf, resolve } from "../../forms/schema.ts";
import { Copy } from "../../ui/basics.tsx";
import { nodeOfPlace } from "../../ui/graph-picture.tsx";

export function Problems({ problems, onNode }: { problems: ProblemView[]; onNode: (node: string) => void }) {
  if (problems.length === 0) {
    return (
      <p className="proved">
        <span aria-hidden="true">✓</span> The proof found no problem: each field gets a value on every path.
      </p>
    );
  }
  return (
    <ul className="stack">
      {problems.map((problem, index) => (
        <li key={index} className={`proof ${problem.severity}`}>
          <p className="row wrap">
            <span className="proof-kind">
              {problem.severity === "error" ? "✗" : "!"} {problem.severity}
            </span>
            <button type="button" className="proof-place" onClick={() => onNode(nodeOfPlace(problem.place))}>
              {problem.place}
            </button>
            <code className="muted">{problem.code}</code>
          </p>
          <p>{problem.message}</p>
          {problem.fix && (
            <p className="proof-fix">
              <span className="strong">Fix</span> {problem.fix} <Copy text={problem.fix} />
            </p>
          )}
        </li>
      ))}
    </ul>
  );
}

export function Tools({ tools }: { tools: ToolView[] }) {
  if (tools.length === 0) return <p className="muted">No node of this graph has tools. A field with Tools(…) lets the LLM call functions before it answers.</p>;
  return (
    <ul className="stack">
      {tools.map((tool) => (
        <li key={`${tool.node} ${tool.name}`} className="graph-tool">
          <p className="row wrap">
            <code className="strong">{tool.name}</code>
            <span className="small muted">for {tool.node}</span>
          </p>
          <p className="class-about">{tool.description || "It has no description: the LLM sees only its name and arguments."}</p>
          <Arguments schema={tool.arguments as Schema} />
        </li>
      ))}
    </ul>
  );
}

function Arguments({ schema }: { schema: Schema }) {
  const found = Object.entries(schema.properties ?? {});
  if (found.length === 0) return <p className="small muted">no arguments</p>;
  return (
    <dl className="class-fields">
      {found.map(([name, each]) => {
        const part = resolve(each, schema);
        return [
          <dt key={name}>
            <code>{name}</code>
            {!schema.required?.includes(name) && <span className="small muted"> optional</span>}
          </dt>,
          <dd key={`${name} type`}>
            <code className="muted">{part.enum ? part.enum.map(String).join(" | ") : nameOf({ ...part, title: "" })}</code>
            {part.description && <p className="small muted">{part.description}</p>}
          </dd>,
        ];
      })}
    </dl>
  );
}
