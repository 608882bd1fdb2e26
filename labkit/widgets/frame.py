"""The one way in which a widget of labkit is made: labelled controls above, an answer below.

The answer is written into an `Output`'s list of outputs, not printed in a callback: it then also shows where no kernel
runs (as the stored picture), and in JupyterLab, Colab and Voila alike. A `FigureWidget` would need its own JavaScript.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ipywidgets as ipw

from labkit.errors import LabError

_PLOTLY = "application/vnd.plotly.v1+json"
_WIDE = {"description_width": "initial"}


class Panel(ipw.VBox):
    """Controls and an answer that follows them.

    Args:
        controls: name -> a labelled ipywidget with a `value`.
        answer: called with the values by name, gives figures, records, or strings of HTML. It only calls the library.
    """

    def __init__(self, controls: dict[str, ipw.Widget], answer: Callable[..., Iterable[Any]]) -> None:
        self.controls = controls
        self.output = ipw.Output()
        self._answer = answer
        for control in controls.values():
            control.observe(self._update, names="value")
        row = ipw.HBox(list(controls.values()), layout=ipw.Layout(flex_flow="row wrap", grid_gap="4px 24px"))
        super().__init__([row, self.output])
        self._update()

    def set(self, **values: Any) -> None:
        """Move controls from a script, by name."""
        for name, value in values.items():
            self.controls[name].value = value

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """The live widget; and its answer as a page, which GitHub and nbconvert show where no kernel runs."""
        bundle: dict[str, Any] = super()._repr_mimebundle_(**options)
        return bundle | {"text/html": "".join(_page(shown["data"]) for shown in self.output.outputs)}

    def _update(self, _: Any = None) -> None:
        values = {name: control.value for name, control in self.controls.items()}
        try:
            shown = tuple(_display_data(item) for item in self._answer(**values))
        except LabError as error:
            shown = (_display_data(f"<b>{html.escape(error.what)}</b> {html.escape(error.hint)}"),)
        self.output.outputs = shown


def slider(label: str, values: Sequence[Any], value: Any) -> ipw.SelectionSlider:
    """A slider over the given values; the arrow keys move it."""
    return ipw.SelectionSlider(
        options=list(values), value=value, description=label, style=_WIDE, layout=ipw.Layout(width="340px")
    )


def dropdown(label: str, options: Sequence[Any], value: Any) -> ipw.Dropdown:
    """A list to choose from; options are values or `(text, value)` pairs."""
    return ipw.Dropdown(options=list(options), value=value, description=label, style=_WIDE)


def _display_data(item: Any) -> dict[str, Any]:
    """One output of a cell: a figure by Plotly's renderer, a record as its table, a string as HTML."""
    if isinstance(item, str):
        data: dict[str, Any] = {"text/html": item, "text/plain": item}
    elif hasattr(item, "_repr_mimebundle_"):
        data = item._repr_mimebundle_() or {}
        if _PLOTLY in data:  # the page then has Plotly already
            data = {kind: value for kind, value in data.items() if kind != "text/html"}
    else:
        data = {"text/html": item._repr_html_(), "text/plain": str(item)}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def _page(data: dict[str, Any]) -> str:
    """One output as HTML: its picture, where the renderer made one, else its own HTML or text."""
    if "image/png" in data:
        return f'<img src="data:image/png;base64,{data["image/png"]}" style="max-width: 100%">'
    return f"<div>{data.get('text/html') or html.escape(data.get('text/plain', ''))}</div>"
