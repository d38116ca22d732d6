// What the pages of a team read, and how it stays as it is now.

import { keepPreviousData, queryOptions } from "@tanstack/react-query";

import { api, pathOf, type Query } from "../../api/client.ts";
import { useFeed } from "../../api/feed.ts";
import { client, get } from "../../api/queries.ts";
import { useSoon } from "../../ui/soon.ts";
import type { AttemptPage, AttemptView, BlockerPage, DiffView, LogPage, PlanView, ReviewPage, TaskDetails, TaskPage, TaskRow, TeamDetails, TestsView } from "../../api/types.ts";

const PAGE = 500;
const PAUSE = 400;
const LONG_PAUSE = 1_500;
const LOOK = 4_000;

/** The state of a team. A run that was killed says nothing: it is looked at now and then. */
export const teamQuery = (team: string) =>
  queryOptions({
    queryKey: ["team", team, "state"],
    queryFn: get<TeamDetails>(pathOf`/teams/${team}`),
    refetchInterval: ({ state }) => (state.data?.running ? LOOK : false),
  });

export const tasksQuery = (team: string) =>
  queryOptions({
    queryKey: ["team", team, "tasks"],
    queryFn: async ({ signal }) => {
      const rows: TaskRow[] = [];
      for (let after: number | null = 0; after !== null; ) {
        const page: TaskPage = await api<TaskPage>(pathOf`/teams/${team}/tasks`, { query: { after, limit: PAGE }, signal });
        rows.push(...page.tasks);
        after = page.next;
      }
      return rows;
    },
  });

export const planQuery = (team: string) => queryOptions({ queryKey: ["team", team, "plan"], queryFn: get<PlanView>(pathOf`/teams/${team}/plan`) });

export const taskQuery = (team: string, task: string) =>
  queryOptions({ queryKey: ["team", team, "task", task, "details"], queryFn: get<TaskDetails>(pathOf`/teams/${team}/tasks/${task}`) });

export const attemptsQuery = (team: string, task: string) =>
  queryOptions({ queryKey: ["team", team, "task", task, "attempts"], queryFn: get<AttemptPage>(pathOf`/teams/${team}/tasks/${task}/attempts`, { cut: 20_000 }) });

export const attemptQuery = (team: string, task: string, attempt: number, cut = 2_000) =>
  queryOptions({ queryKey: ["team", team, "task", task, "attempt", attempt, cut], queryFn: get<AttemptView>(pathOf`/teams/${team}/tasks/${task}/attempts/${attempt}`, { cut }), placeholderData: keepPreviousData });

export const testsQuery = (team: string, task: string, cut = 2_000) =>
  queryOptions({ queryKey: ["team", team, "task", task, "tests", cut], queryFn: get<TestsView>(pathOf`/teams/${team}/tasks/${task}/tests`, { cut }), placeholderData: keepPreviousData });

export const reviewsQuery = (team: string, task: string) =>
  queryOptions({ queryKey: ["team", team, "task", task, "reviews"], queryFn: get<ReviewPage>(pathOf`/teams/${team}/tasks/${task}/reviews`) });

export const LOG_PAGE = 200;

export const logQuery = (team: string, task: string, page: number) =>
  queryOptions({ queryKey: ["team", team, "log", task, page], queryFn: get<LogPage>(pathOf`/teams/${team}/tasks/${task}/log`, { start: page * LOG_PAGE, limit: LOG_PAGE, cut: 8_000 }) });

export const blockersQuery = (team: string, all = false) =>
  queryOptions({ queryKey: ["team", team, "blockers", all], queryFn: get<BlockerPage>(pathOf`/teams/${team}/blockers`, { all, cut: 0 }) });

/** The change of a task, or of one attempt. `state` is its commit: while that stays, nothing is read again. */
export const diffQuery = (team: string, task: string, attempt: number | null, state: string, query: Query = {}) =>
  queryOptions({
    queryKey: ["team-diff", team, task, attempt, state, query],
    queryFn: get<DiffView>(attempt === null ? pathOf`/teams/${team}/tasks/${task}/diff` : pathOf`/teams/${team}/tasks/${task}/attempts/${attempt}/diff`, query),
    staleTime: Infinity,
    refetchOnWindowFocus: false,
    retry: false,
  });

/** Have what is shown of a team read again. */
export function refreshTeam(team: string): void {
  void client.invalidateQueries({ queryKey: ["team", team] });
}

/** Keep what is shown of a team as it is now. */
export function useTeamFeed(team: string): void {
  // The plan of hundreds of tasks takes the server a moment.
  const refresh = useSoon(() => void client.invalidateQueries({ queryKey: ["team", team], predicate: ({ queryKey }) => queryKey[2] !== "plan" }), PAUSE);
  const refreshPlan = useSoon(() => void client.invalidateQueries({ queryKey: ["team", team, "plan"] }), LONG_PAUSE);
  useFeed(`team/${encodeURIComponent(team)}`, "now", (message) => {
    if (message.items.length === 0) return;
    refresh();
    refreshPlan();
  });
}

/** Keep what an agent does as it is now: its steps are lines of its run, not events of the team. */
export function FollowAgent({ team, base, run }: { team: string; base: string; run: string }) {
  const refresh = useSoon(() => {
    void client.invalidateQueries({ queryKey: ["team", team, "tasks"] });
    void client.invalidateQueries({ queryKey: ["team", team, "log"] });
  }, LONG_PAUSE);
  useFeed(`run/${run}`, "now", (message) => message.items.length > 0 && refresh(), { base });
  return null;
}
