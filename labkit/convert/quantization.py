"""Models with 8-bit weights, in the compressed-tensors format that vLLM and Transformers read.

Each row of a linear's weight gets one symmetric scale, max |w| / 127 for int8 and max |w| / 448 for fp8 (e4m3); the
server quantizes activations by token as they come. Embeddings and norms stay as they are.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, Float

from labkit.convert import adapters as pairing
from labkit.convert import probing, shards
from labkit.convert.beside import Beside
from labkit.convert.folders import new_folder, write_provenance
from labkit.convert.merging import Merger
from labkit.convert.opening import Given, open_source
from labkit.convert.result import Conversion
from labkit.convert.sources import Source
from labkit.convert.tensors import Tensor
from labkit.errors import LabError, nearest
from labkit.models.spec import ModelSpec
from labkit.records import Record

Scheme = Literal["int8", "fp8"]
_STORED: dict[str, Any] = {"int8": np.dtype(np.int8), "fp8": np.dtype(ml_dtypes.float8_e4m3fn)}
_TOP = {"int8": 127.0, "fp8": 448.0}
_FORMAT = {"int8": "int-quantized", "fp8": "float-quantized"}


@dataclass(frozen=True)
class QuantizedLinear(Record):
    """What 8 bits did to one linear: the norm of the error relative to the weights', and its largest value."""

    name: str
    error: float
    max_abs_error: float

    def __str__(self) -> str:
        return f"{self.name}: error {self.error:.2%} of the weights, at most {self.max_abs_error:.3g}"


@dataclass(frozen=True)
class Quantization(Record):
    """A quantized export and what it cost.

    `error` is the norm of the error of all quantized weights relative to theirs. The differences of logits are those of
    the same model with the quantized weights, activations in full; None where they were not asked for.
    """

    scheme: str
    conversion: Conversion
    error: float
    linears: tuple[QuantizedLinear, ...]
    bytes_before: int
    max_logit_difference: float | None
    mean_logit_difference: float | None
    argmax_agreement: float | None

    @property
    def worst(self) -> QuantizedLinear:
        """The linear with the largest relative error."""
        return max(self.linears, key=lambda linear: linear.error)

    def __str__(self) -> str:
        logits = ""
        if self.max_logit_difference is not None:
            logits = (
                f"; logits differ by up to {self.max_logit_difference:.3g}, argmax {self.argmax_agreement:.1%} alike"
            )
        return (
            f"{self.conversion.out}: {self.scheme}, {self.conversion.bytes:,} bytes of {self.bytes_before:,}, error "
            f"{self.error:.2%} of the weights, worst {self.worst}{logits}"
        )


def quantize(
    source: Given,
    out: str | Path,
    *,
    scheme: Scheme = "int8",
    spec: ModelSpec | None = None,
    base: str | Path | None = None,
    files: str | Path | None = None,
    max_shard: str = "5GB",
    probe: bool = True,
    allow_nonfinite: bool = False,
    allow_other_base: bool = False,
) -> Quantization:
    """Write a model (its adapters merged) with 8-bit linears as a compressed-tensors directory.

    Args:
        source: as in `to_hf`.
        out: a new folder, or an earlier version of the same thing.
        scheme: "int8" or "fp8".
        spec: of a live model.
        base: of adapters that stand alone; None is the one that they name.
        files: directory with configuration and tokenizer; None is the source's.
        max_shard: size of a file.
        probe: compare logits too, for which the model is loaded twice.
        allow_nonfinite: write embeddings and norms that are NaN or infinite; quantized weights have to be finite.
        allow_other_base: merge adapters that say they were trained on other weights.

    Raises:
        LabError: as `to_hf`, and for an unknown scheme.
    """
    if scheme not in _STORED:
        raise LabError(f"There is no scheme {scheme!r}.", hint=f"Nearest: {nearest(scheme, list(_STORED))}.")
    begun = time.monotonic()
    found = open_source(source, spec=spec, base=base, allow_other_base=allow_other_base)
    beside = Beside(Path(files) if files is not None else found.files, Path(out))
    job = _Job(found, scheme, allow_nonfinite)
    with new_folder(out, f"model-{scheme}", found.spec.name) as folder:
        digests = shards.write(folder, "model", job.plan(), job.produce, max_shard)
        shards.check(folder, digests)
        beside.write(folder, found.spec, job.dtype.name, extra={"quantization_config": _config(scheme, job.ignored())})
        write_provenance(folder, f"model-{scheme}", found.spec.name, {"source": dict(found.about)})
    done = Conversion.finished(out, [tensor.nbytes for tensor in job.plan()], begun)
    return _quantization(job, done, _said(found, job) if probe else None)


def _quantization(job: _Job, done: Conversion, gap: probing.Gap | None) -> Quantization:
    def relative(squares: float, weights: float) -> float:
        return float(np.sqrt(squares / max(weights, 1e-30)))

    sums = job.sums.values()
    return Quantization(
        scheme=job.scheme,
        conversion=done,
        error=relative(sum(x[0] for x in sums), sum(x[1] for x in sums)),
        linears=tuple(QuantizedLinear(name, relative(x[0], x[1]), x[2]) for name, x in job.sums.items()),
        bytes_before=sum(tensor.nbytes for tensor in job.source.tensors.values()),
        max_logit_difference=gap.max_difference if gap else None,
        mean_logit_difference=gap.mean_difference if gap else None,
        argmax_agreement=gap.argmax_agreement if gap else None,
    )


def _said(source: Source, job: _Job) -> probing.Gap:
    return probing.compare(probing.live(source), probing.live(source, job.dequantized), source.spec.vocab_size)


class _Job:
    """Which tensors are written how, and the errors found meanwhile: sum of squares, of the weights', largest."""

    def __init__(self, source: Source, scheme: str, allow_nonfinite: bool) -> None:
        self.source, self.scheme, self.allow_nonfinite = source, scheme, allow_nonfinite
        self.merger = Merger(source.adapters, None)
        self.linears = {row.hf for row in pairing.linears(source.spec, source.shapes)}
        self.dtype = next(iter(source.tensors.values())).dtype
        self.sums: dict[str, tuple[float, float, float]] = {}
        self._scales: dict[str, np.ndarray] = {}

    def plan(self) -> list[shards.Planned]:
        """What is written: after each quantized weight its scales."""
        planned = []
        for name, tensor in self.source.tensors.items():
            if name not in self.linears:
                planned.append(shards.Planned(name, tensor.shape, tensor.dtype))
                continue
            planned.append(shards.Planned(name, tensor.shape, _STORED[self.scheme]))
            planned.append(shards.Planned(f"{name}_scale", (tensor.shape[0], 1), np.dtype(np.float32)))
        return planned

    def ignored(self) -> list[str]:
        """The linears that stay as they are, by the names that Transformers gives the modules."""
        beside = [x for x in self.source.tensors if x not in self.linears and len(self.source.tensors[x].shape) == 2]
        return ["lm_head", *(name.removesuffix(".weight") for name in beside if "embed_tokens" not in name)]

    def produce(self, name: str) -> Iterator[np.ndarray]:
        """The pieces of one tensor of the plan; scales are kept from when their weight was quantized."""
        if name in self.linears:
            yield from self._quantized(self.source.tensors[name])
        elif name in self.source.tensors:
            yield from self._plain(self.source.tensors[name])
        else:
            yield self._scale_of(name.removesuffix("_scale"))

    def dequantized(self, tensor: Tensor, whole: np.ndarray) -> np.ndarray:
        """A tensor as the server has it."""
        if tensor.name not in self.linears:
            return whole
        q, scale, _ = quantized(jnp.asarray(whole), self.scheme)
        return np.asarray((q.astype(jnp.float32) * scale).astype(whole.dtype))

    def _plain(self, tensor: Tensor) -> Iterator[np.ndarray]:
        bad = 0
        for piece, nonfinite in self.merger.pieces(tensor):
            bad += nonfinite
            yield piece
        if not self.allow_nonfinite:
            shards.refuse_nonfinite(tensor.name, bad, int(np.prod(tensor.shape)), tensor.dtype)

    def _quantized(self, tensor: Tensor) -> Iterator[np.ndarray]:
        sums, scales = np.zeros(3), []
        for piece, bad in self.merger.pieces(tensor):
            shards.refuse_nonfinite(tensor.name, bad, piece.size, tensor.dtype)
            q, scale, found = quantized(jnp.asarray(piece), self.scheme)
            error, weight, largest = np.asarray(found, np.float64)
            sums = np.array([sums[0] + error.sum(), sums[1] + weight.sum(), max(sums[2], largest.max())])
            scales.append(np.asarray(scale))
            yield np.asarray(q)
        self.sums[tensor.name] = (float(sums[0]), float(sums[1]), float(sums[2]))
        self._scales[tensor.name] = np.concatenate(scales)

    def _scale_of(self, name: str) -> np.ndarray:
        if name not in self._scales:  # the file's order put the wider scales before their weight
            for _ in self._quantized(self.source.tensors[name]):
                pass
        return self._scales[name]


@functools.partial(jax.jit, static_argnames=("scheme",))
def quantized(
    weight: Float[Array, "out in"], scheme: str
) -> tuple[Array, Float[Array, "out 1"], Float[Array, "3 out"]]:
    """8-bit values, the scale of each row, and each row's sums of squares of error and weight and its largest error."""
    plain = weight.astype(jnp.float32)
    top = jnp.max(jnp.abs(plain), -1, keepdims=True)
    scale = jnp.where(top > 0, top / _TOP[scheme], 1.0)
    scaled = plain / scale
    q = (jnp.round(scaled) if scheme == "int8" else scaled).astype(_STORED[scheme])
    q = jax.lax.optimization_barrier(q)
    error = jnp.abs(q.astype(jnp.float32) * scale - plain)
    return q, scale, jnp.stack([jnp.sum(error**2, -1), jnp.sum(plain**2, -1), jnp.max(error, -1)])


def _config(scheme: str, ignored: list[str]) -> Mapping[str, Any]:
    kind = {"num_bits": 8, "type": "int" if scheme == "int8" else "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": kind | {"strategy": "channel", "dynamic": False},
        "input_activations": kind | {"strategy": "token", "dynamic": True},
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMAT[scheme],
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ignored,
        "kv_cache_scheme": None,
    }
