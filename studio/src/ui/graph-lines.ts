// Lines and arrow heads of a picture of a graph, from the points that the server sends. All pieces
// of a line are level or upright.

export type Point = readonly [x: number, y: number];

const CORNER = 8;

/** How an edge is called where edges are looked up. */
export function edgeKey(source: string, target: string): string {
  return `${source} > ${target}`;
}

/** The node of a place, as Reply of Reply.text. */
export function nodeOfPlace(place: string): string {
  return /^[^.\s(\[]*/.exec(place)![0];
}

interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** How large a picture is, with a margin around it. */
export function extentOf(boxes: readonly Box[], edges: readonly { line: readonly Point[] }[], pad: number): { width: number; height: number } {
  const points = edges.flatMap((edge) => edge.line);
  const width = Math.max(1, ...boxes.map((box) => box.x + box.width), ...points.map(([x]) => x));
  const height = Math.max(1, ...boxes.map((box) => box.y + box.height), ...points.map(([, y]) => y));
  return { width: width + 2 * pad, height: height + 2 * pad };
}

/** A point on the way from one to another, `off` to its side. */
function along([x, y]: Point, [toX, toY]: Point, far: number, off = 0): Point {
  const dx = Math.sign(toX - x);
  const dy = Math.sign(toY - y);
  return [x + dx * far - dy * off, y + dy * far + dx * off];
}

/** A line that begins and ends earlier, to make room for a mark and for the arrow head. */
export function shorten(line: readonly Point[], first: number, last: number): Point[] {
  const points = [...line];
  points[0] = along(line[0]!, line[1]!, first);
  points[points.length - 1] = along(line.at(-1)!, line.at(-2)!, last);
  return points;
}

/** The path of a line, with its corners rounded. */
export function pathOfLine(line: readonly Point[]): string {
  const text = ([x, y]: Point) => `${x} ${y}`;
  const strokes = [`M${text(line[0]!)}`];
  for (let index = 1; index < line.length - 1; index++) {
    const [before, here, after] = [line[index - 1]!, line[index]!, line[index + 1]!];
    const room = Math.min(...[before, after].map(([x, y]) => Math.max(Math.abs(here[0] - x), Math.abs(here[1] - y)) / 2));
    const near = Math.min(CORNER, room);
    strokes.push(`L${text(along(here, before, near))} Q${text(here)} ${text(along(here, after, near))}`);
  }
  strokes.push(`L${text(line.at(-1)!)}`);
  return strokes.join(" ");
}

export function arrowHead(line: readonly Point[]): string {
  const [tip, before] = [line.at(-1)!, line.at(-2)!];
  return [along(tip, before, 0), along(tip, before, 9, 4.5), along(tip, before, 9, -4.5)].map((point) => point.join(",")).join(" ");
}

/** The mark at the beginning of a line that is a choice. */
export function diamond(line: readonly Point[]): string {
  const [start, next] = [line[0]!, line[1]!];
  return [along(start, next, 0), along(start, next, 5.5, 4), along(start, next, 11), along(start, next, 5.5, -4)].map((point) => point.join(",")).join(" ");
}
