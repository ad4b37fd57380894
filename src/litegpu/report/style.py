"""The colours of plots, light and dark, and the style sheet of a page."""

from __future__ import annotations

#: Role -> colour on a light page, on a dark one. s0 is grey, for the CPU and for "other"; s1 to s8 tell series apart,
#: also for most colour-blind people.
PALETTE = {
    "page": ("#ffffff", "#14171c"),
    "card": ("#f4f6f9", "#1e232b"),
    "ink": ("#1b1f24", "#e4e8ee"),
    "muted": ("#5b6470", "#9aa5b3"),
    "grid": ("#d5dae1", "#39414d"),
    "good": ("#1a7f45", "#4cc38a"),
    "bad": ("#c02f3d", "#ff7b86"),
    "s0": ("#8a93a0", "#778292"),
    "s1": ("#2f6fd0", "#6aa5ff"),
    "s2": ("#d9720b", "#ffa24d"),
    "s3": ("#22875a", "#4fc08d"),
    "s4": ("#8b55c4", "#b98bf0"),
    "s5": ("#c2437e", "#f283b4"),
    "s6": ("#138a96", "#46c3cf"),
    "s7": ("#927308", "#d3b12f"),
    "s8": ("#7a4a2b", "#c08a64"),
}

SERIES = tuple(f"s{i}" for i in range(1, 9))


def style_sheet() -> str:
    """The whole of it, without any reference to a file."""
    variables = [";".join(f"--{role}:{pair[dark]}" for role, pair in PALETTE.items()) for dark in (0, 1)]
    fills = "".join(f".f-{role}{{fill:var(--{role})}}.l-{role}{{stroke:var(--{role})}}" for role in PALETTE)
    swatches = "".join(f".b-{role}{{background:var(--{role})}}" for role in PALETTE if role.startswith("s"))
    return (
        f":root{{color-scheme:light dark;{variables[0]}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{variables[1]}}}}}{_RULES}{fills}{swatches}"
    )


_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0 auto;max-width:64rem;padding:1rem;background:var(--page);color:var(--ink);
font:1rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--grid);padding-bottom:.25rem}
p{margin:.5rem 0;max-width:48rem}
.subtitle,footer,caption,figcaption{color:var(--muted);font-size:.9rem}
footer{margin-top:2.5rem;border-top:1px solid var(--grid);padding-top:.5rem}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:.6rem;margin:1rem 0}
.figures div{background:var(--card);border-radius:.5rem;padding:.6rem .8rem}
.figures dt{color:var(--muted);font-size:.85rem}
.figures dd{margin:0;font-size:1.25rem;font-weight:600;font-variant-numeric:tabular-nums}
.good{color:var(--good)}.bad{color:var(--bad)}
.wide{overflow:auto;margin:.75rem 0;max-height:80vh}
figure .wide.chart{overflow:visible;max-height:none}
@media print{.wide{overflow:visible;max-height:none}}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding-bottom:.25rem}
th,td{padding:.25rem .7rem;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top;
white-space:nowrap}
td.long{min-width:14rem;white-space:normal;overflow-wrap:anywhere}
th{color:var(--muted);font-weight:600;position:sticky;top:0;background:var(--page)}
.num{text-align:right}
tr.marked td{background:var(--card);font-weight:600}
figure{margin:1rem 0}
figure svg{display:block;width:100%;height:auto}
figure svg.as-is{width:auto}
@media screen and (max-width:40rem){figure .wide.chart{overflow-x:auto}figure .chart svg{min-width:40rem}}
figure img{max-width:100%;height:auto}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.wrap{display:flex;flex-wrap:wrap;gap:.2rem .9rem;font-size:.9rem;padding:0;margin:.5rem 0;list-style:none}
.key{display:inline-block;width:.8em;height:.8em;border-radius:.2em;margin-right:.35em}
details{margin:.4rem 0}summary{cursor:pointer}
.explorer canvas{display:block;width:100%;height:70vh;min-height:20rem;border:1px solid var(--grid);
border-radius:.5rem;touch-action:none;cursor:grab}
.explorer canvas:focus-visible{outline:3px solid var(--s1);outline-offset:2px}
.explorer .tools{display:flex;flex-wrap:wrap;gap:.5rem;align-items:center;margin:.5rem 0}
.explorer input,.explorer button,.explorer select{font:inherit;color:var(--ink);background:var(--card);
border:1px solid var(--muted);border-radius:.35rem;padding:.2rem .6rem;min-height:2.2rem}
.explorer input{width:11rem}
.explorer output{color:var(--muted);min-width:5rem}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.1rem .8rem;font-size:.9rem}
.facts dt{color:var(--muted)}.facts dd{margin:0;font-variant-numeric:tabular-nums}
pre{background:var(--card);padding:.6rem .8rem;border-radius:.5rem;overflow-x:auto;font-size:.85rem}
""".replace("\n", "")
