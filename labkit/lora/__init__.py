"""LoRA that cannot fail silently: adapters by role over Qwix, a coverage report, merge and split.

Roles: `q`, `kv`, `o` (together `attention`), `gate`, `up`, `down` (together `mlp`), and `all` of them. Gemma 4's
projections of per-layer inputs have the role `per_layer`, which is in no group, as in the usual recipes.
"""

from labkit.lora.coverage import Coverage, LinearRow
from labkit.lora.inject import inject, inject_abstract, is_injected, remat_off, set_remat, settings, state
from labkit.lora.linears import GROUPS, ROLES, Linear, linears, missed, select
from labkit.lora.merge import merge, split
from labkit.lora.size import AdapterSize, linears_of, size

__all__ = [
    "GROUPS",
    "ROLES",
    "AdapterSize",
    "Coverage",
    "Linear",
    "LinearRow",
    "inject",
    "inject_abstract",
    "is_injected",
    "linears",
    "linears_of",
    "merge",
    "missed",
    "remat_off",
    "select",
    "set_remat",
    "settings",
    "size",
    "split",
    "state",
]
