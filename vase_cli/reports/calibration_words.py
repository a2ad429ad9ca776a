"""What the page of a calibration says under its charts, and how the page looks."""

from vase_cli.reports.drawing import style_rules

# The largest range of a head over its median: from the first on its tail is heavy, under the second it is not.
HEAVY_RATIO = 10.0
LIGHT_RATIO = 3.0

TAIL = (
    "One cell is one KV head of one layer. Its number is how many times the head's median value range its 99th "
    "percentile (p99 / p50) or its largest range (max / p50) is, over all tokens but the first 8 of each text; "
    "the stronger the colour, the heavier the tail. The colours start at 1, where all tokens have one range, and "
    f"reach {HEAVY_RATIO:g} or the largest number here, so that pages of two models can be laid side by side. A "
    f"heavy tail is a head whose largest range is {HEAVY_RATIO:g} or more times its median: a few tokens then "
    f"stand far above all others, and evicting them costs what no other token can replace. Under {LIGHT_RATIO:g} "
    "there is none: so large a value is what many tokens of one common distribution give, and it still grows "
    "slowly with their number, which p99 / p50 does not. For comparison, in two Qwen2.5 models the median of max "
    "/ p50 over the heads is 1.9 and 2.1: no heavy tail."
)
LAYERS = (
    "Each bar is one layer. The pale bar reaches from the lowest p1 to the highest p99 of its heads, the darker "
    "part holds the medians of its heads, the line is their median, and the dot is the largest value of the whole "
    "layer. Equal distances are equal ratios. Bars that climb from left to right are a scale that grows with "
    "depth, which is no outlier (the two Qwen2.5 models grow five-fold): look at how far a dot stands above its "
    "own bar. A heavy tail is a dot a decade or more above the dark part; tall dark parts are heads that differ "
    "in scale, which is why every head has a threshold of its own."
)
FIRST = (
    "The mean range at each of the first 8 positions, divided by the median range that its head has in the rest "
    "of the text: the dot is the median over the heads, the bar reaches from the lowest head to the highest. On "
    "the line at 1 a position is like any other. The bar named rest is p1 to p99 there, median over the heads: "
    "what stays inside it is ordinary. Position 0 is often an attention sink, a token that much attention goes to "
    "and whose value is small: the two Qwen2.5 models have 0.4 there. Far above the rest, ten times or more, the "
    "first tokens are outliers by their value too. Being protected as sinks, they take no part in the thresholds."
)
SEGMENTS = (
    "Medians over the heads, and the largest max/p50 of any head. Range is the largest minus the smallest entry "
    "of a value vector, norm its length, variance that of its entries (a square: its ratios are those of the "
    "range squared, roughly). If prompt and completion differ much, thresholds fitted on one do not fit the "
    "other."
)
THOUGHT = (
    "One text from left to right; each panel is one head, the heaviest tails first and a typical one last, in "
    "multiples of the head's own median. Orange dots are tokens over the head's threshold. A rule that is a "
    "quantile or a share always finds some, so their number says nothing: what counts is how far they stand above "
    f"the line. A heavy tail is a few single peaks at {HEAVY_RATIO:g} or more; a band of even height, with dots "
    "just above the threshold, is none. Below is the text itself. A marked token is over the threshold in at "
    "least one of these heads, in the colour that its largest multiple has in the heat map; point at it for the "
    "numbers. A line break or another sign without a shape shows as a symbol or its code where it is marked."
)
OUTLIERS = (
    "The largest ranges of all, each divided by its head's median, with the text around the token (spaces as ·). "
    "Share of text is how often this same token occurs among all tokens. With a heavy tail the same few tokens, "
    "often line breaks, punctuation or the first of a text, fill the table with numbers of ten and more; without "
    "one it is a mixed list whose numbers fall off gently."
)
OUTLIER_TOKENS = (
    "The 8 largest ranges of every head, grouped by token. A token whose share of the outliers is many times its "
    "share of the text is one that the model keeps something in; equal shares are chance."
)
LENGTHS = (
    "Tokens of prompt and completion, which is what the full cache holds at the end of a text. A budget of a "
    "quarter is a quarter of the mean. Texts cut at the limit make it too low."
)
VALIDATION = (
    "Accuracy on the left, the difference from the full cache on the same problems on the right; the whiskers are "
    "one standard error, and two of them to either side hold the true value 95 times in 100. All runs but full "
    "keep the same number of tokens. A model needs its outliers if evict-large, which throws them away first, "
    "loses clearly more than random, and if vase-attnv holds what random loses; if evict-large stands with "
    "random, its outliers carry nothing of their own. Count and threshold differ only if their whiskers stand "
    "well apart."
)

_LAYOUT = """
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,sans-serif}
main{max-width:900px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:24px;line-height:1.25;margin:8px 0 12px}
h2{font-size:18px;margin:40px 0 8px;padding-top:12px;border-top:1px solid var(--grid)}
p{margin:8px 0}
.words,footer{color:var(--muted)}
.summary{font-size:16px}
figure{margin:8px 0;overflow-x:auto}
svg{display:block;max-width:100%;height:auto;min-width:620px;font-family:system-ui,sans-serif}
svg text{font-variant-numeric:tabular-nums}
svg polyline{fill:none;stroke-linecap:round;stroke-linejoin:round}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:12px 0}
.facts dt{color:var(--muted)}
.facts dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:13.5px;margin:8px 0}
th,td{padding:3px 14px 3px 0;text-align:left;vertical-align:baseline;border-bottom:1px solid var(--grid)}
th{color:var(--muted);font-weight:500}
.long{max-height:520px;overflow-y:auto;border:1px solid var(--grid);border-radius:6px;padding:0 14px}
.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
code,.text{font-family:ui-monospace,monospace;font-size:13px}
td code{white-space:pre-wrap;color:var(--orange);font-weight:600}
.near{color:var(--muted);white-space:pre-wrap}
.text{white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.75;border:1px solid var(--grid);border-radius:6px;\
padding:10px 14px;max-height:560px;overflow-y:auto}
mark{color:var(--on-low);border-bottom:2px solid var(--orange);border-radius:2px;padding:1px 0;unicode-bidi:isolate}
mark.on-high{color:var(--on-high)}
.turn{display:inline-block;margin:0 6px;padding:0 6px;border:1px solid var(--axis);border-radius:8px;\
color:var(--muted);font:11px/1.5 system-ui,sans-serif;user-select:none}
footer{margin-top:40px;font-size:13px}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
@media print{main{max-width:none;padding:0}.text,.long{max-height:none;overflow:visible}figure,.wide{overflow:visible}\
svg{min-width:0}figure,tr{break-inside:avoid}h2{break-after:avoid}}
"""


def styles() -> str:
    """The page's style sheet: light, and dark on a screen that asks for it."""
    dark = f"@media screen and (prefers-color-scheme:dark){{{style_rules(dark=True)}}}"
    return f"{_LAYOUT}{style_rules(dark=False)}\n{dark}\n"
