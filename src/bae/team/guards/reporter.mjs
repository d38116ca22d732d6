// A reporter for Node's test runner: a line of JSON for each test, with its file and how deep it
// is in groups, and an empty object at the end. A group comes after its tests.
import { inspect } from "node:util";

export default async function* report(source) {
  const printed = new Map();
  for await (const { type, data } of source) {
    if (type === "test:stderr") {
      printed.set(data.file, ((printed.get(data.file) ?? "") + data.message).slice(-4000));
    }
    if (type !== "test:pass" && type !== "test:fail") continue;
    const { error, type: kind } = data.details ?? {};
    const cause = error?.cause ?? error;
    const text = typeof cause === "string" ? cause : cause?.stack ?? inspect(cause);
    const skipped = data.skip !== undefined || data.todo !== undefined;
    const outcome = skipped ? "skipped" : type === "test:pass" ? "passed" : "failed";
    yield `${JSON.stringify({
      file: data.file,
      name: data.name,
      depth: data.nesting,
      outcome,
      is_group: kind === "suite",
      repeats: error?.failureType === "subtestsFailed",
      message: outcome === "failed" ? text : "",
      printed: printed.get(data.file) ?? "",
    })}\n`;
  }
  yield "{}\n";
}
