"""The split of the published runs stays as it was fixed."""

from labkit.rehearse.splits import series, split
from labkit.resources import load_json

ROWS = load_json("measured_runs.json")["training"]


def test_a_series_is_one_point():
    parts = {}
    for row in ROWS:
        parts.setdefault((row["model"], row["tpu"], row.get("per_device_batch")), set()).add(split(series(row)))
    assert all(len(part) == 1 for part in parts.values())


def test_about_a_third_judges():
    names = {series(row) for row in ROWS}
    assert 0.2 <= sum(split(name) == "validation" for name in names) / len(names) <= 0.47
