"""Adapters as PEFT directories, which `peft` and vLLM load beside the base model, and back.

PEFT's A is `[r, in]` and B `[out, r]`; Qwix keeps an einsum's axes apart, A `(in..., r)` and B `(r, out...)`. Which
axes are `in` and `out` is what the layout table says. Tunix's fused projections have one A and a slice of B for each
part.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import einops
import jax
import numpy as np
from flax import nnx
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load_file

from labkit import lora
from labkit.convert import shards
from labkit.convert.folders import new_folder, write_json, write_provenance
from labkit.convert.memory import peak_rss
from labkit.convert.to_hf import Conversion, refuse_nonfinite, tunix_parameters
from labkit.errors import LabError
from labkit.models.checkpoints import canonical
from labkit.models.layout import Row, rows
from labkit.models.spec import ModelSpec

_PREFIX = "base_model.model."
_FILE = "adapter_model.safetensors"
# Settings of PEFT's LoRA that Qwix has no like of, with the values that mean "not used".
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "bias": ("none", None),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": ([], None),
    "trainable_token_indices": ([], {}, None),
    "target_parameters": ([], None),
    "alora_invocation_tokens": ([], None),
    "lora_bias": (False, None),
}


@dataclass(frozen=True)
class Pair:
    """A and B of one linear, as PEFT has them."""

    a: Float[np.ndarray, "r in"]
    b: Float[np.ndarray, "out r"]


def to_peft(model: nnx.Module, spec: ModelSpec, out: str | Path, *, base: str) -> Conversion:
    """Write a model's adapters as `adapter_config.json` and `adapter_model.safetensors`.

    Tunix's fused K and V share one A: it is written twice. In layers whose values are their keys the pair is written
    for `v_proj` too: vLLM would apply it to the keys alone, and `peft` ignores the second.

    Args:
        model: a Tunix model with adapters.
        spec: its shapes.
        out: a new folder, or an earlier adapter of this model, which is replaced when the new one is complete.
        base: name or path of the base model, for `adapter_config.json`.

    Raises:
        LabError: a model without adapters, adapters that are not finite, or a folder of something else.
    """
    begun = time.monotonic()
    settings = lora.settings(model)
    adapters = _flat(lora.state(model))
    table = _linears(lora.split(model)[0], spec)
    adapted = [row for row in table if f"{row.tunix}_lora_a" in adapters]
    pairs = {name: _pair(row, adapters) for row in adapted for name in _names(row, spec)}
    tensors = {
        f"{_PREFIX}{name}.lora_{side.upper()}.weight": getattr(pair, side)
        for name, pair in pairs.items()
        for side in "ab"
    }
    for name, value in tensors.items():
        refuse_nonfinite(name, value)
    bare = [_module(row) for row in table if f"{row.tunix}_lora_a" not in adapters]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": settings.rank,
        "lora_alpha": int(settings.alpha) if settings.alpha.is_integer() else settings.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": _targets(list(pairs), bare),
        "inference_mode": True,
    }
    with new_folder(out, "adapter", spec.name) as folder:
        plan = [shards.Planned(name, value.shape, value.dtype) for name, value in tensors.items()]
        digests = shards.write(folder, "adapter_model", plan, tensors.__getitem__, "1000GB")
        shards.check(folder, digests)
        write_json(folder / "adapter_config.json", config)
        write_provenance(folder, "adapter", spec.name, {"base": base, "tensors_sha256": shards.digest(digests)})
    size = sum(value.nbytes for value in tensors.values())
    return Conversion(str(out), len(tensors), size, time.monotonic() - begun, peak_rss(), verified=True)


def from_peft(directory: str | Path, model: nnx.Module, spec: ModelSpec) -> tuple[nnx.Module, lora.Coverage]:
    """`model` with the adapters of a PEFT directory, and the table of what was adapted.

    Tunix's fused projections have one A. Where PEFT's parts have different ones (it trains them apart), rank and alpha
    double and B gets zeros, so that the product is the same. Adapters of keys and values that a layer never reads
    (shared KV) have no effect and are left out.

    Args:
        directory: a PEFT LoRA, rsLoRA among them.
        model: the base model, without adapters.
        spec: its shapes.

    Raises:
        LabError: files that cannot be read, a setting of PEFT that Qwix has no like of, an adapter of a tensor or shape
            that the model does not have, or values that are not finite.
    """
    config = _read_config(Path(directory))
    pairs = _read_pairs(Path(directory), config["r"])
    table = {_module(row): row for row in _linears(model, spec)}
    _merge_equal_values(pairs, spec)
    linears = {f"{x.path.replace('/', '.')}.{x.weight}": x for x in lora.linears(model) if x.used}
    fused = {k: parts for k, parts in _by_parameter(pairs, table).items() if k in linears}
    if not fused:
        raise LabError(f"{directory} has no adapter of a linear that {spec.name} uses.", hint="Is it of another model?")
    rank = config["r"] * max(len(_distinct(parts)) for parts in fused.values())
    targets = _roles_or_pattern(tuple(linears.values()), {linears[name].path for name in fused})
    adapted, coverage = lora.inject(model, rank, _scale(config) * rank, targets)
    arrays: dict[str, np.ndarray] = {}
    for name, parts in fused.items():
        a, b = linears[name].adapter_shapes(rank)
        arrays[f"{name}_lora_a"] = _tunix_a(parts, rank).reshape(a)
        arrays[f"{name}_lora_b"] = _tunix_b(parts, rank).reshape(b)
    _set(adapted, arrays)
    return adapted, coverage


def _roles_or_pattern(known: tuple[lora.Linear, ...], wanted: set[str]) -> str:
    """The shortest target of `lora.inject` that means these paths."""
    roles = ",".join(sorted({linear.role for linear in known if linear.path in wanted}))
    for words in ("all", roles):
        if {linear.path for linear in lora.select(known, words)} == wanted:
            return words
    return "|".join(re.escape(path) for path in sorted(wanted))


def _linears(model: nnx.Module, spec: ModelSpec) -> list[Row]:
    """The rows of the layers' linears of a model without adapters."""
    shapes = {name: tuple(value.shape) for name, value in tunix_parameters(model).items()}
    return [row for row in rows(spec, shapes) if len(row.hf_groups) == 2 and row.hf.startswith("model.layers.")]


def _flat(state: nnx.State) -> dict[str, Any]:
    return {".".join(map(str, path)): variable.get_value() for path, variable in nnx.to_flat_state(state)}


def _module(row: Row) -> str:
    return row.hf.removesuffix(".weight")


def _names(row: Row, spec: ModelSpec) -> list[str]:
    """Where an adapter is written: in layers whose values are their keys, for both."""
    name = _module(row)
    both = name.endswith(".k_proj") and spec.layer_k_eq_v(int(name.split(".")[2]))
    return [name, _value_of(name)] if both else [name]


def _value_of(key: str) -> str:
    return key.removesuffix("k_proj") + "v_proj"


def _axes(row: Row) -> tuple[str, str, str, str]:
    """Axes of the output and of the input as einops words: in Tunix's order, and as Hugging Face joins them."""
    outputs, inputs = row.hf_groups
    apart = [" ".join(axis for axis in row.tunix_axes if axis in side) for side in (outputs, inputs)]
    return apart[0], apart[1], f"({' '.join(outputs)})", f"({' '.join(inputs)})"


def _pair(row: Row, adapters: dict[str, Any]) -> Pair:
    """PEFT's A and B of Qwix's."""
    a, b = (np.asarray(adapters[f"{row.tunix}_lora_{side}"]) for side in "ab")
    rank = a.shape[-1]
    outputs, inputs, out, into = _axes(row)
    b = b if row.part is None else b[:, row.part]
    a = a.reshape([*(row.sizes[axis] for axis in inputs.split()), rank])
    b = b.reshape([rank, *(row.sizes[axis] for axis in outputs.split())])
    return Pair(
        np.ascontiguousarray(einops.rearrange(a, f"{inputs} r -> r {into}")),
        np.ascontiguousarray(einops.rearrange(b, f"r {outputs} -> {out} r")),
    )


def _targets(adapted: list[str], bare: list[str]) -> list[str]:
    """`target_modules`: last names, and whole names where a linear of the same last name has no adapter."""
    mixed = {name.rpartition(".")[2] for name in bare}
    return sorted({last if (last := name.rpartition(".")[2]) not in mixed else name for name in adapted})


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "adapter_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path} is no configuration of a LoRA adapter: {error!r}.", hint="Copy it again.") from error
    if config.get("peft_type") != "LORA" or rank < 1 or alpha <= 0:
        raise LabError(f"{path}: {config.get('peft_type')} of rank {rank}, alpha {alpha:g} is no LoRA adapter.")
    for key, unused in _UNSUPPORTED.items():
        if config.get(key) not in unused:
            raise LabError(
                f"{path}: {key} is {config[key]!r}, which Qwix has no like of.",
                hint="Merge the adapter with peft and load the merged model.",
            )
    return config


def _scale(config: dict[str, Any]) -> float:
    """The factor of B A: alpha / r, in rsLoRA (arXiv:2312.03732) alpha / sqrt(r)."""
    rank = config["r"]
    return config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _read_pairs(directory: Path, rank: int) -> dict[str, Pair]:
    """A and B by the module's name with the prefix "model."."""
    path = directory / _FILE
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise LabError(f"{path} cannot be read: {error}.", hint="Only safetensors are read; copy it again.") from error
    sides: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, value in tensors.items():
        found = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name)
        if found is None or value.ndim != 2 or value.shape["AB".index(found[2])] != rank:
            raise LabError(f"{path}: {name} {value.shape} is no adapter matrix of rank {rank}.", hint="Is it of PEFT?")
        refuse_nonfinite(name, value)
        sides[canonical(found[1])][found[2]] = value
    for name, both in sides.items():
        if set(both) != {"A", "B"}:
            raise LabError(f"{path}: {name} has only lora_{next(iter(both))}.", hint="Copy the adapter again.")
    return {name: Pair(both["A"], both["B"]) for name, both in sides.items()}


def _merge_equal_values(pairs: dict[str, Pair], spec: ModelSpec) -> None:
    """Drop the second pair of layers whose values are their keys; it has to be the same as the first."""
    keys = [f"model.layers.{i}.self_attn.k_proj" for i in range(spec.num_layers) if spec.layer_k_eq_v(i)]
    for key in [key for key in keys if key in pairs]:
        value = pairs.pop(_value_of(key), pairs[key])
        if not all(np.array_equal(getattr(value, side), getattr(pairs[key], side)) for side in "ab"):
            raise LabError(
                f"{_value_of(key)} has an adapter other than {key}, but in {spec.name} they are one linear.",
                hint="The adapter is of another model.",
            )


Parts = dict[int, tuple[Row, Pair]]  # by number of the part; 0 where Tunix does not fuse


def _by_parameter(pairs: dict[str, Pair], table: dict[str, Row]) -> dict[str, Parts]:
    """The pairs of each Tunix parameter."""
    fused: dict[str, Parts] = defaultdict(dict)
    for name, pair in pairs.items():
        row = table.get(name)
        if row is None:
            raise LabError(f"The adapter has {name}, which is no linear of the model.", hint="Is it of another model?")
        if (pair.b.shape[0], pair.a.shape[1]) != row.hf_shape:
            shape = (pair.b.shape[0], pair.a.shape[1])
            raise LabError(f"The adapter of {name} is for {shape}, the model has {row.hf_shape}.")
        fused[row.tunix][row.part or 0] = (row, pair)
    return fused


def _distinct(parts: Parts) -> list[np.ndarray]:
    """The different A among the parts."""
    found: list[np.ndarray] = []
    for _, pair in parts.values():
        if not any(np.array_equal(pair.a, other) for other in found):
            found.append(pair.a)
    return found


def _tunix_a(parts: Parts, rank: int) -> np.ndarray:
    """Qwix's A: the different A of the parts one after another, then zeros up to `rank`."""
    row, _ = next(iter(parts.values()))
    _, inputs, _, into = _axes(row)
    stacked = np.concatenate(_distinct(parts))
    padded = np.pad(stacked, ((0, rank - len(stacked)), (0, 0)))
    return einops.rearrange(padded, f"r {into} -> {inputs} r", **_sizes(row, inputs))


def _tunix_b(parts: Parts, rank: int) -> np.ndarray:
    """Qwix's B: each part's B in the place of its A, zeros elsewhere and for parts without adapter."""
    row, _ = next(iter(parts.values()))
    outputs, _, out, _ = _axes(row)
    known = _distinct(parts)
    count = 1 if row.part is None else row.tunix_shape[0]
    wide = np.zeros((count, row.hf_shape[0], rank), known[0].dtype)
    for number, (_, pair) in parts.items():
        place = next(i for i, a in enumerate(known) if np.array_equal(a, pair.a)) * len(pair.a)
        wide[number, :, place : place + len(pair.a)] = pair.b
    return einops.rearrange(wide, f"part {out} r -> r part {outputs}", **_sizes(row, outputs))


def _sizes(row: Row, axes: str) -> dict[str, int]:
    return {axis: row.sizes[axis] for axis in axes.split()}


def _set(model: nnx.Module, arrays: dict[str, np.ndarray]) -> None:
    """Put the adapters in the place of those that `inject` began with, in their dtype and sharding."""
    state = lora.state(model)
    flat = []
    for path, variable in nnx.to_flat_state(state):
        old = variable.get_value()
        new = jax.device_put(arrays[".".join(map(str, path))].astype(old.dtype), old.sharding)
        flat.append((path, variable.replace(new)))
    nnx.update(model, nnx.from_flat_state(flat))
