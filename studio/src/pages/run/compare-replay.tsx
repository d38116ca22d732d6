// Replay: whether the current code takes the same path with the recorded values. It calls no LLM and
// no function, and asks no person.

import "./compare-replay.css";

import { useMutation } from "@tanstack/react-query";
import { useState } from "react";

import { api, pathOf } from "../../api/client.ts";
import type { ReplayView } from "../../api/types.ts";
import { useMay, useServes } from "../../studio.tsx";
import { Copy, Problem } from "../../ui/basics.tsx";
import { formatCount } from "../../ui/format.ts";
import { Dialog } from "../../ui/overlays.tsx";

/** A button that replays a run and shows the outcome. `blocked` is why it cannot be replayed here. */
export function Replay({ run, graph, className = "button small", blocked = "" }: { run: string; graph: string; className?: string; blocked?: string }) {
  const [isOpen, setOpen] = useState(false);
  const { may, why } = useMay("run");
  const served = useServes(graph);
  const replay = useMutation({ mutationFn: () => api<ReplayView>(pathOf`/runs/${run}/replay`, { method: "POST" }) });
  return (
    <>
      <button
        type="button"
        className={className}
        disabled={blocked !== "" || !may || !served.serves}
        title={blocked || why || served.why || "Run the current code with the recorded values"}
        onClick={() => {
          setOpen(true);
          replay.mutate();
        }}
      >
        Replay
      </button>
      {isOpen && (
        <Dialog title={`Replay of ${run}`} kind="drawer" onClose={() => setOpen(false)}>
          <div aria-live="polite">
            {replay.isPending && <p className="muted">The current code runs with the recorded values…</p>}
            {replay.error && <Problem error={replay.error} />}
            {replay.data && <ReplayOutcome found={replay.data} />}
          </div>
        </Dialog>
      )}
    </>
  );
}

const OUTCOMES: Record<ReplayView["outcome"], [mark: string, text: string]> = {
  same: ["✓", "The current code takes the same path."],
  differs: ["≠", "The current code takes another path."],
  unknown: ["?", "This run cannot be replayed."],
};

/** What a replay found. */
function ReplayOutcome({ found }: { found: ReplayView }) {
  const [mark, text] = OUTCOMES[found.outcome];
  return (
    <div className="stack">
      <p className={`replay-outcome ${found.outcome}`}>
        <span aria-hidden="true">{mark}</span> {text}
      </p>
      {found.why && (
        <p className="replay-why">
          {found.why} {found.code && <code className="muted">{found.code}</code>}
        </p>
      )}
      {found.diff && <Difference text={found.diff} />}
      {found.trace.length > 0 && (
        <section>
          <h3>{formatCount(found.trace.length)} nodes</h3>
          <ol className="replay-trace">
            {found.trace.map((node, index) => (
              <li key={index} className="tag">
                {node}
              </li>
            ))}
          </ol>
        </section>
      )}
    </div>
  );
}

function Difference({ text }: { text: string }) {
  return (
    <section aria-label="Difference">
      <p className="row small muted">
        <span className="grow">− recorded, + the current code</span>
        <Copy text={text} />
      </p>
      <pre className="replay-diff" tabIndex={0}>
        {text.split("\n").map((line, index) => (
          <span key={index} className={line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : ""}>
            {line}
            {"\n"}
          </span>
        ))}
      </pre>
    </section>
  );
}
