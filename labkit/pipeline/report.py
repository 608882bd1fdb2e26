"""The main job's report as one HTML file that needs nothing else."""

from __future__ import annotations

import html
from pathlib import Path

import plotly.graph_objects as go

from labkit import plots
from labkit.evaluate.result import EvalResult, Row
from labkit.pipeline.run import RunReport
from labkit.records import write_atomic

_EXAMPLES = 6
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em }
:root { color-scheme: light dark }
pre { overflow-x: auto; padding: .8em; border: 1px solid #8886; border-radius: 4px; font-size: 13px }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1em }
table { border-collapse: collapse } td, th { padding: .2em 1em .2em 0; text-align: left }
"""


def write_html(report: RunReport, base: EvalResult, tuned: EvalResult, path: Path) -> None:
    """Curves, pass@1 by family, examples side by side, times and versions."""
    figures = [by_family(base, tuned), _curve(report)]
    drawn = [f.to_html(full_html=False, include_plotlyjs=i == 0) for i, f in enumerate(figures)]
    gain, (low, high) = tuned.difference(base)
    body = [
        f"<h1>From specification to simulated Verilog: {report.base.pass_at_1:.1%} to {report.sft.pass_at_1:.1%}</h1>",
        f"<p>{html.escape(report.model)}, {html.escape(str(report.train.recipe))}. Paired gain {100 * gain:+.1f} "
        f"points ({100 * low:+.1f} to {100 * high:+.1f}, 95 % bootstrap).</p>",
        f"<pre>{html.escape(str(report))}</pre>",
        *drawn,
        "<h2>What changed</h2>",
        *_examples(base, tuned),
        "<h2>Seconds</h2>",
        _table({k: f"{v:.1f}" for k, v in report.seconds.items()}),
        "<h2>Versions</h2>",
        _table(report.versions),
    ]
    page = f"<!doctype html><meta charset=utf-8><title>labkit run</title><style>{_STYLE}</style>{''.join(body)}"
    write_atomic(path, page)


def by_family(base: EvalResult, tuned: EvalResult) -> go.Figure:
    """pass@1 of each family before and after fine-tuning."""
    before, after = base.by_family(), tuned.by_family()
    order = sorted(after, key=lambda name: after[name][0])
    passing = sum(after[name][0] >= 0.5 for name in order)
    figure = plots.bars(
        f"After fine-tuning, {passing} of {len(order)} families pass at least every other time",
        order,
        {"before": [before[n][0] for n in order], "after": [after[n][0] for n in order]},
        x="pass@1",
        y="family",
        horizontal=True,
    )
    return figure.update_layout(height=120 + 18 * len(order), bargap=0.3)


def _curve(report: RunReport) -> go.Figure:
    rows = report.train.curve()
    title = f"The loss falls from {report.train.first_loss:.2f} to {report.train.last_loss:.2f} nats a token"
    points = ([r.step for r in rows], [r.loss for r in rows])
    return plots.lines(title, {"loss": points}, x="step", y="loss on answer tokens (nats)")


def _examples(base: EvalResult, tuned: EvalResult) -> list[str]:
    before = {row.id: row for row in base.rows}
    pairs = [(before[row.id], row) for row in tuned.rows]
    won = [p for p in pairs if p[1].passes and not p[0].passes][: _EXAMPLES // 2]
    lost = [p for p in pairs if not p[1].passes][: _EXAMPLES - len(won)]
    return [_pair(*pair) for pair in won + lost]


def _pair(before: Row, after: Row) -> str:
    cells = "".join(
        f"<div><b>{name}</b>: {html.escape(str(row.answers[0]))}<pre>{html.escape(row.answers[0].text)}</pre></div>"
        for name, row in (("before", before), ("after", after))
    )
    return f"<h3>{html.escape(after.id)}</h3><div class=pair>{cells}</div>"


def _table(values: dict[str, str]) -> str:
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in values.items())
    return f"<table>{rows}</table>"
