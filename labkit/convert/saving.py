"""From any source to a Hugging Face directory that Transformers, vLLM and labkit load."""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from labkit.convert import peft, shards
from labkit.convert.adapters import Adapters
from labkit.convert.beside import Beside
from labkit.convert.folders import new_folder, write_provenance
from labkit.convert.merging import SWALLOWED, Merger, MergeReport
from labkit.convert.opening import Given, open_source
from labkit.convert.result import Conversion
from labkit.convert.tensors import Tensor
from labkit.models.spec import ModelSpec


def to_hf(
    source: Given,
    out: str | Path,
    *,
    spec: ModelSpec | None = None,
    base: str | Path | None = None,
    files: str | Path | None = None,
    tokenizer: Any = None,
    dtype: str | None = None,
    max_shard: str = "5GB",
    provenance: dict[str, Any] | None = None,
    allow_nonfinite: bool = False,
    allow_other_base: bool = False,
) -> Conversion:
    """Write a model as a Hugging Face directory; adapters are merged in float32 and rounded once.

    Pieces of one tensor at a time are read, transformed and written, so memory is bound by the largest array that the
    source has. The files are read back and compared before the folder gets its name.

    Args:
        source: a live Tunix model (with `spec`), what `labkit.models.load` gave, a registry name, a Hugging Face or
            PEFT directory, an Orbax checkpoint, or the folder of a `labkit sft` or `labkit run`.
        out: a new folder, or an earlier version of the same thing, which is replaced when the new one is complete.
        spec: of a live model; it also goes into `config.json`.
        base: of adapters that stand alone; None is the one that they name.
        files: directory with tokenizer, generation config, and what else `config.json` shall say; None is the source's.
        tokenizer: a Transformers tokenizer to save instead of the directory's.
        dtype: of the tensors written ("float32", "bfloat16", "float16"); None keeps the source's.
        max_shard: size of a file, as huggingface_hub writes it.
        provenance: what else `provenance.json` shall say, such as the recipe.
        allow_nonfinite: write weights that are NaN or infinite.
        allow_other_base: merge adapters that say they were trained on other weights.

    Raises:
        LabError: a folder of something else, a source that cannot be believed or is not of its spec, weights that are
            not finite (by name), adapters of another base, a disk that is full.
    """
    begun = time.monotonic()
    found = open_source(source, spec=spec, base=base, allow_other_base=allow_other_base)
    beside = Beside(Path(files) if files is not None else found.files, Path(out))
    merger = Merger(found.adapters, shards.dtype_of(dtype) if dtype else None)
    plan = [shards.Planned(x.name, x.shape, merger.dtype or x.dtype) for x in found.tensors.values()]
    produce = functools.partial(_produce, found.tensors, merger, allow_nonfinite)
    with new_folder(out, "model", found.spec.name) as folder:
        digests = shards.write(folder, "model", plan, produce, max_shard)
        shards.check(folder, digests)
        beside.write(folder, found.spec, plan[0].dtype.name, tokenizer)
        said = {"source": dict(found.about) or beside.about(), "adapter": about_adapters(found.adapters)}
        write_provenance(folder, "model", found.spec.name, said | _made(digests) | (provenance or {}))
    return Conversion.finished(out, [tensor.nbytes for tensor in plan], begun, _reported(merger))


def _produce(tensors: Mapping[str, Tensor], merger: Merger, allow_nonfinite: bool, name: str) -> Iterator[np.ndarray]:
    """The pieces of a tensor as they are written; at its end the `LabError` about values that are not finite."""
    tensor, bad = tensors[name], 0
    for piece, nonfinite in merger.pieces(tensor):
        bad += nonfinite
        yield piece
    if not allow_nonfinite:
        shards.refuse_nonfinite(name, bad, math.prod(tensor.shape), merger.dtype or tensor.dtype)


def _made(digests: shards.Digests) -> dict[str, str]:
    return {"tensors_xxh3_128": shards.digest(digests)}


def about_adapters(adapters: Adapters | None) -> dict[str, Any] | None:
    """What the provenance says of adapters."""
    if adapters is None:
        return None
    return {
        "rank": adapters.rank,
        "alpha": adapters.alpha,
        "rslora": adapters.rslora,
        "linears": len(adapters.pairs),
        "base_fingerprint": adapters.base,
    }


def _reported(merger: Merger) -> MergeReport | None:
    """What rounding did, with a warning where it ate a share of the adapters."""
    report = merger.report()
    if report is not None and report.swallowed > SWALLOWED:
        warnings.warn(
            f"Rounding to {report.dtype} swallowed {report.swallowed:.0%} of the adapters' change (most in "
            f"{report.worst.name}). Write float32, or serve the adapter unmerged.",
            stacklevel=3,
        )
    return report


def to_peft(
    source: Given,
    out: str | Path,
    *,
    spec: ModelSpec | None = None,
    base: str | Path | None = None,
    base_name: str | None = None,
    allow_nonfinite: bool = False,
    allow_other_base: bool = False,
) -> Conversion:
    """Write a model's adapters as `adapter_config.json` and `adapter_model.safetensors`, for `peft` and vLLM.

    Tunix's fused K and V share one A: it is written twice. In layers whose values are their keys the pair is written
    for `v_proj` too: vLLM would apply it to the keys alone, and `peft` ignores the second. The provenance has a
    fingerprint of the base, and labkit refuses the adapter on another.

    Args:
        source: as in `to_hf`; it needs adapters.
        out: a new folder, or an earlier adapter of this model, which is replaced when the new one is complete.
        spec: of a live model.
        base: of adapters that stand alone; None is the one that they name.
        base_name: name or path of the base in `adapter_config.json`; None is `base`, or the model's own name.
        allow_nonfinite: write adapters that are NaN or infinite.
        allow_other_base: take adapters that say they were trained on other weights.

    Raises:
        LabError: a model without adapters, adapters that are not finite, or a folder of something else.
    """
    found = open_source(source, spec=spec, base=base, allow_other_base=allow_other_base)
    name = base_name or (str(base) if base else found.spec.hub_id or found.spec.name)
    return peft.write(found, out, base=name, allow_nonfinite=allow_nonfinite)
