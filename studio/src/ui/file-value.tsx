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
  const [refusal, setRefusal] = useState("");
  const isImage = /^image\/(jpeg|png|gif|webp)$/.test(file.type);
  const { url, error } = useBlob(isImage ? base + pathOf`/files/${file.hash}` : null);
  const problem = refusal || error;
  const name = file.name || `${file.hash.slice(7, 15)}.${file.type.split("/").at(-1) === "plain" ? "txt" : file.type.split("/").at(-1)}`;
  const save = () => {
    download(base + pathOf`/files/${file.hash}`).then(
      (blob) => saveBlob(blob, name),
      (error: unknown) => setRefusal(error instanceof Error ? error.message : String(error)),
    );
  };
  return (
    <span className="file-value">
      {isImage && (url ? <img src={url} alt={name} /> : <span className="file-blank" aria-hidden="true" />)}
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

/** The bytes at a path of the API as an address for the browser, while the component is shown. A null
 *  path is not fetched. */
export function useBlob(path: string | null): { url: string; error: string } {
  const [blob, setBlob] = useState({ path: "", url: "", error: "" });
  useEffect(() => {
    if (path === null) return;
    let url = "";
    let isOver = false;
    download(path).then(
      (found) => {
        if (isOver) return;
        url = URL.createObjectURL(found);
        setBlob({ path, url, error: "" });
      },
      (error: unknown) => !isOver && setBlob({ path, url: "", error: error instanceof Error ? error.message : String(error) }),
    );
    return () => {
      isOver = true;
      if (url) URL.revokeObjectURL(url);
    };
  }, [path]);
  return blob.path === path ? blob : { url: "", error: "" };
}

/** A file of a message or a form: a small image, or a link with its name. */
export function FilePreview({ file }: { file: { hash: string; type: string; name: string } }) {
  const { url, error } = useBlob(pathOf`/files/${file.hash}`);
  const name = file.name || file.type || "file";
  if (url === "") return <span className="tag">{error ? `${name} cannot be loaded` : name}</span>;
  if (file.type.startsWith("image/")) {
    return (
      <a href={url} target="_blank" rel="noopener noreferrer" className="file-image">
        <img src={url} alt={name} />
      </a>
    );
  }
  return (
    <a href={url} download={name} className="tag">
      📄 {name}
    </a>
  );
}

function sizeText(bytes: number): string {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}
