// The studio itself: its graphs and teams, the user, and the actions that are allowed.

import { useQuery } from "@tanstack/react-query";
import { createContext, type ReactNode, useContext } from "react";

import { api } from "./api/client.ts";
import type { StudioView } from "./api/types.ts";
import { Loading, Problem } from "./ui/basics.tsx";

const Context = createContext<StudioView | null>(null);

/** The graphs and teams that are served, and what the user may do. */
export function useStudio(): StudioView {
  const found = useContext(Context);
  if (found === null) throw new Error("useStudio() is for components inside <Studio>");
  return found;
}

/** Whether the user may do something, and if not, why. */
export function useMay(verb: StudioView["can"][number]): { may: boolean; why: string } {
  const studio = useStudio();
  if (studio.can.includes(verb)) return { may: true, why: "" };
  const why = studio.read_only === null ? `${studio.user} may not ${verb}` : `This studio is read-only. Start: ${studio.read_only.command}`;
  return { may: false, why };
}

/** Whether runs of a graph can be started, resumed and forked here, and if not, which command helps. */
export function useServes(graph: string): { serves: boolean; why: string } {
  const studio = useStudio();
  if (studio.graphs.some((each) => each.name === graph)) return { serves: true, why: "" };
  return { serves: false, why: `The code of ${graph} is not loaded. Start: ${studio.serve_command}` };
}

export function Studio({ children }: { children: ReactNode }) {
  const query = useQuery({
    queryKey: ["studio"],
    queryFn: ({ signal }) => api<StudioView>("/studio", { signal }),
    staleTime: Infinity,
    retry: false,
    refetchInterval: ({ state }) => (state.status === "error" ? 2_000 : false),
  });
  if (query.data === undefined) {
    return (
      <div className="page">{query.error ? <Problem error={query.error} /> : <Loading />}</div>
    );
  }
  return <Context value={query.data}>{children}</Context>;
}
