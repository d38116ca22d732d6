// AG-UI's own client, driven by lines of JSON: each line is a run of one of several agents, and each
// line of the answer has what the client made of it.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";

const [folder] = process.argv.slice(2);
const { HttpAgent, EventType } = createRequire(`${folder}/package.json`)("@ag-ui/client");
const agents = new Map();
console.error = console.warn = () => {}; // stdout has the answers alone

async function run({ agent: name, url, token, thread, ask, drop, forget, state, ...more }) {
  if (forget || !agents.has(name)) {
    const headers = { authorization: `Bearer ${token}` };
    agents.set(name, new HttpAgent({ url, threadId: thread, headers }));
  }
  const agent = agents.get(name);
  const events = [];
  let error = null;
  let done = null;
  if (ask !== undefined) {
    agent.addMessage({ id: ask.id ?? crypto.randomUUID(), role: "user", content: ask.content });
  }
  if (state !== undefined) agent.setState(state);
  try {
    done = await agent.runAgent(more, {
      onEvent: ({ event }) => {
        events.push(event);
        if (event.type === drop) agent.abortRun();
      },
      onRunFailed: (failed) => {
        error = String(failed.error.message ?? failed.error);
      },
    });
  } catch (failed) {
    error ??= String(failed.message ?? failed);
  }
  const { messages, pendingInterrupts: pending } = agent;
  return { events, messages, pending, state: agent.state, result: done?.result ?? null, error };
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await run(JSON.parse(line))));
}
