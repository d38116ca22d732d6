// Where a value came from, in words.

import { formatCount } from "../../ui/format.ts";

/** The kind of work behind a source: it has a color. */
export function workOf(source: string): string {
  switch (source) {
    case "lm":
    case "fill":
    case "choice":
      return "lm";
    case "tool":
    case "tools":
      return "tool";
    case "dep":
    case "map":
    case "gate":
      return source;
    case "item":
      return "map";
    default:
      return "body";
  }
}

/** A source in a few words: who made the value. */
export function sourceText(source: string, by: string, models: readonly string[] = []): string {
  switch (source) {
    case "caller":
      return "given";
    case "lm":
      return models.length > 0 ? models.join(", ") : "LLM";
    case "gate":
      return "a person";
    case "tools":
      return "tool calls";
    case "recall":
      return by ? `from ${by}` : "recalled";
    case "thread":
      return "earlier turns";
    case "default":
      return "default";
    case "fork":
      return "changed in the fork";
    case "body":
      return by ? `returned by ${by.replace(".__call__", "")}` : "returned";
    default:
      return by || source;
  }
}

export function Source({ source, by, models }: { source: string; by: string; models?: readonly string[] }) {
  return (
    <span className="source">
      <span className={`work-dot ${workOf(source)}`} aria-hidden="true" />
      <span className="truncate" title={`${source}${by ? ` ${by}` : ""}`}>
        {sourceText(source, by, models)}
      </span>
    </span>
  );
}

/** The usage of LLM calls in a few words. */
export function usageText(usage: { calls?: number; input_tokens?: number; output_tokens?: number }): string[] {
  const calls = usage.calls ?? 0;
  if (calls === 0) return [];
  const tokens = (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
  return [plural(calls, "call"), `${formatCount(tokens)} tokens`];
}

export function plural(count: number, noun: string): string {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`;
}
