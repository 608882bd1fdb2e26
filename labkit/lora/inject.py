"""Put LoRA adapters on a Tunix model with Qwix, and make sure that they are there."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal

import jax
import qwix
from flax import nnx

from labkit import compat
from labkit.errors import LabError
from labkit.lora.coverage import Coverage, row
from labkit.lora.linears import Linear, linears, missed, select

_NF4_TILE = 64  # weights that share a scale, as in QLoRA (arXiv:2305.14314)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `merge` must know of an injection; kept on the model as `model.lora_settings`."""

    rank: int
    alpha: float
    targets: str
    qlora: str | None = None

    @property
    def scale(self) -> float:
        """The factor of A B: alpha / rank."""
        return self.alpha / self.rank


def inject(
    model: nnx.Module,
    rank: int,
    alpha: float,
    targets: str = "all",
    *,
    qlora: Literal["nf4"] | None = None,
    seed: int = 0,
    strict: bool = False,
) -> tuple[nnx.Module, Coverage]:
    """A new model with LoRA adapters of `rank` on `targets`, and the table of what was adapted.

    A starts as He-uniform noise from `seed`, B as zeros, so that the outputs are unchanged. The weights are shared
    with the model given, which stays as it is. Remat is switched off while Qwix looks at the model, and on again.

    Args:
        model: a Gemma 3, Gemma 4, Qwen 3 or Llama 3 of Tunix.
        rank: inner size of the adapters.
        alpha: the product A B is scaled by alpha / rank.
        targets: roles (`"all"`, `"attention"`, `"q,kv"`, ...) or one regular expression over module paths.
        qlora: `"nf4"` stores the adapted weights in 4 bits (QLoRA), in tiles of at most 64 along the contraction.
        seed: of A.
        strict: a pattern that misses layers is an error instead of a warning.

    Raises:
        LabError: for a bad target, rank or alpha, or if a wanted linear is left without adapter.
    """
    _check(model, rank, alpha, qlora)
    known = linears(model)
    chosen = select(known, targets)
    _report_missed(missed(known, chosen), targets, strict)
    with remat_off(model):
        adapted = _apply(model, chosen, rank, alpha, qlora, seed)
    _verify(adapted, chosen, rank)
    adapted.lora_settings = Settings(rank, float(alpha), targets, qlora)
    paths = {linear.path for linear in chosen}
    rows = tuple(row(linear, rank, linear.path in paths) for linear in known)
    return adapted, Coverage(targets, rank, float(alpha), _count(model), rows, _paths(missed(known, chosen)))


def inject_abstract(
    model: nnx.Module, rank: int, alpha: float, targets: str = "all", *, qlora: Literal["nf4"] | None = None
) -> nnx.Module:
    """What `inject` makes of a model of shapes (`labkit.models.abstract`): again shapes, and nothing is allocated.

    The adapters' variables carry the mesh axes that Qwix derived from those of their weights.
    """
    adapted: nnx.Module = nnx.eval_shape(lambda given: inject(given, rank, alpha, targets, qlora=qlora)[0], model)
    return adapted


def is_injected(model: nnx.Module) -> bool:
    """Whether the model has adapters."""
    return bool(jax.tree.leaves(state(model)))


def state(model: nnx.Module) -> nnx.State:
    """The adapters alone: `layers.<i>.<module>.<weight>_lora_a` and `_lora_b`."""
    return nnx.state(model, nnx.LoRAParam)


def settings(model: nnx.Module) -> Settings:
    """Rank, alpha and targets of an injected model; a `LabError` for one without adapters."""
    found = getattr(model, "lora_settings", None)
    if found is None:
        raise LabError("This model has no LoRA adapters.", hint="Call labkit.lora.inject first.")
    return found


@contextlib.contextmanager
def remat_off(model: nnx.Module) -> Iterator[None]:
    """No rematerialisation inside the block: with it, Qwix injects nothing and says nothing, or finds no rngs."""
    holders = _remat_holders(model)
    before = [holder.remat_config for holder in holders]
    set_remat(model, None)
    try:
        yield
    finally:
        for holder, value in zip(holders, before, strict=True):
            _assign_remat(holder, value)


def set_remat(model: nnx.Module, remat: str | None) -> None:
    """Recompute nothing (None, "none"), attention and MLP ("block") or whole layers ("decoder") in the backward pass.

    Sets the model's config, which all its layers share, and Gemma 3's copy of it in each attention module.
    """
    for holder in _remat_holders(model):
        kind = type(holder.remat_config)
        choices = {name.lower(): value for name, value in getattr(kind, "__members__", {}).items()}
        if not choices:
            raise LabError("This model's remat setting is no enum of Tunix.", hint="Build it with labkit.models.load.")
        if (remat or "none") not in choices:
            raise LabError(f"Unknown remat {remat!r}.", hint=f"This model has {', '.join(choices)}.")
        _assign_remat(holder, choices[remat or "none"])


def _assign_remat(holder: Any, value: Any) -> None:
    """Change the object itself, which all layers share; Tunix's Llama 3 config is frozen and needs the way around."""
    if isinstance(holder, nnx.Module):
        holder.remat_config = value
    else:
        object.__setattr__(holder, "remat_config", value)


def _remat_holders(model: nnx.Module) -> list[Any]:
    modules = [module for _, module in nnx.iter_modules(model) if hasattr(module, "remat_config")]
    return [model.config, *modules]


def _apply(
    model: nnx.Module, chosen: tuple[Linear, ...], rank: int, alpha: float, qlora: str | None, seed: int
) -> nnx.Module:
    if qlora:
        compat.allow_quantized_einsum()
    provider = qwix.LoraProvider(_rules(chosen, rank, alpha, qlora))

    # Qwix finds the linears by running the model once. Inside jit that run is only traced.
    @nnx.jit
    def traced(model: nnx.Module) -> nnx.Module:
        return qwix.apply_lora_to_model(model, provider, **model.get_model_input(), rngs=nnx.Rngs(seed))

    adapted = traced(model)
    _shard_like_weights(adapted)
    return adapted


def _rules(chosen: tuple[Linear, ...], rank: int, alpha: float, qlora: str | None) -> list[qwix.LoraRule]:
    """One rule for each tile size, since a tile must divide the axis that it runs along."""
    groups: dict[int | None, list[str]] = defaultdict(list)
    for linear in chosen:
        groups[_tile(linear) if qlora else None].append(re.escape(linear.path))
    return [
        qwix.LoraRule(module_path="|".join(paths), rank=rank, alpha=alpha, weight_qtype=qlora, tile_size=tile)
        for tile, paths in groups.items()
    ]


def _tile(linear: Linear) -> int:
    return math.gcd(_NF4_TILE, linear.shape[linear.contracted[-1]])


def _shard_like_weights(model: nnx.Module) -> None:
    """Place the adapters by the partition that Qwix derived from their weights, where these are on a mesh."""
    placed = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(nnx.state(model))]  # a tracer has none
    meshes = [sharding.mesh for sharding in placed if isinstance(sharding, jax.sharding.NamedSharding)]
    if meshes:
        adapters = state(model)
        nnx.update(model, jax.device_put(adapters, nnx.get_named_sharding(adapters, meshes[0])))


def _verify(adapted: nnx.Module, chosen: tuple[Linear, ...], rank: int) -> None:
    found = {".".join(map(str, path)): leaf.shape for path, leaf in nnx.to_flat_state(state(adapted))}
    wanted: dict[str, tuple[int, ...]] = {}
    for linear in chosen:
        a, b = linear.adapter_shapes(rank)
        name = f"{linear.path.replace('/', '.')}.{linear.weight}_lora"
        wanted |= {f"{name}_a": a, f"{name}_b": b}
    if found != wanted:
        bare = [name for name in wanted if name not in found]
        raise LabError(
            f"Qwix adapted {len(found) // 2} of {len(chosen)} linears; first without: {bare[0] if bare else 'none'}.",
            hint="A remat or a jit inside the model hides its linears from Qwix: switch it off before injecting.",
        )


def _report_missed(left_out: tuple[Linear, ...], targets: str, strict: bool) -> None:
    if not left_out:
        return
    text = f"LoRA targets {targets!r} leave {len(left_out)} linears without adapter, though the same role has one in "
    text += f"other layers: {', '.join(_paths(left_out)[:4])}{', ...' if len(left_out) > 4 else ''}."
    if strict:
        raise LabError(text, hint="Use roles such as 'attention', which know every family's names.")
    warnings.warn(text, stacklevel=3)


def _check(model: nnx.Module, rank: int, alpha: float, qlora: str | None) -> None:
    if rank < 1 or alpha <= 0:
        raise LabError(f"LoRA rank {rank} and alpha {alpha:g} must be at least 1 and above 0.")
    if qlora not in (None, "nf4"):
        raise LabError(f"Unknown qlora type {qlora!r}.", hint="Use 'nf4' or None.")
    if is_injected(model):
        raise LabError("This model has LoRA adapters already.", hint="Merge or split it first.")


def _paths(some: tuple[Linear, ...]) -> tuple[str, ...]:
    return tuple(linear.path for linear in some)


def _count(model: nnx.Module) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
