import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense } from "react";
import { Redirect, Route, Switch } from "wouter";

import { inboxQuery } from "./api/queries.ts";
import { Login } from "./login.tsx";
import { Shell } from "./shell.tsx";
import { Studio } from "./studio.tsx";
import { Empty, Loading } from "./ui/basics.tsx";

const InboxPage = lazy(() => import("./pages/inbox/inbox-page.tsx"));
const RunsPage = lazy(() => import("./pages/runs/runs-page.tsx"));
const RunPage = lazy(() => import("./pages/run/run-page.tsx"));
const ComparePage = lazy(() => import("./pages/run/compare-page.tsx"));
const GraphsPage = lazy(() => import("./pages/graphs/graphs-page.tsx"));
const ChatPage = lazy(() => import("./pages/chat/chat-page.tsx"));
const TeamPage = lazy(() => import("./pages/team/team-page.tsx"));
const AgentRunPage = lazy(() => import("./pages/team/agent-run-page.tsx"));

export function App() {
  return (
    <Login>
      <Studio>
        <Shell>
          <Suspense
            fallback={
              <div className="page">
                <Loading />
              </div>
            }
          >
            <Switch>
              <Route path="/" component={Front} />
              <Route path="/inbox" component={InboxPage} />
              <Route path="/runs" component={RunsPage} />
              <Route path="/runs/:run/vs/:other">{({ run, other }) => <ComparePage a={decodeURIComponent(run)} b={decodeURIComponent(other)} />}</Route>
              <Route path="/runs/:run">{({ run }) => <RunPage key={run} base="" run={decodeURIComponent(run)} />}</Route>
              <Route path="/graphs/:graph?">{({ graph }) => <GraphsPage graph={graph === undefined ? null : decodeURIComponent(graph)} />}</Route>
              <Route path="/chat/:graph?/:thread?">
                {({ graph, thread }) => <ChatPage graph={graph ? decodeURIComponent(graph) : null} thread={thread ? decodeURIComponent(thread) : null} />}
              </Route>
              <Route path="/team/:team/runs/:run">
                {({ team, run }) => <AgentRunPage key={run} team={decodeURIComponent(team)} run={decodeURIComponent(run)} />}
              </Route>
              <Route path="/team/:team?/*?">{({ team }) => <TeamPage team={team ? decodeURIComponent(team) : null} />}</Route>
              <Route>
                <Empty mark="?" title="There is no such page" />
              </Route>
            </Switch>
          </Suspense>
        </Shell>
      </Studio>
    </Login>
  );
}

/** The inbox is the front page when something waits. */
function Front() {
  const { data, isPending } = useQuery(inboxQuery());
  if (isPending) return <Loading />;
  return <Redirect to={data !== undefined && data.gates.length > 0 ? "/inbox" : "/runs"} replace />;
}
