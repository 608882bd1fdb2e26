"""Store what the main job made as the shipped `tiny-gemma4-sft`: merged model, adapter, and each problem's result.

labkit run --out out/run && python scripts/store_sft_model.py out/run
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from labkit import pipeline, resources
from labkit.records import write_atomic

RESULTS = ("base", "sft", "base_unseen_families", "sft_unseen_families")
CARD = """---
license: apache-2.0
base_model: tiny-gemma4
---
# tiny-gemma4-sft

`tiny-gemma4` after LoRA fine-tuning on specifications and the Verilog modules that answer them. Made by `labkit run`
with seed 0 and stored by `scripts/store_sft_model.py`; the recipe is in `provenance.json`, the adapter in `adapter/`,
and the results of base and fine-tuned model, problem by problem, in `results/`.

```text
{table}
```

It knows the families of modules in labkit's generator, and nothing else. It is made for teaching.
"""


def main() -> None:
    """Copy, and put the whole folder in place at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    args = parser.parse_args()
    report = pipeline.RunReport.from_json((args.run / "report.json").read_text(encoding="utf-8"))
    target = resources.path("models") / "tiny-gemma4-sft"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / "made"
        shutil.copytree(args.run / "merged", made)
        shutil.copytree(args.run / "adapter", made / "adapter")
        for name in RESULTS:
            write_atomic(made / "results" / f"{name}.json", (args.run / f"{name}.json").read_text(encoding="utf-8"))
        table = str(report).split("report:")[0].strip()
        write_atomic(made / "README.md", CARD.format(table=table))
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    print(target)


if __name__ == "__main__":
    main()
