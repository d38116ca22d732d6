// A diff as rows of one height, so that any number of lines scrolls smoothly.

import type { ChangedFile } from "../../api/types.ts";

/** Files with more lines are folded at first. */
export const LARGE = 400;

export type DiffRow =
  | { kind: "file"; file: ChangedFile; isOpen: boolean }
  | { kind: "hunk"; text: string }
  | { kind: "line"; path: string; sign: "+" | "-" | " "; text: string; old: number | null; new: number | null }
  | { kind: "say"; text: string }
  | { kind: "cut"; path: string };

/** Whether a file is shown folded at first. */
export function isLarge(file: ChangedFile): boolean {
  return file.added + file.removed > LARGE;
}

/** What happened to a file besides its lines. */
export function describeFile(file: ChangedFile): string[] {
  const said: string[] = [];
  if (file.change === "added") said.push("new");
  if (file.change === "deleted") said.push("deleted");
  if (file.change === "renamed") said.push(`renamed from ${file.old_path}`);
  if (file.mode === "120000") said.push("a link");
  else if (file.mode === "100755") said.push("executable");
  else if (file.mode !== "" && file.mode !== "100644") said.push(`mode ${file.mode}`);
  if (file.is_binary) said.push("binary");
  return said;
}

/** The rows of files. `open` says which files were folded or unfolded by hand. */
export function rowsOf(files: readonly ChangedFile[], open: ReadonlyMap<string, boolean>): DiffRow[] {
  const rows: DiffRow[] = [];
  for (const file of files) {
    const isOpen = open.get(file.path) ?? !isLarge(file);
    rows.push({ kind: "file", file, isOpen });
    if (!isOpen) continue;
    if (file.is_binary) rows.push({ kind: "say", text: "A binary file: its content is not shown." });
    else if (file.hunks.length === 0 && !file.is_cut) rows.push({ kind: "say", text: file.change === "changed" && file.mode !== "" ? "Only its mode changed." : "No line changed." });
    for (const hunk of file.hunks) {
      rows.push({ kind: "hunk", text: `@@ ${hunk.old} → ${hunk.new} @@ ${hunk.heading}`.trimEnd() });
      let [before, after] = [hunk.old, hunk.new];
      for (const line of hunk.lines) {
        const sign = line[0];
        if (sign === "+") rows.push({ kind: "line", path: file.path, sign, text: line.slice(1), old: null, new: after++ });
        else if (sign === "-") rows.push({ kind: "line", path: file.path, sign, text: line.slice(1), old: before++, new: null });
        else if (sign === "\\") rows.push({ kind: "say", text: "No line break at the end of the file." });
        else rows.push({ kind: "line", path: file.path, sign: " ", text: line.slice(1), old: before++, new: after++ });
      }
    }
    if (file.is_cut) rows.push({ kind: "cut", path: file.path });
  }
  return rows;
}

/** How many characters the longest line has: rows are not measured. */
export function longestOf(rows: readonly DiffRow[]): number {
  let longest = 0;
  for (const row of rows) {
    if (row.kind === "line" && row.text.length > longest) longest = row.text.length;
  }
  return longest;
}

/** The beginning of a note about a line. */
export function noteOf(row: { path: string; new: number | null; old: number | null; text: string }): string {
  const text = row.text.trim();
  const quoted = text.length > 80 ? `${text.slice(0, 80)}…` : text;
  return `${row.path}:${row.new ?? row.old}${row.new === null ? " (removed)" : ""}${quoted ? ` \`${quoted}\`` : ""}: `;
}
