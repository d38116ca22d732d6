// The page without a token: it exchanges the one of the link, or asks for a new link.

import { Activity, type ReactNode, useEffect, useRef, useState, useSyncExternalStore } from "react";

import { api, ApiProblem } from "./api/client.ts";
import { getToken, onToken, setToken, takeLinkToken } from "./api/session.ts";
import { client } from "./api/queries.ts";
import { Command, Empty, Loading, Problem } from "./ui/basics.tsx";

export function useToken(): string | null {
  return useSyncExternalStore(onToken, getToken);
}

/** Shows the page to a user who has a token. */
export function Login({ children }: { children: ReactNode }) {
  const token = useToken();
  const [given] = useState(takeLinkToken);
  const [isAsking, setAsking] = useState(given !== null);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    if (given === null) return;
    const stop = new AbortController();
    api<{ token: string }>("/login", { method: "POST", body: { token: given }, signal: stop.signal, isLogin: true })
      .then((found) => {
        client.clear();
        setToken(found.token);
        setAsking(false);
      })
      .catch((problem: unknown) => {
        if (stop.signal.aborted) return;
        // A link that was used before is no fault where the page has a token already.
        if (getToken() === null) setError(problem);
        setAsking(false);
      });
    return () => stop.abort();
  }, [given]);
  const wasOpen = useRef(false);
  if (isAsking) return <div className="page"><Loading /></div>;
  if (token !== null) wasOpen.current = true;
  return (
    <>
      {token === null && <NoToken error={error} />}
      {/* What is typed stays until there is a token again: another tab may get it. */}
      {wasOpen.current && <Activity mode={token === null ? "hidden" : "visible"}>{children}</Activity>}
    </>
  );
}

function NoToken({ error }: { error: unknown }) {
  return (
    <main>
      <Empty isPage mark="🔑" title="Open the link that the studio printed">
        {error instanceof ApiProblem && <Problem error={error} />}
        <p>A link logs in one browser, once. For a new link, press Enter in the terminal of the studio, or start it again.</p>
        <Command text="bae studio" />
      </Empty>
    </main>
  );
}
