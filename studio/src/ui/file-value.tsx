// An image or a document in a value: a thumbnail, or a name, and a button that saves the file. The
// bytes come with the token of the page, so they are shown as a blob.

import "./file-value.css";

import { createContext, useContext, useEffect, useState } from "react";

import { download, pathOf } from "../api/client.ts";
import type { FileView } from "../api/types.ts";

/** The path of the API that has the files: see `RunAt`. */
export const FilesContext = createContext("");

const HASH = /^sha256:[0-9a-f]{64}$/;

/** Whether a value is a reference to a file, as the journal has it. */
export function isFile(value: unknown): value is FileView {
  const given = value as Partial<FileView> | null;
  return typeof given === "object" && given !== null && typeof given.hash === "string" && HASH.test(given.hash) && typeof given.type === "string" && typeof given.size === "number";
}

export function FileValue({ file }: { file: FileView }) {
  const base = useContext(FilesContext);
  const [problem, setProblem] = useState("");
  const isImage = /^image\/(jpeg|png|gif|webp)$/.test(file.type);
  const address = useBlob(isImage ? base + pathOf`/files/${file.hash}` : null, setProblem);
  const name = file.name || `${file.hash.slice(7, 15)}.${file.type.split("/").at(-1) === "plain" ? "txt" : file.type.split("/").at(-1)}`;
  const save = () => {
    download(base + pathOf`/files/${file.hash}`).then(
      (blob) => saveBlob(blob, name),
      (error: unknown) => setProblem(error instanceof Error ? error.message : String(error)),
    );
  };
  return (
    <span className="file-value">
      {isImage && (address ? <img src={address} alt={name} /> : <span className="file-blank" aria-hidden="true" />)}
      <button type="button" className="button quiet small" onClick={save} title={`Save ${name}`}>
        ⤓ {name}
      </button>
      <span className="small muted">
        {file.type}, {sizeText(file.size)}
      </span>
      {problem && (
        <span className="small fault" role="alert">
          {problem}
        </span>
      )}
    </span>
  );
}

/** Have the browser save bytes as a file. */
export function saveBlob(blob: Blob, name: string): void {
  const address = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** The address of the bytes at a path, as long as it is shown. */
function useBlob(path: string | null, fail: (message: string) => void): string {
  const [address, setAddress] = useState("");
  useEffect(() => {
    if (path === null) return;
    let made = "";
    let isOver = false;
    download(path).then(
      (blob) => {
        if (isOver) return;
        made = URL.createObjectURL(blob);
        setAddress(made);
      },
      (error: unknown) => {
        if (!isOver) fail(error instanceof Error ? error.message : String(error));
      },
    );
    return () => {
      isOver = true;
      if (made) URL.revokeObjectURL(made);
    };
  }, [path, fail]);
  return address;
}

function sizeText(bytes: number): string {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}
