// The parts of the address. They are read from the address itself: the router has decoded its path
// already, all but some characters, so that decoding it again would change an id with a percent sign.

/** A part of the path, decoded: "42" is part 1 of /runs/42. Null if there is none. */
export function pathPart(index: number, path: string = location.pathname): string | null {
  const part = path.split("/")[index + 1];
  if (!part) return null;
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
