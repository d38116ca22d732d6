// A graph as a picture: lines as SVG, nodes as buttons in reading order, so that a keyboard and a
// screen reader have them too. Where everything is comes from the server.

import "./graph-picture.css";

import { type ReactNode, useEffect, useRef, useState } from "react";

import type { BoxView, EdgeView, ProblemView } from "../api/types.ts";
import { arrowHead, diamond, edgeKey, extentOf, nodeOfPlace, pathOfLine, shorten } from "./graph-lines.ts";

export { edgeKey, nodeOfPlace } from "./graph-lines.ts";

export interface GraphPictureProps {
  /** The name of the graph, for screen readers. */
  name: string;
  boxes: readonly BoxView[];
  edges: readonly EdgeView[];
  start?: string;
  ends?: readonly string[];
  problems?: readonly ProblemView[];
  /** The edges that a run took, by `edgeKey`. Without it all edges are drawn alike. */
  taken?: ReadonlySet<string>;
  /** How often a run was at each node. Without it all nodes are drawn alike. */
  visits?: ReadonlyMap<string, number>;
  /** The nodes at which a run is, or stopped. */
  current?: readonly string[];
  /** The status of the run: the color of the nodes at which it is. */
  status?: string;
  selected?: string | null;
  /** Makes the nodes buttons. */
  onSelect?: (node: string) => void;
  /** What a node shows in place of its name, and what a screen reader says. */
  describe?: (node: string) => { content: ReactNode; label: string; className: string };
  /** What the picture says below itself besides the kinds of its edges. */
  children?: ReactNode;
}

const SMALLEST = 0.62;
const PAD = 12;
const KINDS: Record<string, string> = { lm: "the LLM chooses", code: "the code decides" };

export function GraphPicture(props: GraphPictureProps) {
  const { name, boxes, edges, taken, visits, children } = props;
  const frame = useRef<HTMLDivElement>(null);
  const room = useWidth(frame);
  const { width, height } = extentOf(boxes, edges, PAD);
  const scale = room === 0 ? 1 : Math.min(1, Math.max(SMALLEST, room / width));
  const ran = taken !== undefined || visits !== undefined;
  const kinds = [...new Set(edges.map((edge) => edge.chosen_by))].filter((kind) => kind in KINDS);
  // Edges that were taken are drawn last, above the others.
  const ordered = taken === undefined ? edges : [...edges].sort((a, b) => Number(isTaken(a, taken)) - Number(isTaken(b, taken)));
  return (
    <figure className={`graph-picture${ran ? " ran" : ""}`}>
      <div ref={frame} className="graph-frame">
        <div className="graph-fit" style={{ width: width * scale, height: height * scale }}>
          <div className="graph-canvas" style={{ width, height, transform: `scale(${scale})` }}>
            <svg className="graph-lines" width={width} height={height} aria-hidden="true">
              <g transform={`translate(${PAD} ${PAD})`}>
                {ordered.map((edge, index) => (
                  <Line key={`${edgeKey(edge.source, edge.target)} ${index}`} edge={edge} isTaken={taken !== undefined && isTaken(edge, taken)} />
                ))}
              </g>
            </svg>
            <ul aria-label={`Nodes of ${name}`}>
              {boxes.map((box) => (
                <li key={box.node}>
                  <GraphNode {...props} box={box} />
                </li>
              ))}
            </ul>
          </div>
        </div>
      </div>
      <ul className="sr-only" aria-label={`Edges of ${name}`}>
        {edges.map((edge, index) => (
          <li key={index}>
            {edge.source} to {edge.target}
            {KINDS[edge.chosen_by] && `, ${KINDS[edge.chosen_by]}`}
            {taken !== undefined && isTaken(edge, taken) && ", taken"}
          </li>
        ))}
      </ul>
      {(kinds.length > 0 || children) && (
        <figcaption className="row wrap small muted">
          {kinds.map((kind) => (
            <span key={kind} className="row graph-key">
              <svg width="34" height="12" aria-hidden="true">
                <Line
                  isTaken={false}
                  edge={{
                    source: "",
                    target: "",
                    chosen_by: kind,
                    line: [
                      [1, 6],
                      [33, 6],
                    ],
                  }}
                />
              </svg>
              {KINDS[kind]}
            </span>
          ))}
          {children}
        </figcaption>
      )}
    </figure>
  );
}

function isTaken(edge: EdgeView, taken: ReadonlySet<string>): boolean {
  return taken.has(edgeKey(edge.source, edge.target));
}

function Line({ edge, isTaken: wasTaken }: { edge: EdgeView; isTaken: boolean }) {
  if (edge.line.length < 2) return null;
  return (
    <g className={`graph-edge ${edge.chosen_by}${wasTaken ? " taken" : ""}`}>
      <path d={pathOfLine(shorten(edge.line, edge.chosen_by === "certain" ? 0 : 10, 7))} />
      <polygon className="head" points={arrowHead(edge.line)} />
      {edge.chosen_by !== "certain" && <polygon className="choice-mark" points={diamond(edge.line)} />}
    </g>
  );
}

function GraphNode({ box, start, ends, problems, visits, current, status = "running", selected, onSelect, describe }: GraphPictureProps & { box: BoxView }) {
  const count = visits?.get(box.node) ?? 0;
  const found = problems?.filter((problem) => nodeOfPlace(problem.place) === box.node) ?? [];
  const isError = found.some((problem) => problem.severity === "error");
  const isCurrent = current?.includes(box.node) ?? false;
  const isEnd = ends?.includes(box.node) ?? false;
  const words = [
    box.node === start && "start",
    isEnd && "a run can end here",
    visits !== undefined && (count === 0 ? "not visited" : `visited ${count === 1 ? "once" : `${count} times`}`),
    isCurrent && `current, ${status}`,
    found.length > 0 && `${found.length} ${found.length === 1 ? "problem" : "problems"}`,
  ].filter((word) => word !== false);
  const described = describe?.(box.node);
  const className = [
    "graph-node",
    box.node === start && "start",
    isEnd && "end",
    visits !== undefined && (count > 0 || isCurrent ? "visited" : "unvisited"),
    isCurrent && `current ${status}`,
    selected === box.node && "selected",
    described?.className,
  ]
    .filter(Boolean)
    .join(" ");
  const style = { left: box.x + PAD, top: box.y + PAD, width: box.width, height: box.height };
  const content = described?.content ?? (
    <>
      <span className="truncate">{box.node}</span>
      {count > 1 && <span className="graph-count">×{count}</span>}
      {found.length > 0 && <span className={`graph-problem${isError ? " error" : ""}`}>!</span>}
    </>
  );
  const label = described?.label ?? [box.node, ...words].join(", ");
  if (onSelect === undefined) {
    return (
      <div className={className} style={style} title={label}>
        {content}
        <span className="sr-only">{words.join(", ")}</span>
      </div>
    );
  }
  return (
    <button
      type="button"
      className={className}
      style={style}
      title={label}
      aria-label={label}
      aria-pressed={selected === box.node}
      aria-current={isCurrent ? "step" : undefined}
      onClick={() => onSelect(box.node)}
    >
      {content}
    </button>
  );
}

/** How wide an element is; 0 until it is known. */
function useWidth(ref: { readonly current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry!.contentRect.width)));
    observer.observe(ref.current!);
    return () => observer.disconnect();
  }, [ref]);
  return width;
}
