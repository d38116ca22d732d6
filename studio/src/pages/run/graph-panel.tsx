// The graph of a run: the way it took, and where it is. Graphs that ran inside open in its place.

import { useQuery } from "@tanstack/react-query";

import { api, pathOf } from "../../api/client.ts";
import type { RunAt } from "../../api/queries.ts";
import type { RunGraphView } from "../../api/types.ts";
import { Loading, Problem } from "../../ui/basics.tsx";
import { edgeKey, GraphPicture } from "../../ui/graph-picture.tsx";
import { shortPlace } from "./places.ts";
import { plural } from "./sources.tsx";
import type { ChangeView, RunView } from "./run-view.ts";

const SHOWN = 50;

export function useRunGraph({ base, run }: RunAt, path: string) {
  return useQuery({
    queryKey: ["run", base, run, "graph", path],
    queryFn: ({ signal }) => api<RunGraphView>(base + pathOf`/runs/${run}/graph`, { query: { path }, signal }),
    retry: false,
  });
}

export function GraphPanel({ at, view, change, selected }: { at: RunAt; view: RunView; change: ChangeView; selected: string | null }) {
  const { data, error } = useRunGraph(at, view.path);
  return (
    <section className="panel run-graph" aria-label="Graph">
      <div className="panel-head">
        <h2 className="grow">Graph</h2>
        {data !== undefined && <span className="small muted truncate">{data.graph}</span>}
      </div>
      <div className="panel-body">
        {view.path !== "" && (
          <p className="run-crumbs small">
            <button type="button" className="link" onClick={() => change({ path: "", step: null, field: "", node: "" })}>
              {at.run}
            </button>
            <span aria-hidden="true">›</span>
            <code>{view.path}</code>
          </p>
        )}
        {error !== null && data === undefined && <Problem error={error} />}
        {error === null && data === undefined && <Loading lines={6} />}
        {data !== undefined && (
          <GraphPicture
            name={data.graph}
            boxes={data.boxes}
            edges={data.edges}
            ends={data.boxes.filter((box) => box.ends).map((box) => box.node)}
            problems={data.problems}
            taken={new Set(data.edges.filter((edge) => edge.taken > 0).map((edge) => edgeKey(edge.source, edge.target)))}
            visits={new Map(data.boxes.map((box) => [box.node, box.visits]))}
            current={data.boxes.filter((box) => box.is_current).map((box) => box.node)}
            status={data.status}
            selected={selected}
            onSelect={(node) => change({ node: view.node === node ? "" : node, step: null, field: "", filter: "", tab: "trace" }, true)}
            {...startOf(data)}
          />
        )}
        {data !== undefined && data.inner.length > 0 && (
          <div className="run-inner">
            <h3>Graphs inside</h3>
            <ul>
              {data.inner.slice(0, SHOWN).map((inner) => (
                <li key={inner.path}>
                  <button type="button" className="link truncate" title={inner.path} onClick={() => change({ path: inner.path, step: null, field: "", node: "" })}>
                    {inner.graph}
                  </button>
                  <span className="small muted truncate">
                    {shortPlace(inner.path)} · {plural(inner.nodes, "node")} · {inner.outcome || "running"}
                  </span>
                </li>
              ))}
            </ul>
            {data.inner_total > SHOWN && <p className="small muted">and {data.inner_total - SHOWN} more: open them from their fields</p>}
          </div>
        )}
      </div>
    </section>
  );
}

function startOf(data: RunGraphView): { start?: string } {
  const start = data.boxes.find((box) => box.is_start)?.node;
  return start === undefined ? {} : { start };
}
