// The text that models write at this moment, by the place of its field.

import type { TextPiece } from "../api/feed.ts";

/** Milliseconds that a text stays after its end: its record is read meanwhile. */
const LINGER = 1_000;

export class GrowingTexts {
  #texts = new Map<string, string>();
  #going = new Map<string, ReturnType<typeof setTimeout>>();
  #all: Readonly<Record<string, string>> = {};
  #places: readonly string[] = [];
  #listeners = new Set<() => void>();

  /** Add pieces. An empty piece at the start ends a text: it is void, or a record by now. */
  take(pieces: readonly TextPiece[]): void {
    for (const [place, start, delta] of pieces) {
      clearTimeout(this.#going.get(place));
      if (start === 0 && delta === "") this.#going.set(place, setTimeout(() => this.#drop(place), LINGER));
      else this.#texts.set(place, (this.#texts.get(place) ?? "").slice(0, start) + delta);
    }
    this.#publish();
  }

  #drop(place: string): void {
    this.#texts.delete(place);
    this.#publish();
  }

  #publish(): void {
    const places = [...this.#texts.keys()];
    if (places.join() !== this.#places.join()) this.#places = places;
    this.#all = Object.fromEntries(this.#texts);
    for (const listener of this.#listeners) listener();
  }

  /** End all texts. */
  clear(): void {
    this.take([...this.#texts.keys()].map((place): TextPiece => [place, 0, ""]));
  }

  /** Keep the texts that have ended: nothing follows them. */
  keep(): void {
    for (const timer of this.#going.values()) clearTimeout(timer);
  }

  readonly at = (place: string): string => this.#texts.get(place) ?? "";
  readonly all = (): Readonly<Record<string, string>> => this.#all;
  readonly places = (): readonly string[] => this.#places;
  readonly watch = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };
}
