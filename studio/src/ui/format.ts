// One formatter for each kind of quantity. Times are shown in the zone of the browser.

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const count = new Intl.NumberFormat();

export function formatCount(value: number): string {
  return count.format(value);
}

/** A duration in seconds, as 850 ms, 3.2 s, 4 min, 2 h or 5 d. */
export function formatSeconds(seconds: number): string {
  if (seconds < 0.0005) return "0 ms";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) {
    const minutes = Math.floor(seconds / 60);
    const rest = Math.round(seconds % 60);
    return minutes < 10 && rest ? `${minutes} min ${rest} s` : `${minutes} min`;
  }
  if (seconds < 86_400) {
    const minutes = Math.floor((seconds % 3600) / 60);
    return `${Math.floor(seconds / 3600)} h${minutes ? ` ${minutes} min` : ""}`;
  }
  return `${Math.floor(seconds / 86_400)} d`;
}

/** Dollars. Null is unknown, which is not zero. */
export function formatCost(cost: number | null | undefined): string {
  if (cost === null || cost === undefined) return "unknown";
  if (cost === 0) return "$0";
  return cost < 0.01 ? `$${cost.toFixed(4)}` : `$${cost.toFixed(2)}`;
}

/** Seconds since 1970 as a short time: the clock today, the day before. */
export function formatTime(at: number, now = Date.now() / 1000): string {
  return (now - at < 43_200 ? clock : day).format(new Date(at * 1000));
}

/** The time in full, in the zone of the browser and in UTC: the text of a tooltip. */
export function formatTimeFully(at: number): string {
  const date = new Date(at * 1000);
  return `${full.format(date)} (${date.toISOString().replace(/\.\d+Z/, "Z")})`;
}

/** How long ago, as 4 min. */
export function formatAge(at: number, now = Date.now() / 1000): string {
  const seconds = Math.max(0, now - at);
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}
