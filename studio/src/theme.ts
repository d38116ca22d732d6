// The theme: that of the system, until a person chooses another. `public/theme.js` applies the stored
// choice before the page is drawn.

const KEY = "bae.theme";

/** Switch between light and dark, starting from what is shown. */
export function toggleTheme(): void {
  const root = document.documentElement;
  const isDark = root.dataset.theme === "dark" || (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem(KEY, root.dataset.theme);
  } catch {
    // The browser refuses storage: the theme lives as long as the page.
  }
}
