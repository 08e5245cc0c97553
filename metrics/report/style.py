"""The style of the report: light and dark, readable from a width of 400 pixels; no external fonts or images."""

COLORS = (
    "#4269d0", "#d95f02", "#1b9e77", "#9467bd", "#b8860b", "#e0457b", "#17a2b8", "#7a5c3e", "#6aa84f", "#c0362c",
    "#5b6bd6", "#8a8f98",
)  # fmt: skip
"""Of families of recipes: the classes c0, c1, ..."""

# From nothing accepted to everything: dark blue through teal to yellow, perceptually even, in print too.
RAMP = ((46, 30, 92), (42, 82, 139), (31, 138, 135), (109, 191, 98), (250, 222, 70))

# No style stands in an attribute, so that the page's policy can allow this sheet alone. No `>`, which XML would escape.
_SHEET = """
:root { color-scheme: light dark; --text: #1c2330; --soft: #5d6778; --line: #dfe3ea; --back: #ffffff; --card: #f6f8fb;
  --accent: #4269d0; --good: #18794e; --bad: #c0362c; --target: #4269d0; --drafter: #1b9e77; --rule: #d99a2b;
  --other: #9aa3b2; --rest: #d3d8e0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ef; --soft: #9aa4b5; --line: #2c3442; --back: #11151c; --card: #1a202a; --accent: #7d9bf0;
    --good: #5cc694; --bad: #f0827a; --target: #7d9bf0; --drafter: #4cc39c; --rule: #e0b25a; --other: #6d7789;
    --rest: #3a4352; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 20px 64px; max-width: 1280px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { margin: 0 0 6px; font-size: 27px; line-height: 1.25; letter-spacing: -.01em; }
h2 { margin: 44px 0 8px; font-size: 19px; }
h3 { margin: 0; font-size: 14px; overflow-wrap: anywhere; }
p { margin: 4px 0 12px; color: var(--soft); max-width: 80ch; }
.scroll { overflow-x: auto; }
.charts { display: grid; gap: 16px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 390px), 1fr)); }
.switch { margin-top: 4px; }
.switch input { position: absolute; opacity: 0; pointer-events: none; }
.switch label { display: inline-block; padding: 5px 14px; margin: 0 8px 14px 0; border: 1px solid var(--line);
  border-radius: 999px; font-size: 13.5px; color: var(--soft); cursor: pointer; }
.switch input:checked + label { background: var(--accent); border-color: var(--accent); color: #fff; }
.switch input:focus-visible + label { outline: 2px solid var(--accent); outline-offset: 2px; }
#by-tokens_per_call:checked ~ .speedup, #by-speedup:checked ~ .tokens_per_call { display: none; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td small { display: block; font-size: 11.5px; line-height: 1.2; color: var(--soft); }
td.bad, td.bad small { color: var(--bad); } td.good, td.good small { color: var(--good); }
td.text.bad { font-weight: 600; }
tbody tr:hover { background: var(--card); }
figure { margin: 0; padding: 14px 14px 12px; background: var(--card); border-radius: 12px; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 13px; }
svg text.axis { fill: var(--text); font-size: 13.5px; } svg text.mark { fill: currentColor; font-size: 11px; }
.grid { stroke: var(--line); } .bar { stroke: currentColor; stroke-width: 1.5; opacity: .55; fill: none; }
.dot { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
.sweep { fill: none; stroke: currentColor; stroke-width: 1.5; opacity: .45; }
.front { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; padding-top: 8px; font-size: 12.5px; color: var(--soft); }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 6px; border-radius: 50%; }
.times { display: grid; grid-template-columns: minmax(90px, max-content) 1fr; gap: 5px 14px; margin-top: 12px;
  font-size: 13.5px; align-items: center; }
.times div:nth-child(odd) { overflow-wrap: anywhere; }
.time { display: flex; align-items: center; height: 18px; }
.time svg { flex: 1 1 0; min-width: 0; height: 18px; }
.time b { flex: none; min-width: 64px; padding-left: 8px; font-weight: 400; font-size: 12.5px; color: var(--soft);
  text-align: right; white-space: nowrap; }
.target { color: var(--target); } .drafter { color: var(--drafter); } .rule { color: var(--rule); }
.other { color: var(--other); } .rest { color: var(--rest); } .time rect { fill: currentColor; }
.legend i { background: currentColor; }
.key { display: flex; align-items: center; gap: 8px; font-size: 12.5px; }
.key i { width: 160px; height: 10px; border-radius: 5px; }
.cards { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 236px), 1fr)); }
.card { padding: 14px; background: var(--card); border-radius: 12px; }
.card p { margin: 0 0 10px; font-size: 12.5px; } .card svg { margin-bottom: 10px; }
.card svg text { font-size: 10.5px; }
.fill { fill: var(--accent); }
.grid-map, .strip-map { display: block; width: 100%; image-rendering: pixelated; border-radius: 6px; }
.strip-map { height: 28px; }
.samples td, .samples th { text-align: left; vertical-align: top; border: 0; padding: 3px 8px 3px 0;
  white-space: normal; }
.samples thead th { vertical-align: bottom; max-width: 112px; overflow-wrap: anywhere; font-size: 12.5px; }
.samples th:first-child { position: sticky; left: 0; min-width: 120px; max-width: 180px; padding-right: 14px;
  font-weight: 400; background: var(--back); }
.samples tbody tr:hover { background: none; }
.samples img { display: block; width: 112px; height: auto; border-radius: 6px; } .coarse { image-rendering: pixelated; }
.samples audio { display: block; width: 220px; height: 36px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0; font-size: 13.5px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 520px) {
  body { padding: 20px 14px 48px; } h1 { font-size: 22px; } figure { padding: 10px 8px; }
  .samples img { width: 92px; } .samples th:first-child { min-width: 96px; max-width: 110px; font-size: 12.5px; }
  .samples audio { width: 180px; } .times { grid-template-columns: 1fr; gap: 0; } .time { margin-bottom: 8px; }
}
"""

_STOPS = ", ".join(f"rgb({r} {g} {b})" for r, g, b in RAMP)
STYLE = (
    _SHEET
    + f".key i {{ background: linear-gradient(90deg, {_STOPS}); }}\n"
    + "".join(f".c{i} {{ color: {color}; }}\n" for i, color in enumerate(COLORS))
)
"""The style sheet."""
