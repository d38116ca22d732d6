// The button at a block of a console copies its commands, without prompts and what they print.
for (const code of document.querySelectorAll("pre > code")) {
  if (!code.querySelector(".gp")) continue;
  const commands = code.cloneNode(true);
  for (const other of commands.querySelectorAll(".gp, .go")) other.remove();
  const lines = commands.textContent.split("\n").filter((line) => line.trim());
  code.parentElement.dataset.copy = lines.join("\n");
}
