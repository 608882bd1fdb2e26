"""Write data/abstract_states.json: every parameter of every registry model, as Tunix builds it under eval_shape.

Run it after a change of data/models.json or of Tunix: JAX_PLATFORMS=cpu python scripts/make_abstract_states.py
It takes a few minutes and allocates no weights.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys

from labkit import models, records, resources
from labkit.models import building, states


def main() -> None:
    """Build each model's shapes and write them, layers of one shape folded together."""
    versions = {name: importlib.metadata.version(name) for name in ("google-tunix", "flax", "jax")}
    lines = []
    for name in models.names():
        print(f"{name} ...", file=sys.stderr, flush=True)
        groups = states.fold(building.parameters_of(models.get(name)))
        rows = ",\n".join(f"   {json.dumps(group, separators=(',', ':'))}" for group in groups)
        lines.append(f'  "{name}": [\n{rows}\n  ]')
    head = f'{{\n "made_by": "scripts/make_abstract_states.py",\n "versions": {json.dumps(versions)},\n "models": {{\n'
    records.write_atomic(resources.data_dir() / "abstract_states.json", head + ",\n".join(lines) + "\n }\n}\n")


if __name__ == "__main__":
    main()
