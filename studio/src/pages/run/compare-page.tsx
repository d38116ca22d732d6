// Two runs side by side: where they part, and the fields that differ.

import "./compare.css";

import { keepPreviousData, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { type ReactNode, useMemo } from "react";
import { Link, useLocation } from "wouter";

import { api } from "../../api/client.ts";
import { runQuery } from "../../api/queries.ts";
import type { ComparisonView, NodePair, RunRow } from "../../api/types.ts";
import { useSearchParams } from "../../search.ts";
import { Age, Empty, Loading, Problem, Status } from "../../ui/basics.tsx";
import { formatCost, formatCount, formatSeconds } from "../../ui/format.ts";
import { ComparedNode } from "./compare-node.tsx";
import { Replay } from "./compare-replay.tsx";

export default function ComparePage({ a, b }: { a: string; b: string }) {
  const [params, setParams] = useSearchParams();
  const [, navigate] = useLocation();
  const same = params.get("same") === "1";
  const query = useInfiniteQuery({
    queryKey: ["compare", a, b, same],
    queryFn: ({ pageParam, signal }) => api<ComparisonView>("/compare", { query: { a, b, same, start: pageParam }, signal }),
    initialPageParam: 0,
    getNextPageParam: (last, pages) => {
      const listed = pages.reduce((sum, page) => sum + page.nodes.length, 0);
      return last.nodes.length > 0 && listed < last.total ? listed : undefined;
    },
    placeholderData: keepPreviousData,
  });
  const pages = query.data?.pages;
  const nodes = useMemo(() => pages?.flatMap((page) => page.nodes) ?? [], [pages]);
  const head = pages?.[0];
  const swap = () => navigate(`/runs/${encodeURIComponent(b)}/vs/${encodeURIComponent(a)}${same ? "?same=1" : ""}`, { replace: true });
  return (
    <div className="page compare-page">
      <header className="page-head">
        <h1>Compare two runs</h1>
        <button type="button" className="button" onClick={swap}>
          ⇄ Swap
        </button>
      </header>
      {query.error && nodes.length === 0 && <Problem error={query.error} />}
      {query.isPending && <Loading lines={6} />}
      {head && (
        <>
          <div className="compare-sides">
            <Side row={head.a} label="A" />
            <Side row={head.b} label="B" />
          </div>
          <Verdict head={head} same={same} onSame={(on) => setParams(on ? { same: "1" } : {}, { replace: true })} />
          {head.a.graph !== head.b.graph && (
            <p className="note compare-note">
              These are runs of two graphs, {head.a.graph} and {head.b.graph}: nodes are paired by class and visit.
            </p>
          )}
          {nodes.length === 0 && head.first === null && (
            <Empty mark="=" title="Both runs are the same">
              <p>Every node, field and choice is equal. Times are not compared.</p>
            </Empty>
          )}
          <ol className="compare-nodes" aria-label="Nodes">
            {nodes.map((node) => (
              <li key={`${node.path} ${node.node} ${node.visit} ${node.state}`}>
                <ComparedNode node={node} a={a} b={b} isFirst={isFirst(node, head.first)} />
              </li>
            ))}
          </ol>
          {query.hasNextPage && (
            <p className="compare-more">
              <button type="button" className="button" disabled={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
                {query.isFetchingNextPage ? "Loading…" : `Show more: ${formatCount(head.total - nodes.length)} are left`}
              </button>
            </p>
          )}
        </>
      )}
    </div>
  );
}

function isFirst(node: NodePair, first: string | null): boolean {
  return first !== null && node.state !== "same" && (node.a || node.b) === first;
}

function Verdict({ head, same, onSame }: { head: ComparisonView; same: boolean; onSame: (on: boolean) => void }) {
  return (
    <div className="compare-verdict row wrap">
      <p className="grow" role="status">
        {head.first === null ? (
          "No difference."
        ) : (
          <>
            The first difference is at <code className="strong">{head.first}</code>
            {!same && `; ${head.total === 1 ? "one node differs" : `${formatCount(head.total)} nodes differ`}`}.
          </>
        )}
      </p>
      <label className="row compare-same">
        <input type="checkbox" checked={same} onChange={(event) => onSame(event.target.checked)} />
        Show nodes that are the same
      </label>
    </div>
  );
}

/** One of the two runs, with what it used. */
function Side({ row, label }: { row: RunRow; label: string }) {
  const { data } = useQuery(runQuery({ base: "", run: row.run_id }));
  const usage = data?.usage;
  return (
    <section className="panel compare-side" aria-label={`Run ${label}`}>
      <div className="row">
        <span className="compare-label" aria-hidden="true">
          {label}
        </span>
        <Link href={`/runs/${encodeURIComponent(row.run_id)}`} className="truncate strong grow" title={row.run_id}>
          {row.run_id}
        </Link>
        <Status status={row.status} />
      </div>
      {row.preview && (
        <p className="truncate muted" title={row.preview}>
          {row.preview}
        </p>
      )}
      <dl className="compare-usage">
        <Fact name="graph">{row.graph}</Fact>
        <Fact name="age">
          <Age at={row.started} />
        </Fact>
        <Fact name="took">{formatSeconds(row.seconds)}</Fact>
        <Fact name="steps">{row.steps === null ? "–" : formatCount(row.steps)}</Fact>
        <Fact name="LLM calls">{usage ? formatCount(usage.calls) : "…"}</Fact>
        <Fact name="tokens">{usage ? formatCount(usage.input_tokens + usage.output_tokens) : "…"}</Fact>
        <Fact name="cost">{!usage ? "…" : usage.calls === 0 ? "–" : formatCost(usage.cost)}</Fact>
        {usage !== null && usage !== undefined && usage.models.length > 0 && <Fact name="models">{usage.models.join(", ")}</Fact>}
      </dl>
      {row.error && <p className="compare-error">{data?.error ?? row.error}</p>}
      <Replay run={row.run_id} graph={row.graph} />
    </section>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
