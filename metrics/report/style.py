"""The look of the report: light and dark, readable from 400 pixels on; no fonts or pictures from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --text: #1c2330; --soft: #667085; --line: #d9dee7; --back: #ffffff; --card: #f6f8fb; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e9ef; --soft: #98a2b3; --line: #2f3745; --back: #12161d; --card: #1a202a; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 20px 64px; max-width: 1240px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { margin: 0; font-size: 26px; }
h2 { margin: 40px 0 12px; font-size: 19px; }
p { margin: 6px 0 12px; color: var(--soft); max-width: 75ch; }
.scroll { overflow-x: auto; }
.charts { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } th:first-child, td:first-child, td.text, th.text { text-align: left; }
td small { color: var(--soft); } td.bad { color: #c0362c; font-weight: 600; }
figure { margin: 0; padding: 12px; background: var(--card); border-radius: 10px; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 13px; }
.grid { stroke: var(--line); } .bar { stroke: currentColor; stroke-width: 1.5; opacity: .65; fill: none; }
circle { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
.front { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; padding-top: 6px; font-size: 13px; }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 6px; border-radius: 50%; }
.samples td, .samples th { text-align: center; vertical-align: top; border: 0; padding: 2px 6px 2px 0;
  white-space: normal; }
.samples th:first-child { text-align: left; min-width: 130px; max-width: 200px; font-weight: 400; }
.samples img { display: block; width: 96px; height: auto; border-radius: 4px; image-rendering: pixelated; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0; font-size: 13.5px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
"""
