"""Between Tunix's layout and Hugging Face's, by one table, with nothing lost."""

from labkit.convert.layout import Row, rows
from labkit.convert.peft import to_peft
from labkit.convert.to_hf import Conversion, to_hf
from labkit.convert.verify import Verification, verify

__all__ = ["Conversion", "Row", "Verification", "rows", "to_hf", "to_peft", "verify"]
