// Who uses the page: a token in the storage of this origin. No cookie, because the ports of a host
// are one site for cookies.

const KEY = "bae.token";

let token: string | null = read();
const listeners = new Set<() => void>();

function read(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // The browser refuses storage: the token lives as long as the tab.
  }
}

export function getToken(): string | null {
  return token;
}

export function setToken(next: string | null): void {
  token = next;
  try {
    if (next === null) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // As above.
  }
  for (const listener of listeners) listener();
}

/** Forget a token that the server refuses, unless another tab has stored a new one. */
export function refuseToken(refused: string | null): void {
  if (refused !== token) return;
  const stored = read();
  setToken(stored === refused ? null : stored);
}

// All tabs of a browser have one token: a login or logout in one is one in all.
globalThis.addEventListener?.("storage", (event) => {
  if (event.key !== KEY && event.key !== null) return;
  const stored = read();
  if (stored === token) return;
  token = stored;
  for (const listener of listeners) listener();
});

export function onToken(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The one-time token in the link that `bae studio` prints. It is removed from the address. */
export function takeLinkToken(): string | null {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given !== null) history.replaceState(null, "", location.pathname + location.search);
  return given;
}
