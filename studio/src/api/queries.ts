// What pages read. A page changes the data through the API and then marks what it shows as old.

import { keepPreviousData, QueryClient, queryOptions } from "@tanstack/react-query";

import { api, ApiProblem, pathOf, type Query } from "./client.ts";
import type {
  CallPage,
  CallView,
  GatePage,
  GraphView,
  InboxPage,
  RunDetails,
  RunPage,
  StepPage,
  StepView,
  ThreadDetails,
  ThreadPage,
  TimelineView,
  Why,
} from "./types.ts";

export const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 5_000,
      refetchOnWindowFocus: true,
      retry: (count, error) => error instanceof ApiProblem && error.status === 0 && count < 2,
    },
  },
});

/** Reads a path of the API. */
export const get = <T>(path: string, query: Query = {}) =>
  ({ signal }: { signal: AbortSignal }) => api<T>(path, { query, signal });

export const graphQuery = (graph: string) =>
  queryOptions({ queryKey: ["graph", graph], queryFn: get<GraphView>(pathOf`/graphs/${graph}`), staleTime: Infinity });

export const runsQuery = (filter: Query) =>
  queryOptions({ queryKey: ["runs", filter], queryFn: get<RunPage>("/runs", filter), placeholderData: keepPreviousData });

/** Where a run is read: `base` is "" for the journal of the studio, and for runs of a team's agents
 *  the path of their own API. */
export interface RunAt {
  base: string;
  run: string;
}

export const runQuery = ({ base, run }: RunAt) =>
  queryOptions({ queryKey: ["run", base, run], queryFn: get<RunDetails>(base + pathOf`/runs/${run}`) });

export const stepsQuery = ({ base, run }: RunAt, query: Query = {}) =>
  queryOptions({ queryKey: ["run", base, run, "steps", query], queryFn: get<StepPage>(base + pathOf`/runs/${run}/steps`, query), placeholderData: keepPreviousData });

export const stepQuery = ({ base, run }: RunAt, step: number, query: Query = {}) =>
  queryOptions({ queryKey: ["run", base, run, "step", step, query], queryFn: get<StepView>(base + pathOf`/runs/${run}/steps/${step}`, query), placeholderData: keepPreviousData });

export const whyQuery = ({ base, run }: RunAt, step: number, query: Query) =>
  queryOptions({ queryKey: ["run", base, run, "why", step, query], queryFn: get<Why>(base + pathOf`/runs/${run}/steps/${step}/why`, query) });

export const timelineQuery = ({ base, run }: RunAt, query: Query = {}) =>
  queryOptions({ queryKey: ["run", base, run, "timeline", query], queryFn: get<TimelineView>(base + pathOf`/runs/${run}/timeline`, query), placeholderData: keepPreviousData });

export const callsQuery = ({ base, run }: RunAt, query: Query = {}) =>
  queryOptions({ queryKey: ["run", base, run, "calls", query], queryFn: get<CallPage>(base + pathOf`/runs/${run}/calls`, query), placeholderData: keepPreviousData });

export const callQuery = ({ base, run }: RunAt, call: number, query: Query = {}) =>
  queryOptions({ queryKey: ["run", base, run, "call", call, query], queryFn: get<CallView>(base + pathOf`/runs/${run}/calls/${call}`, query), placeholderData: keepPreviousData });

export const gatesQuery = ({ base, run }: RunAt, query: Query = {}) =>
  queryOptions({ queryKey: ["run", base, run, "gates", query], queryFn: get<GatePage>(base + pathOf`/runs/${run}/gates`, query) });

export const inboxQuery = (query: Query = { limit: 100 }) =>
  queryOptions({ queryKey: ["inbox", query], queryFn: get<InboxPage>("/inbox", query) });

export const threadsQuery = (query: Query = {}) =>
  queryOptions({ queryKey: ["threads", query], queryFn: get<ThreadPage>("/threads", query) });

export const threadQuery = (thread: string, query: Query = {}) =>
  queryOptions({ queryKey: ["thread", thread, query], queryFn: get<ThreadDetails>(pathOf`/threads/${thread}`, query), placeholderData: keepPreviousData });

/** Have everything about a run read again. */
export function refreshRun({ base, run }: RunAt): void {
  void client.invalidateQueries({ queryKey: ["run", base, run] });
}
