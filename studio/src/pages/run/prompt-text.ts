// A stored prompt is one text: each message begins with its role in a line of its own. It is cut
// there for reading; no character is lost.

const ROLES = new Set(["system", "user", "assistant", "tool", "schema"]);

export interface PromptSection {
  role: string;
  text: string;
}

export function sectionsOf(prompt: string): PromptSection[] {
  const found: PromptSection[] = [];
  let isAfterBlank = true;
  for (const line of prompt.split("\n")) {
    const role = line.endsWith(":") ? line.slice(0, -1) : "";
    if (isAfterBlank && ROLES.has(role)) found.push({ role, text: "" });
    else if (found.length === 0) found.push({ role: "prompt", text: line });
    else found.at(-1)!.text += (found.at(-1)!.text === "" ? "" : "\n") + line;
    isAfterBlank = line === "";
  }
  return found.map((section) => ({ ...section, text: section.text.replace(/\n+$/, "") }));
}
