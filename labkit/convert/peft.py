"""An adapter as a PEFT directory, which `peft` and vLLM load beside the base model."""

from __future__ import annotations

import json
import time
from pathlib import Path

import einops
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from labkit import lora
from labkit.convert.layout import Row, rows
from labkit.convert.to_hf import Conversion, new_folder, peak_rss, tunix_parameters
from labkit.models.spec import ModelSpec

_PREFIX = "base_model.model."


def to_peft(model: nnx.Module, spec: ModelSpec, out: str | Path, *, base: str) -> Conversion:
    """Write a model's adapters as `adapter_config.json` and `adapter_model.safetensors`.

    Tunix's fused K and V share one A: it is written twice. In layers whose values are their keys the pair is written
    for `v_proj` too: vLLM would apply it to the keys alone, and `peft` ignores the second.

    Args:
        model: a Tunix model with adapters.
        spec: its shapes.
        out: the new directory; it appears when it is complete.
        base: name or path of the base model, for `adapter_config.json`.

    Raises:
        LabError: a model without adapters, or a folder that exists.
    """
    begun = time.monotonic()
    settings = lora.settings(model)
    adapters = {
        ".".join(map(str, path)): np.asarray(variable.get_value())
        for path, variable in nnx.to_flat_state(lora.state(model))
    }
    plain, _ = lora.split(model)
    shapes = {name: tuple(value.shape) for name, value in tunix_parameters(plain).items()}
    tensors: dict[str, np.ndarray] = {}
    targets = set()
    for row in rows(spec, shapes):
        if f"{row.tunix}_lora_a" in adapters:
            a, b = _pair(row, adapters[f"{row.tunix}_lora_a"], adapters[f"{row.tunix}_lora_b"], settings.rank)
            for name in _names(row, spec):
                tensors[f"{_PREFIX}{name}.lora_A.weight"], tensors[f"{_PREFIX}{name}.lora_B.weight"] = a, b
                targets.add(name.rsplit(".", 1)[-1])
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(targets),
        "inference_mode": True,
    }
    with new_folder(out) as folder:
        save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    size = sum(t.nbytes for t in tensors.values())
    return Conversion(str(out), len(tensors), size, time.monotonic() - begun, peak_rss(), verified=False)


def _pair(row: Row, a: np.ndarray, b: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """PEFT's A `[r, in]` and B `[out, r]` of Qwix's A `[in..., r]` and B `[r, out...]`."""
    if row.part is not None:
        b = b[:, row.part]
    left, right = (side.strip() for side in row.axes.split("->"))
    outs = right[: right.rindex(")") + 1] if right.startswith("(") else right.split(" ", 1)[0]
    # Axes of B in Tunix's order may differ from their order in the row of Hugging Face.
    order = [axis for axis in left.split() if axis in outs.strip("()").split()]
    wide = b.reshape(rank, *_sizes(row, order))
    flat_b = einops.rearrange(wide, f"r {' '.join(order)} -> ({outs.strip('()')}) r")
    return np.ascontiguousarray(a.reshape(-1, rank).T), np.ascontiguousarray(flat_b)


def _sizes(row: Row, axes: list[str]) -> list[int]:
    shape = row.tunix_shape[1:] if row.part is not None else row.tunix_shape
    sizes = dict(zip(row.axes.split("->")[0].split(), shape, strict=True))
    return [sizes[axis] for axis in axes]


def _names(row: Row, spec: ModelSpec) -> list[str]:
    name = row.hf.removesuffix(".weight")
    if name.endswith("k_proj") and spec.layer_k_eq_v(int(name.split(".")[2])):
        return [name, name.replace("k_proj", "v_proj")]
    return [name]
