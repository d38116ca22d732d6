// Asks before runs are deleted, and says which of them could not be.

import { useMutation } from "@tanstack/react-query";
import { useState } from "react";

import { api, ApiProblem, pathOf } from "../../api/client.ts";
import type { RunRow } from "../../api/types.ts";
import { ConfirmDialog } from "../../ui/overlays.tsx";
import { forksFirst } from "./rows.ts";

const LISTED = 8;

interface DeleteRunsProps {
  rows: readonly Row[];
  onClose: () => void;
  onDeleted: (gone: ReadonlySet<string>) => void;
}

type Row = Pick<RunRow, "run_id" | "parent" | "preview">;

export function DeleteRuns({ rows, onClose, onDeleted }: DeleteRunsProps) {
  const [refused, setRefused] = useState<[id: string, why: string][]>([]);
  const remove = useMutation({
    mutationFn: async () => {
      const gone = new Set<string>();
      const kept: [string, string][] = [];
      for (const row of forksFirst(rows)) {
        try {
          await api(pathOf`/runs/${row.run_id}`, { method: "DELETE" });
          gone.add(row.run_id);
        } catch (error) {
          if (error instanceof ApiProblem && error.status === 404) gone.add(row.run_id);
          else kept.push([row.run_id, error instanceof ApiProblem ? `${error.message}: ${error.fix}` : String(error)]);
        }
      }
      return { gone, kept };
    },
    onSuccess: ({ gone, kept }) => {
      onDeleted(gone);
      if (kept.length === 0) onClose();
      else setRefused(kept);
    },
  });
  return (
    <ConfirmDialog
      title={rows.length === 1 ? "Delete this run?" : `Delete ${rows.length} runs?`}
      action={remove.isPending ? "Deleting…" : "Delete"}
      cancel="Keep"
      isDanger
      isPending={remove.isPending}
      onConfirm={() => remove.mutate()}
      onClose={onClose}
    >
      <p>The records of {rows.length === 1 ? "the run" : "these runs"} are removed from the journal. They cannot be restored.</p>
      <ul>
        {rows.slice(0, LISTED).map((row) => (
          <li key={row.run_id} className="truncate">
            <code>{row.run_id}</code> <span className="muted">{row.preview}</span>
          </li>
        ))}
        {rows.length > LISTED && <li className="muted">and {rows.length - LISTED} more</li>}
      </ul>
      {refused.length > 0 && (
        <div className="problem" role="alert">
          <p className="strong">{refused.length === 1 ? "One run was not deleted" : `${refused.length} runs were not deleted`}</p>
          <ul>
            {refused.map(([id, why]) => (
              <li key={id}>{why}</li>
            ))}
          </ul>
        </div>
      )}
    </ConfirmDialog>
  );
}
