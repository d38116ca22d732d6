// The prompts that a graph can send. Nothing is sent to show them.

import { useQuery } from "@tanstack/react-query";

import { api, pathOf } from "../../api/client.ts";
import type { PromptPage, PromptView } from "../../api/types.ts";
import { Copy, Loading, Problem } from "../../ui/basics.tsx";

export function Prompts({ graph }: { graph: string }) {
  const { data, error } = useQuery({
    queryKey: ["graph", graph, "prompts"],
    queryFn: ({ signal }) => api<PromptPage>(pathOf`/graphs/${graph}/prompts`, { signal }),
    staleTime: Infinity,
  });
  if (error) return <Problem error={error} />;
  if (data === undefined) return <Loading />;
  if (data.prompts.length === 0) return <p className="muted">This graph asks no LLM, or its own code writes the prompts.</p>;
  return (
    <div className="stack">
      <p className="small muted">All prompts that this graph can send to an LLM, with sample values.</p>
      {data.prompts.map((prompt, index) => (
        <Prompt key={index} prompt={prompt} />
      ))}
    </div>
  );
}

function Prompt({ prompt }: { prompt: PromptView }) {
  const what = prompt.target === null ? `choose among ${prompt.options.join(", ")}` : `fill ${prompt.target}`;
  return (
    <details className="graph-prompt">
      <summary>
        {prompt.source !== null && <span className="muted">{prompt.source} → </span>}
        {what}
        {prompt.by_body && <span className="tag">asked by the code of the node</span>}
        {prompt.tools.length > 0 && <span className="tag">tools {prompt.tools.join(", ")}</span>}
      </summary>
      <Part role="system" text={prompt.system} />
      {prompt.messages.map((message, index) => (
        <Part key={index} role={message.role} text={message.text} />
      ))}
      <Part role="answer" text={prompt.answer_schema === null ? "plain text" : JSON.stringify(prompt.answer_schema, null, 2)} />
    </details>
  );
}

function Part({ role, text }: { role: string; text: string }) {
  return (
    <section className="prompt-part" aria-label={role}>
      <p className="row small muted">
        <span className="grow">{role === "answer" ? "schema of the answer" : role}</span>
        <Copy text={text} />
      </p>
      <pre>{text}</pre>
    </section>
  );
}
