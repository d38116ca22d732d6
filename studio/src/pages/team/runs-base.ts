import { useStudio } from "../../studio.tsx";

/** The path of the API with the runs of a team's agents. */
export function useRunsBase(team: string): string {
  const studio = useStudio();
  return (studio.teams.find((each) => each.name === team)?.runs ?? "").replace(/^\/api/, "");
}
