"""The style of the report: light and dark, readable from 400 pixels to 4K; no external fonts or images."""

COLORS = (
    "#4269d0", "#d95f02", "#1b9e77", "#9467bd", "#b8860b", "#e0457b", "#17a2b8", "#7a5c3e", "#6aa84f", "#c0362c",
    "#c026d3", "#8a8f98", "#1d7307", "#7a22fe", "#027582", "#fd43d4",
)  # fmt: skip
"""Of families of recipes: the classes c0, c1, ..."""

# From nothing accepted to everything: dark blue through teal to yellow, perceptually even, in print too.
RAMP = ((46, 30, 92), (42, 82, 139), (31, 138, 135), (109, 191, 98), (250, 222, 70))

# No style stands in an attribute, so that the page's policy can allow this sheet alone. No `>`, which XML would escape.
_SHEET = """
:root { color-scheme: light dark; --text: #1c2330; --soft: #566072; --line: #dfe3ea; --back: #ffffff; --card: #f6f8fb;
  --accent: #3a5fc4; --on-accent: #ffffff; --good: #18794e; --bad: #b8321f; --target: #4269d0; --drafter: #1b9e77;
  --rule: #d99a2b; --other: #9aa3b2; --rest: #d3d8e0; --mark: #fff3c4; font-size: 15px; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ef; --soft: #a3adbd; --line: #2c3442; --back: #11151c; --card: #1a202a; --accent: #8fa9f5;
    --on-accent: #11151c; --good: #5cc694; --bad: #f0827a; --target: #7d9bf0; --drafter: #4cc39c; --rule: #e0b25a;
    --other: #6d7789; --rest: #3a4352; --mark: #3b3413; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.8rem 1.3rem 4rem; max-width: 90rem; background: var(--back); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { margin: 0 0 .4rem; font-size: 1.8rem; line-height: 1.25; letter-spacing: -.01em; }
h2 { margin: 2.9rem 0 .5rem; font-size: 1.27rem; }
h3 { margin: 1.6rem 0 .3rem; font-size: 1rem; overflow-wrap: anywhere; }
p { margin: .25rem 0 .8rem; color: var(--soft); max-width: 80ch; }
a { color: inherit; text-decoration-color: var(--other); text-underline-offset: .18em; }
a:hover { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
.skip { position: absolute; left: -100vw; } .skip:focus { left: 1rem; top: .5rem; padding: .3rem .8rem;
  background: var(--back); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: .6rem 0; border-bottom: 1px solid var(--line);
  font-size: .93rem; }
.notice { padding: .6rem 1rem; background: var(--mark); color: var(--text); border-radius: .6rem; max-width: none; }
.scroll { overflow-x: auto; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); }
.switch { margin-top: .3rem; }
.switch input { position: absolute; opacity: 0; pointer-events: none; }
.switch label { display: inline-block; padding: .33rem .93rem; margin: 0 .5rem .93rem 0; border: 1px solid var(--line);
  border-radius: 999px; font-size: .9rem; color: var(--soft); cursor: pointer; }
.switch input:checked + label { background: var(--accent); border-color: var(--accent); color: var(--on-accent); }
.switch input:focus-visible + label { outline: 2px solid var(--accent); outline-offset: 2px; }
#by-tokens_per_call:checked ~ .speedup, #by-speedup:checked ~ .tokens_per_call { display: none; }
#choice { padding: 1rem 1.3rem; margin-bottom: .8rem; background: var(--card); border-radius: .8rem; }
#choice[hidden] { display: none; }
#choice p { max-width: none; } .ask { display: flex; flex-wrap: wrap; align-items: baseline; gap: .3rem .6rem; }
.ask input { width: 6.5rem; } #loss { display: block; width: 100%; height: 1.6rem; margin: .2rem 0 .6rem;
  accent-color: var(--accent); }
input, select, button { font: inherit; color: var(--text); }
input[type=number], select, .buttons button { padding: .25rem .5rem; background: var(--back);
  border: 1px solid var(--other); border-radius: .4rem; }
.answer { color: var(--text); font-size: 1.13rem; } .answer b { font-size: 1.33rem; overflow-wrap: anywhere; }
.answer span { margin-left: .8rem; } .answer small { display: block; color: var(--soft); font-size: .87rem; }
.option { font-size: .87rem; } .option input { margin: 0 .5rem 0 0; }
summary { color: var(--soft); cursor: pointer; padding: .3rem 0; font-size: .93rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
th, td { padding: .47rem .93rem .47rem 0; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap;
  vertical-align: top; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 400; } th.words { white-space: normal; min-width: 16rem; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
td small { display: block; font-size: .77rem; line-height: 1.25; color: var(--soft); }
td.bad, td.bad small { color: var(--bad); } td.good, td.good small { color: var(--good); }
td.text.bad { font-weight: 600; }
.sort { padding: 0; border: 0; background: none; color: inherit; font-weight: inherit; cursor: pointer;
  text-align: inherit; }
.sort:hover { color: var(--accent); }
[aria-sort=ascending] .sort::after { content: " \\25B2"; } [aria-sort=descending] .sort::after { content: " \\25BC"; }
tbody tr:hover { background: var(--card); }
tr:target, tr.chosen, tr.chosen:hover, .card.chosen { background: var(--mark); }
figure { margin: 0; padding: .93rem .93rem .8rem; background: var(--card); border-radius: .8rem; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 13px; }
svg text.axis { fill: var(--text); font-size: 13.5px; } svg text.mark { fill: currentColor; font-size: 11px; }
.grid { stroke: var(--line); } .bar { stroke: currentColor; stroke-width: 1.5; opacity: .55; fill: none; }
.dot { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
g[data-recipe] { cursor: pointer; } .picked .dot { stroke: var(--text); stroke-width: 2.5; }
.chosen .dot { stroke: var(--text); stroke-width: 4; }
.sweep { fill: none; stroke: currentColor; stroke-width: 1.5; opacity: .45; }
.front { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
.legend { display: flex; flex-wrap: wrap; gap: .13rem .93rem; padding-top: .5rem; font-size: .83rem;
  color: var(--soft); }
.legend i { display: inline-block; width: .67rem; height: .67rem; margin-right: .4rem; border-radius: 50%; }
.times { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .33rem .93rem; margin-top: .8rem;
  font-size: .9rem; align-items: center; }
.times div:nth-child(odd) { overflow-wrap: anywhere; }
.time { display: flex; align-items: center; height: 1.2rem; }
.time svg { flex: 1 1 0; min-width: 0; height: 1.2rem; }
.time b { flex: none; min-width: 4.3rem; padding-left: .5rem; font-weight: 400; font-size: .83rem; color: var(--soft);
  text-align: right; white-space: nowrap; }
.target { color: var(--target); } .drafter { color: var(--drafter); } .rule { color: var(--rule); }
.other { color: var(--other); } .rest { color: var(--rest); } .time rect { fill: currentColor; }
.legend i { background: currentColor; }
.key { display: flex; align-items: center; gap: .5rem; font-size: .83rem; }
.key i { width: 10.7rem; height: .67rem; border-radius: .33rem; }
.cards { display: grid; gap: .93rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15.7rem), 1fr)); }
.card { padding: .93rem; background: var(--card); border-radius: .8rem; }
.card h3 { margin: 0; font-size: .93rem; }
.card p { margin: 0 0 .67rem; font-size: .83rem; } .card svg { margin-bottom: .67rem; }
.card svg text { font-size: 10.5px; }
.fill { fill: var(--accent); }
.grid-map, .strip-map { display: block; width: 100%; image-rendering: pixelated; border-radius: .4rem; }
.strip-map { height: 1.87rem; }
.samples td, .samples th { text-align: left; vertical-align: top; border: 0; padding: .2rem .53rem .2rem 0;
  white-space: normal; }
.samples thead th { vertical-align: bottom; max-width: 7.5rem; overflow-wrap: anywhere; font-size: .83rem; }
.samples th:first-child { position: sticky; left: 0; min-width: 8rem; max-width: 12rem; padding-right: .93rem;
  font-weight: 400; background: var(--back); }
.samples tbody tr:hover { background: none; }
.samples img { display: block; width: 7.5rem; height: auto; border-radius: .4rem; }
.coarse { image-rendering: pixelated; }
.samples audio { display: block; width: 14.7rem; height: 2.4rem; }
.zoom { display: block; padding: 0; border: 0; background: none; } .js .zoom { cursor: zoom-in; }
dialog { max-width: 98vw; max-height: 98vh; padding: 1.2rem; border: 1px solid var(--line); border-radius: .8rem;
  background: var(--back); color: var(--text); }
dialog::backdrop { background: rgb(0 0 0 / .6); }
.pair { display: flex; flex-wrap: wrap; gap: .8rem; justify-content: center; }
.pair figure { padding: .5rem; flex: 0 1 auto; max-width: 100%; } .pair figure[hidden] { display: none; }
.pair img, .pair canvas { display: block; max-width: 100%; height: auto; }
.pair .coarse { width: 20rem; }
.pair figcaption { padding-top: .3rem; font-size: .87rem; overflow-wrap: anywhere; }
.buttons { display: flex; flex-wrap: wrap; gap: .5rem; align-items: center; margin: .8rem 0 .3rem; }
.lost { display: grid; gap: .93rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); }
.lost .pair { flex-wrap: nowrap; justify-content: flex-start; gap: .4rem; } .lost figcaption { font-size: .77rem; }
.lost .pair figure { padding: 0; flex: 1 1 0; } .lost .pair img { width: 100%; border-radius: .4rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .13rem 1.07rem; margin: 0; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 520px) {
  body { padding: 1.3rem .93rem 3.2rem; } h1 { font-size: 1.47rem; } figure { padding: .67rem .53rem; }
  .samples img { width: 6.1rem; } .samples th:first-child { min-width: 6.4rem; max-width: 7.3rem; font-size: .83rem; }
  .samples audio { width: 12rem; } .times { grid-template-columns: 1fr; gap: 0; } .time { margin-bottom: .5rem; }
  #choice { padding: .8rem; } dialog { padding: .7rem; }
}
@media (min-width: 1900px) { :root { font-size: 17px; } }
@media (min-width: 2500px) { :root { font-size: 20px; } body { max-width: 120rem; } }
@media (min-width: 3400px) { :root { font-size: 26px; } body { max-width: 136rem; } }
@media print { .js #choice, nav, .skip { display: none; } }
"""

_STOPS = ", ".join(f"rgb({r} {g} {b})" for r, g, b in RAMP)
STYLE = (
    _SHEET
    + f".key i {{ background: linear-gradient(90deg, {_STOPS}); }}\n"
    + "".join(f".c{i} {{ color: {color}; }}\n" for i, color in enumerate(COLORS))
)
"""The style sheet."""
