import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// `npm run dev` shows the page while it is written, on the API of a running `bae studio`:
// BAE_STUDIO=http://127.0.0.1:8421 npm run dev
const server = process.env.BAE_STUDIO ?? "http://127.0.0.1:8421";

export default defineConfig({
  plugins: [react()],
  base: "/",
  build: {
    outDir: "../src/bae/serve/page",
    emptyOutDir: true,
    target: ["chrome120", "firefox121", "safari17.4"],
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    reportCompressedSize: true,
    license: false,
  },
  server: {
    proxy: { "/api": { target: server, ws: true, changeOrigin: true } },
  },
});
