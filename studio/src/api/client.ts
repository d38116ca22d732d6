import { readJson } from "./json.ts";
import { getToken, refuseToken } from "./session.ts";
import type { InputFault, ProblemDetails } from "./types.ts";

const BASE = "/api";

/** A request that the server refused, or that did not reach it. */
export class ApiProblem extends Error {
  readonly status: number;
  readonly code: string;
  readonly fix: string;
  readonly faults: readonly InputFault[];
  readonly details: Partial<ProblemDetails> & Record<string, unknown>;

  constructor(status: number, details: Partial<ProblemDetails> & Record<string, unknown>) {
    super(String(details.detail ?? details.title ?? "the request failed"));
    this.status = status;
    this.code = String(details.type ?? "");
    this.fix = String(details.fix ?? "");
    this.faults = details.errors ?? [];
    this.details = details;
  }
}

export type Query = Record<string, string | number | boolean | null | undefined>;

export interface Options {
  method?: "GET" | "POST" | "PATCH" | "DELETE";
  query?: Query;
  body?: unknown;
  signal?: AbortSignal;
  /** It exchanges a token, instead of using the one that the browser has. */
  isLogin?: boolean;
}

/** A path below the API; parts are encoded, so that an id may have a slash. */
export function pathOf(strings: TemplateStringsArray, ...parts: (string | number)[]): string {
  return strings.reduce((path, text, index) => path + encodeURIComponent(String(parts[index - 1] ?? "")) + text);
}

function address(path: string, query: Query = {}): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") given.set(name, String(value));
  }
  const text = given.toString();
  return BASE + path + (text ? `?${text}` : "");
}

async function send(path: string, options: Options, headers: Record<string, string>, body: BodyInit | null): Promise<Response> {
  const token = options.isLogin === true ? null : getToken();
  if (token !== null) headers["authorization"] = `Bearer ${token}`;
  let response: Response;
  try {
    response = await fetch(address(path, options.query), {
      method: options.method ?? "GET",
      headers,
      body,
      signal: options.signal ?? null,
      credentials: "omit",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiProblem(0, { detail: "the studio does not answer", fix: "start it again: bae studio" });
  }
  if (response.ok) return response;
  let details: Record<string, unknown> = {};
  try {
    details = readJson(await response.text()) as Record<string, unknown>;
  } catch {
    details = { detail: `${response.status} ${response.statusText}` };
  }
  // The token of a link that is refused says nothing about the one that this browser has.
  if (response.status === 401 && options.isLogin !== true) refuseToken(token);
  throw new ApiProblem(response.status, details);
}

/** Call an endpoint, and return its JSON. Throws `ApiProblem`. */
export async function api<T>(path: string, options: Options = {}): Promise<T> {
  const headers: Record<string, string> = { accept: "application/json" };
  let body: string | null = null;
  if (options.method !== undefined && options.method !== "GET" && options.method !== "DELETE") {
    headers["content-type"] = "application/json";
    body = JSON.stringify(options.body ?? {});
  }
  const response = await send(path, options, headers, body);
  return (response.status === 204 ? undefined : readJson(await response.text())) as T;
}

/** Send the bytes of a file. */
export async function upload<T>(path: string, file: File): Promise<T> {
  const options: Options = { method: "POST", query: { name: file.name } };
  const response = await send(path, options, { "content-type": "application/octet-stream" }, file);
  return readJson(await response.text()) as T;
}

/** The bytes of a file, which a page shows as a blob: an address could not have a token. */
export async function download(path: string): Promise<Blob> {
  return await (await send(path, {}, {}, null)).blob();
}
