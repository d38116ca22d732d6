// Places of a run, as 2:Report.summaries[3]/1:Summary.text.

export interface PlaceParts {
  /** The graph inside the run; empty for the run's own. */
  path: string;
  step: number;
  node: string;
  field: string;
}

/** The parts of a place; null for a text that is none. */
export function parsePlace(place: string): PlaceParts | null {
  const cut = lastSlash(place);
  const found = /^(\d+):([^.([]+)(?:\.([^.([]+))?/.exec(place.slice(cut + 1));
  if (found === null) return null;
  return { path: cut < 0 ? "" : place.slice(0, cut), step: Number(found[1]), node: found[2]!, field: found[3] ?? "" };
}

/** Where the last part of a place begins: a slash before a number, and not one inside a name. */
function lastSlash(place: string): number {
  let at = -1;
  for (const found of place.matchAll(/\/(?=\d+:)/g)) at = found.index;
  return at;
}

/** A place without the graph around it. */
export function shortPlace(place: string): string {
  return place.slice(lastSlash(place) + 1);
}
