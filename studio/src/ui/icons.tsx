// Line icons, drawn for this page.

const PATHS = {
  inbox: "M3 13h4l1.5 3h7L17 13h4M5 5h14l2 8v6H3v-6z",
  runs: "M4 6h10M4 12h16M4 18h7M18 4v4M16 6h4",
  chat: "M4 5h16v11H9l-5 4z",
  team: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6Zm8 0a3 3 0 1 0 0-6M2.5 19c.5-3.5 2.5-5 5.5-5s5 1.500 5.500 5M16 14c3 0 5 1.500 5.500 5",
  graph: "M6 8a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5Zm0 0v5m0 0c0 3 3 3 6 3h3M6 13v3m11.500 2.500a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5ZM6 21a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5Z",
  clip: "M20 11.500 12.500 19a4.500 4.500 0 0 1-6.400-6.400l8-8a3 3 0 0 1 4.300 4.300l-8 8a1.500 1.500 0 0 1-2.100-2.100l7.200-7.200",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" strokeWidth="1.7" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
