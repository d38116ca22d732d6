// What the list of runs shows while it has none, and what to do about it.

import { useQuery } from "@tanstack/react-query";

import { graphQuery } from "../../api/queries.ts";
import type { StudioGraph } from "../../api/types.ts";
import type { Schema } from "../../forms/schema.ts";
import { useMay, useStudio } from "../../studio.tsx";
import { Command, Empty } from "../../ui/basics.tsx";
import { commandFor } from "./start-command.ts";

interface EmptyRunsProps {
  isFiltered: boolean;
  /** How many runs have come meanwhile. */
  fresh: number;
  onShow: () => void;
  onClear: () => void;
  onStart: () => void;
}

export function EmptyRuns({ isFiltered, fresh, onShow, onClear, onStart }: EmptyRunsProps) {
  const studio = useStudio();
  const { may, why } = useMay("run");
  const [graph] = studio.graphs;
  const news = fresh > 0 && (
    <button type="button" className="button primary" onClick={onShow}>
      {fresh === 1 ? "Show the new run" : `Show ${fresh} new runs`}
    </button>
  );
  if (isFiltered) {
    return (
      <Empty mark="⌕" title="No run matches the filter">
        <p>The search covers ids, first words, graphs, errors, threads, metadata and last nodes.</p>
        {news}
        <button type="button" className="button" onClick={onClear}>
          Clear the filter
        </button>
      </Empty>
    );
  }
  return (
    <Empty mark="▸" title="No runs yet">
      {news}
      {graph === undefined ? (
        <>
          <p>This journal has no run, and no graph is loaded here. Load a graph:</p>
          <Command text={studio.serve_command} />
        </>
      ) : (
        <>
          <button type="button" className="button primary" disabled={!may} title={why} onClick={onStart}>
            Start a run
          </button>
          {graph.run_command && <TerminalCommand graph={graph} />}
        </>
      )}
    </Empty>
  );
}

function TerminalCommand({ graph }: { graph: StudioGraph }) {
  const { data } = useQuery(graphQuery(graph.name));
  if (data === undefined) return null;
  return (
    <>
      <p>Or start one in a terminal, and watch it here:</p>
      <Command text={commandFor(graph.run_command, data.start_schema as Schema)} />
    </>
  );
}
