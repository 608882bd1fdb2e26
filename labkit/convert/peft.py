"""Adapters as PEFT directories, which `peft` and vLLM load beside the base model, and back."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import load_file

from labkit import lora
from labkit.convert import adapters as pairing
from labkit.convert import shards
from labkit.convert.adapters import Adapters, Pair
from labkit.convert.folders import new_folder, read_provenance, write_json, write_provenance
from labkit.convert.result import Conversion
from labkit.convert.sources import Source, fingerprint, of_model, refuse_other_base
from labkit.errors import LabError
from labkit.models import headers
from labkit.models.checkpoints import canonical
from labkit.models.spec import ModelSpec

_PREFIX = "base_model.model."
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
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


def write(source: Source, out: str | Path, *, base: str, allow_nonfinite: bool = False) -> Conversion:
    """Write the adapters of a source as `adapter_config.json` and `adapter_model.safetensors`; see `to_peft`."""
    begun = time.monotonic()
    adapters, spec = source.adapters, source.spec
    if adapters is None:
        raise LabError(f"{spec.name} has no adapters.", hint="Convert it --to hf.")
    written = {name: pair for linear, pair in adapters.pairs.items() for name, pair in _twice(linear, pair, spec)}
    tensors = {
        f"{_PREFIX}{name}.lora_{side.upper()}.weight": np.asarray(getattr(pair, side))
        for name, pair in written.items()
        for side in "ab"
    }
    if not allow_nonfinite:
        for name, value in tensors.items():
            shards.refuse_nonfinite(name, shards.count_nonfinite(value), value.size, value.dtype)
    bare = [name for name in map(pairing.module, pairing.linears(spec, source.shapes)) if name not in adapters.pairs]
    with new_folder(out, "adapter", spec.name) as folder:
        plan = [shards.Planned(name, value.shape, value.dtype) for name, value in tensors.items()]
        digests = shards.write(folder, "adapter_model", plan, lambda name: [tensors[name]], "1000GB")
        shards.check(folder, digests)
        write_json(folder / CONFIG, _config(adapters, base, list(written), bare))
        trained_on = adapters.base or fingerprint(source.tensors)
        about = {"base": base, "base_fingerprint": trained_on, "tensors_xxh3_128": shards.digest(digests)}
        write_provenance(folder, "adapter", spec.name, about)
    return Conversion.finished(out, [value.nbytes for value in tensors.values()], begun)


def from_peft(
    directory: str | Path, model: nnx.Module, spec: ModelSpec, *, allow_other_base: bool = False
) -> tuple[nnx.Module, lora.Coverage]:
    """`model` with the adapters of a PEFT directory, and the table of what was adapted.

    Tunix's fused projections have one A. Where PEFT's parts have different ones (it trains them apart), rank and alpha
    double and B gets zeros, so that the product is the same. Adapters of keys and values that a layer never reads
    (shared KV) have no effect and are left out.

    Args:
        directory: a PEFT LoRA, rsLoRA among them.
        model: the base model, without adapters.
        spec: its shapes.
        allow_other_base: take an adapter that says it was trained on other weights.

    Raises:
        LabError: files that cannot be read, a setting of PEFT that Qwix has no like of, an adapter of a tensor or shape
            that the model does not have or of another base, or values that are not finite.
    """
    found = read(directory, spec)
    if not allow_other_base:
        refuse_other_base(str(directory), found, of_model(model, spec).tensors)
    return attach(model, spec, found, str(directory))


def attach(model: nnx.Module, spec: ModelSpec, found: Adapters, where: str) -> tuple[nnx.Module, lora.Coverage]:
    """A model with these adapters, and the table of what was adapted."""
    shapes = {name: tuple(value.shape) for name, value in pairing.flat(nnx.state(model, nnx.Param)).items()}
    table = {pairing.module(row): row for row in pairing.linears(spec, shapes)}
    linears = {f"{x.path.replace('/', '.')}.{x.weight}": x for x in lora.linears(model) if x.used}
    fused = {k: parts for k, parts in pairing.by_parameter(found.pairs, table).items() if k in linears}
    if not fused:
        raise LabError(f"{where} has no adapter of a linear that {spec.name} uses.", hint="Is it of another model?")
    rank = found.rank * max(len(pairing.distinct(parts)) for parts in fused.values())
    targets = _roles_or_pattern(tuple(linears.values()), {linears[name].path for name in fused})
    adapted, coverage = lora.inject(model, rank, found.scale * rank, targets)
    arrays: dict[str, np.ndarray] = {}
    for name, parts in fused.items():
        a, b = linears[name].adapter_shapes(rank)
        arrays[f"{name}_lora_a"] = pairing.tunix_a(parts, rank).reshape(a)
        arrays[f"{name}_lora_b"] = pairing.tunix_b(parts, rank).reshape(b)
    _set(adapted, arrays)
    return adapted, coverage


def read(directory: str | Path, spec: ModelSpec) -> Adapters:
    """The adapters of a PEFT directory, in memory."""
    config = read_config(directory)
    pairs = _read_pairs(Path(directory), config["r"])
    _merge_equal_values(pairs, spec)
    made = read_provenance(Path(directory))
    return Adapters(
        config["r"], float(config["lora_alpha"]), pairs, bool(config.get("use_rslora")), made.get("base_fingerprint")
    )


def read_config(directory: str | Path) -> dict[str, Any]:
    """`adapter_config.json` of a PEFT LoRA; a `LabError` for what Qwix has no like of."""
    path = Path(directory) / CONFIG
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


def _config(adapters: Adapters, base: str, adapted: list[str], bare: list[str]) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapters.rank,
        "lora_alpha": int(adapters.alpha) if adapters.alpha.is_integer() else adapters.alpha,
        "use_rslora": adapters.rslora,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": _targets(adapted, bare),
        "inference_mode": True,
    }


def _twice(name: str, pair: Pair, spec: ModelSpec) -> list[tuple[str, Pair]]:
    """Where an adapter is written: in layers whose values are their keys, for both."""
    both = name.endswith(".k_proj") and spec.layer_k_eq_v(int(name.split(".")[2]))
    return [(name, pair), (_value_of(name), pair)] if both else [(name, pair)]


def _value_of(key: str) -> str:
    return key.removesuffix("k_proj") + "v_proj"


def _targets(adapted: list[str], bare: list[str]) -> list[str]:
    """`target_modules`: last names, and whole names where a linear of the same last name has no adapter."""
    mixed = {name.rpartition(".")[2] for name in bare}
    return sorted({last if (last := name.rpartition(".")[2]) not in mixed else name for name in adapted})


def _roles_or_pattern(known: tuple[lora.Linear, ...], wanted: set[str]) -> str:
    """The shortest target of `lora.inject` that means these paths."""
    roles = ",".join(sorted({linear.role for linear in known if linear.path in wanted}))
    for words in ("all", roles):
        if {linear.path for linear in lora.select(known, words)} == wanted:
            return words
    return "|".join(re.escape(path) for path in sorted(wanted))


def _read_pairs(directory: Path, rank: int) -> dict[str, Pair]:
    """A and B by the module's name with the prefix "model."."""
    path = directory / WEIGHTS
    if not path.is_file():
        pickled = " adapter_model.bin is pickled and never read." if (directory / "adapter_model.bin").exists() else ""
        raise LabError(f"{directory} has no {WEIGHTS}.{pickled}", hint="Save the adapter again as safetensors.")
    for info in headers.read(path):
        if info.dtype not in ("F32", "F16", "BF16"):
            raise LabError(f"{path}: {info.name} has dtype {info.dtype}, which is no adapter's.")
    sides: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    for name, value in load_file(path).items():
        found = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", name)
        if found is None or value.ndim != 2 or value.shape["AB".index(found[2])] != rank:
            raise LabError(f"{path}: {name} {value.shape} is no adapter matrix of rank {rank}.", hint="Is it of PEFT?")
        shards.refuse_nonfinite(f"{path}: {name}", shards.count_nonfinite(value), value.size, value.dtype)
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


def _set(model: nnx.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Put the adapters in the place of those that `inject` began with, in their dtype and sharding."""
    state = lora.state(model)
    found = []
    for path, variable in nnx.to_flat_state(state):
        old = variable.get_value()
        new = jax.device_put(arrays[".".join(map(str, path))].astype(old.dtype), old.sharding)
        found.append((path, variable.replace(new)))
    nnx.update(model, nnx.from_flat_state(found))
