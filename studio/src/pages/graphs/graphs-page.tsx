// The graphs that are served: what each can do, what its proof has found, and what it asks of LLMs.

import "./graphs.css";

import { useQuery } from "@tanstack/react-query";
import { type ReactNode, useEffect } from "react";
import { Link, Redirect } from "wouter";

import { graphQuery } from "../../api/queries.ts";
import type { GraphView, StudioGraph } from "../../api/types.ts";
import { useSearchParams } from "../../search.ts";
import { useMay, useStudio } from "../../studio.tsx";
import { Command, Copy, Empty, Loading, Problem } from "../../ui/basics.tsx";
import { GraphPicture } from "../../ui/graph-picture.tsx";
import { StartRun } from "../runs/start-run.tsx";
import { Nodes } from "./nodes.tsx";
import { Prompts } from "./prompts.tsx";
import { Problems, Tools } from "./proof.tsx";

const TABS = ["nodes", "problems", "tools", "prompts"] as const;
type Tab = (typeof TABS)[number];

export default function GraphsPage({ graph }: { graph: string | null }) {
  const { graphs, serve_command: command } = useStudio();
  const found = graphs.find((each) => each.name === graph);
  if (graphs.length === 0) {
    return (
      <Empty isPage mark="◇" title="No graph is loaded">
        <p>A graph that is loaded is shown here with its picture, its problems and its prompts. Its runs can be started, resumed and forked.</p>
        <Command text={command} />
      </Empty>
    );
  }
  if (graph === null) return <Redirect to={`/graphs/${encodeURIComponent(graphs[0]!.name)}`} replace />;
  return (
    <div className="page graphs-page">
      {graphs.length > 1 && (
        <nav className="tabs graph-tabs" aria-label="Graphs">
          {graphs.map((each) => (
            <Link key={each.name} href={`/graphs/${encodeURIComponent(each.name)}`} className="tab" aria-current={each.name === graph ? "page" : undefined}>
              {each.name}
            </Link>
          ))}
        </nav>
      )}
      {found === undefined ? (
        <Empty isPage mark="?" title={`No graph ${graph} is loaded`}>
          <Command text={command} />
        </Empty>
      ) : (
        <Graph key={found.name} row={found} />
      )}
    </div>
  );
}

function Graph({ row }: { row: StudioGraph }) {
  const { data, error } = useQuery(graphQuery(row.name));
  const [params, setParams] = useSearchParams();
  const { may, why } = useMay("run");
  const node = params.get("node");
  const change = (name: string, value: string | null, replace = false) =>
    setParams(
      (old) => {
        const next = new URLSearchParams(old);
        if (value === null) next.delete(name);
        else next.set(name, value);
        return next;
      },
      { replace },
    );
  const path = encodeURIComponent(row.name);
  return (
    <>
      <header className="page-head">
        <h1 className="truncate">{row.name}</h1>
        <Link href={`/runs?graph=${path}`} className="button">
          Runs
        </Link>
        {row.message !== null && (
          <Link href={`/chat/${path}`} className="button">
            Chat
          </Link>
        )}
        <button type="button" className="button primary" disabled={!may} title={why} onClick={() => change("start", "")}>
          Start a run
        </button>
      </header>
      {row.about && row.about !== row.start && <p className="graph-about">{row.about}</p>}
      {error && <Problem error={error} />}
      {!data && !error && <Loading lines={6} />}
      {data && (
        <div className="graph-columns">
          <section className="panel graph-drawing" aria-label="Picture">
            <div className="panel-body">
              <GraphPicture
                name={data.name}
                boxes={data.boxes}
                edges={data.edges}
                start={data.start}
                ends={data.classes.filter((each) => each.ending !== "never").map((each) => each.node)}
                problems={data.problems}
                selected={node}
                onSelect={(name) => setParams({ node: name, tab: "nodes" }, { replace: true })}
              >
                <Copy text={data.mermaid} label="Copy as Mermaid" />
              </GraphPicture>
            </div>
          </section>
          <Details graph={data} node={node} tab={tabOf(params.get("tab"), data)} onTab={(tab) => change("tab", tab, true)} onNode={(name) => change("node", name, true)} />
        </div>
      )}
      {params.get("start") !== null && <StartRun graph={row.name} onClose={() => change("start", null)} />}
    </>
  );
}

/** A graph with problems begins with them. */
function tabOf(asked: string | null, graph: GraphView): Tab {
  const found = TABS.find((tab) => tab === asked);
  return found ?? (graph.problems.length > 0 ? "problems" : "nodes");
}

interface DetailsProps {
  graph: GraphView;
  node: string | null;
  tab: Tab;
  onTab: (tab: Tab) => void;
  onNode: (node: string | null) => void;
}

function Details({ graph, node, tab, onTab, onNode }: DetailsProps) {
  const { problems, tools, classes } = graph;
  const labels: Record<Tab, [string, number | null]> = {
    nodes: ["Nodes", classes.length],
    problems: ["Problems", problems.length],
    tools: ["Tools", tools.length],
    prompts: ["Prompts", null],
  };
  useEffect(() => {
    if (node !== null && tab === "nodes") document.getElementById(`class-${node}`)?.scrollIntoView({ block: "nearest" });
  }, [node, tab]);
  const content: Record<Tab, () => ReactNode> = {
    nodes: () => <Nodes classes={classes} start={graph.start} selected={node} onSelect={onNode} />,
    problems: () => <Problems problems={problems} onNode={(name) => onNode(name)} />,
    tools: () => <Tools tools={tools} />,
    prompts: () => <Prompts graph={graph.name} />,
  };
  return (
    <section className="panel graph-details" aria-label="Details">
      <div className="panel-head">
        <div className="tabs" role="tablist" aria-label="Details">
          {TABS.map((each) => (
            <button key={each} type="button" role="tab" id={`tab-${each}`} aria-controls="graph-tab" className="tab" aria-selected={each === tab} onClick={() => onTab(each)}>
              {labels[each][0]} {labels[each][1] !== null && <span className="tab-count">{labels[each][1]}</span>}
            </button>
          ))}
        </div>
      </div>
      <div className="panel-body" id="graph-tab" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {content[tab]()}
      </div>
    </section>
  );
}
