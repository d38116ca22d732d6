"""A picture as one web page that needs no network: the drawing, and what there is to know about the
node that is clicked, or chosen with the keyboard."""

from __future__ import annotations

from html import escape
from typing import Final

from bae.pictures.contents import Box, Picture, Shown
from bae.pictures.palette import DARK, LIGHT, Palette, Theme
from bae.pictures.scene import Scene
from bae.pictures.svg import MONO, SANS, styles, write_svg

CHOSEN: Final = {
    ("certain", True): "Code; it always goes on to the same node.",
    ("certain", False): "Empty: the LM goes on from here.",
    ("code", True): "Code, which chooses where to go on.",
    ("lm", False): "Empty: the LM chooses where to go on.",
}


def write_html(picture: Picture, scene: Scene, *, theme: Theme = "auto") -> str:
    """The page of a picture and its scene."""
    title = escape(scene.title)
    abouts = "\n".join(_about(box, each) for each in picture.all for box in each.boxes)
    return _PAGE.format(
        title=title,
        styles=styles(theme) + _colours(theme) + _STYLES,
        svg=write_svg(scene, theme=theme, standalone=False),
        abouts=abouts,
        script=_SCRIPT,
    )


def _about(box: Box, picture: Picture) -> str:
    names = {each.id: each.name for each in picture.boxes}
    onward = [names[arrow.head] for arrow in picture.arrows if arrow.tail == box.id]
    onward += ["the end"] if box.ending != "never" else []
    facts = [("goes on to", " or ".join(onward) or "nothing that is known")]
    facts.append(("body", _body(box)))
    facts.append(("defined in", box.place or box.module))
    if box.place:
        facts.append(("module", box.module))
    if box.lm:
        facts.append(("LM", box.lm))
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    doc = f'<p class="doc">{escape(box.doc)}</p>' if box.doc else ""
    fields = "".join(_field(field) for field in box.fields)
    listed = f"<h3>Fields</h3><ul>{fields}</ul>" if fields else ""
    return (
        f'<article id="about-{escape(box.id)}" hidden><h2>{escape(box.name)}</h2>{doc}'
        f"<dl>{rows}</dl>{listed}</article>"
    )


def _body(box: Box) -> str:
    if box.ending == "always":
        return "Code, which ends the run." if box.written else "Empty: the run ends here."
    return CHOSEN[box.chooser, box.written]


def _field(field: Shown) -> str:
    source = "LM" if field.source == "lm" else field.source
    optional = "" if field.required else " It has a default."
    description = f"<p>{escape(field.description)}</p>" if field.description else ""
    return (
        f'<li><span class="source {field.source}">{source}</span> '
        f"<code>{escape(field.name)}: {escape(field.type)}</code>{description}"
        f"<small>{escape(field.said)}.{optional}</small></li>"
    )


def _colours(theme: Theme) -> str:
    def named(palette: Palette) -> str:
        own = {"paper": palette.paper, "box": palette.box, "ink": palette.ink}
        own |= {"soft": palette.soft, "faint": palette.faint, "line": palette.line}
        own |= {"lit": palette.accent["dep"][1]}
        said = "".join(f"--{name}:{value};" for name, value in own.items())
        sources = "".join(
            f".source.{name}{{background:{fill};color:{ink}}}"
            for name, (fill, ink) in palette.accent.items()
        )
        return f":root{{{said}}}{sources}"

    scheme = "light dark" if theme == "auto" else theme
    rules = f":root{{color-scheme:{scheme}}}{named(DARK if theme == 'dark' else LIGHT)}"
    if theme == "auto":
        rules += f"@media (prefers-color-scheme:dark){{{named(DARK)}}}"
    return rules


_STYLES: Final = f"""
*{{box-sizing:border-box}}
body{{margin:0;height:100vh;display:flex;background:var(--paper);color:var(--ink);
font:15px/1.45 {SANS}}}
main{{flex:1;min-width:0;display:flex;flex-direction:column}}
nav{{display:flex;gap:6px;padding:8px 12px;border-bottom:1px solid var(--faint);align-items:center}}
nav span{{color:var(--soft);font-size:13px;margin-left:8px}}
button{{font:inherit;color:inherit;background:var(--box);border:1px solid var(--line);
border-radius:6px;padding:2px 10px;cursor:pointer}}
#sheet{{flex:1;overflow:auto;cursor:grab}}
#sheet.held{{cursor:grabbing;user-select:none}}
#sheet svg{{display:block;margin:0 auto;max-width:none}}
.g-node{{cursor:pointer;outline:none}}
.g-node:focus-visible .box,.g-node.on .box{{stroke:var(--lit);stroke-width:2.5}}
svg.chosen .g-edge:not(.on){{opacity:.25}}
.g-field a,svg a{{text-decoration:none}}
aside{{width:min(400px,42vw);overflow:auto;border-left:1px solid var(--faint);padding:18px 20px;
background:var(--box)}}
aside h2{{font:700 18px {MONO};margin:0 0 8px;overflow-wrap:anywhere}}
aside h3{{font-size:14px;margin:18px 0 6px}}
aside dl{{display:grid;grid-template-columns:auto 1fr;gap:3px 12px;margin:0}}
aside dt,aside small,#hint{{color:var(--soft)}}
aside dd{{margin:0;overflow-wrap:anywhere}}
aside ul{{list-style:none;margin:0;padding:0}}
aside li{{padding:8px 0;border-top:1px solid var(--faint)}}
aside li p{{margin:4px 0 0}}
aside small{{display:block}}
aside code{{font:13px {MONO};overflow-wrap:anywhere}}
.doc{{white-space:pre-line;margin:0 0 10px}}
.source{{border-radius:8px;padding:1px 8px;font-size:12px;font-weight:600}}
@media (max-width:700px){{body{{flex-direction:column;height:auto}}
aside{{width:100%;border-left:0;border-top:1px solid var(--faint)}}}}
@media print{{nav{{display:none}}body{{display:block;height:auto}}
aside{{width:100%}}article[hidden]{{display:block}}}}
"""

_SCRIPT: Final = """
const sheet = document.getElementById("sheet"), svg = sheet.querySelector("svg");
const hint = document.getElementById("hint"), nodes = [...svg.querySelectorAll(".g-node")];
const edges = [...svg.querySelectorAll(".g-edge")];
const size = svg.viewBox.baseVal;
let chosen = null, scale = 1;
function light(id) {
  svg.classList.toggle("chosen", id !== null);
  for (const node of nodes) node.classList.toggle("on", node.id === id);
  for (const edge of edges) {
    const ends = ["bae-" + edge.dataset.from, "bae-" + edge.dataset.to];
    edge.classList.toggle("on", ends.includes(id));
  }
}
function choose(id) {
  chosen = id;
  for (const each of document.querySelectorAll("aside article"))
    each.hidden = id === null || each.id !== "about-" + id.slice(4);
  for (const node of nodes) node.setAttribute("aria-pressed", String(node.id === id));
  hint.hidden = id !== null;
  light(id);
}
for (const node of nodes) {
  node.setAttribute("tabindex", "0");
  node.setAttribute("role", "button");
  node.setAttribute("aria-label", node.dataset.node);
  node.addEventListener("click", () => choose(node.id));
  node.addEventListener("mouseenter", () => light(node.id));
  node.addEventListener("mouseleave", () => light(chosen));
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(node.id);
  });
}
document.addEventListener("keydown", (event) => { if (event.key === "Escape") choose(null); });
function zoom(to) {
  scale = Math.min(4, Math.max(0.1, to));
  svg.setAttribute("width", size.width * scale);
  svg.setAttribute("height", size.height * scale);
}
function fit() {
  zoom(Math.min(1, (sheet.clientWidth - 4) / size.width));
}
document.getElementById("in").addEventListener("click", () => zoom(scale * 1.25));
document.getElementById("out").addEventListener("click", () => zoom(scale / 1.25));
document.getElementById("fit").addEventListener("click", fit);
sheet.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(scale * Math.exp(-event.deltaY / 300));
}, { passive: false });
let held = null;
sheet.addEventListener("pointerdown", (event) => {
  if (event.target.closest(".g-node") || event.pointerType !== "mouse") return;
  held = [event.clientX + sheet.scrollLeft, event.clientY + sheet.scrollTop];
  sheet.classList.add("held");
});
addEventListener("pointermove", (event) => {
  if (held) sheet.scrollTo(held[0] - event.clientX, held[1] - event.clientY);
});
addEventListener("pointerup", () => { held = null; sheet.classList.remove("held"); });
fit();
choose(null);
"""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_PAGE: Final = (
    """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content=\""""
    + _POLICY
    + """\">
<title>{title}</title>
<style>{styles}</style>
<noscript><style>nav{{display:none}}article[hidden]{{display:block}}</style></noscript>
</head>
<body>
<main>
<nav aria-label="Zoom">
<button id="in" type="button" aria-label="Zoom in">+</button>
<button id="out" type="button" aria-label="Zoom out">−</button>
<button id="fit" type="button">Fit</button>
<span>Click a node, or Tab to it and press Enter. Esc lets go.</span>
</nav>
<div id="sheet" tabindex="0" role="region" aria-label="The drawing">
{svg}</div>
</main>
<aside aria-live="polite" aria-label="About the node">
<p id="hint">Choose a node to read about it.</p>
{abouts}
</aside>
<script>{script}</script>
</body>
</html>
"""
)
