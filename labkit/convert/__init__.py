"""Between Tunix's layout and Hugging Face's, by one table, with nothing lost.

`to_hf` writes a model (its adapters merged) as a directory that Transformers, vLLM and labkit load, `to_peft` its
adapters alone; `from_hf` and `from_peft` are the ways back, and `verify` compares two directories.
"""

from labkit.convert.peft import from_peft, to_peft
from labkit.convert.to_hf import Conversion, to_hf
from labkit.convert.verify import Verification, verify
from labkit.models.layout import TABLES, Row, Rule, rows
from labkit.models.loading import load as from_hf

__all__ = [
    "TABLES",
    "Conversion",
    "Row",
    "Rule",
    "Verification",
    "from_hf",
    "from_peft",
    "rows",
    "to_hf",
    "to_peft",
    "verify",
]
