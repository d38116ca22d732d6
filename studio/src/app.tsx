import { useQuery } from "@tanstack/react-query";
import { lazy, type ReactNode, Suspense } from "react";
import { Link, Redirect, Route, Switch, useLocation } from "wouter";

import { inboxQuery } from "./api/queries.ts";
import { Login } from "./login.tsx";
import { pathPart } from "./path.ts";
import { Shell } from "./shell.tsx";
import { Studio, useStudio } from "./studio.tsx";
import { Empty, Loading, Problem } from "./ui/basics.tsx";
import { Guard } from "./ui/guard.tsx";

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
          <Page>
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
                <Route path="/runs/:run/vs/:other">{() => <ComparePage a={pathPart(1)!} b={pathPart(3)!} />}</Route>
                <Route path="/runs/:run">{({ run }) => <RunPage key={run} base="" run={pathPart(1)!} />}</Route>
                <Route path="/graphs/:graph?">{() => <GraphsPage graph={pathPart(1)} />}</Route>
                <Route path="/chat/:graph?/:thread?">
                  {() => <ChatPage graph={pathPart(1)} thread={pathPart(2)} />}
                </Route>
                <Route path="/team/:team/runs/:run">
                  {({ run }) => <AgentRunPage key={run} team={pathPart(1)!} run={pathPart(3)!} />}
                </Route>
                <Route path="/team/:team?/*?">{() => <TeamPage team={pathPart(1)} />}</Route>
                <Route>
                  <Empty isPage mark="?" title="There is no such page">
                    <Link href="/runs">All runs</Link>
                  </Empty>
                </Route>
              </Switch>
            </Suspense>
          </Page>
        </Shell>
      </Studio>
    </Login>
  );
}

/** A page that fails shows its error. The navigation stays. */
function Page({ children }: { children: ReactNode }) {
  const [path] = useLocation();
  return (
    <Guard of={path} instead={(error) => <FailedPage error={error} />}>
      {children}
    </Guard>
  );
}

function FailedPage({ error }: { error: unknown }) {
  return (
    <div className="page">
      <Problem error={error}>
        <p className="fix">This page could not be shown. After a restart the studio may have a newer page: load it again.</p>
        <button type="button" className="button" onClick={() => location.reload()}>
          Load again
        </button>
      </Problem>
    </div>
  );
}

/** The inbox is the front page when something waits; otherwise the team is, where no graph is served. */
function Front() {
  const studio = useStudio();
  const { data, isPending } = useQuery(inboxQuery());
  if (isPending) return <Loading />;
  const usual = studio.graphs.length === 0 && studio.teams.length > 0 ? "/team" : "/runs";
  return <Redirect to={data !== undefined && data.gates.length > 0 ? "/inbox" : usual} replace />;
}
