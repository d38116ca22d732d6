import type { PlanView, TaskRow, TeamDetails } from "../../api/types.ts";
import type { Address, Go } from "./address.ts";

/** What every view of a team has. */
export interface Shared {
  team: TeamDetails;
  rows: readonly TaskRow[];
  plan: PlanView;
  /** The longest chain of tasks that wait for each other. */
  critical: ReadonlySet<string>;
  address: Address;
  go: Go;
}
