"""The linears of a model as data: what each is for, which a target means, the shapes of their adapters.

Standard library only. `labkit.lora` finds the same on a live model.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Sequence

from labkit.errors import LabError, nearest
from labkit.models import registry
from labkit.models.states import Param, abstract_state

# Tunix's module names. Gemma fuses K and V into kv_einsum (Gemma 3 with as many KV heads as heads: Q too, into
# qkv_einsum); Gemma 4's global layers have one k_einsum for both.
ROLE_OF = {
    "q_einsum": "q",
    "q_proj": "q",
    "qkv_einsum": "kv",
    "kv_einsum": "kv",
    "k_einsum": "kv",
    "k_proj": "kv",
    "v_proj": "kv",
    "attn_vec_einsum": "o",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "per_layer_input_gate": "per_layer",
    "per_layer_projection": "per_layer",
}
# The axes of the weight that its input is summed over, where these are not the first alone.
_CONTRACTED = {
    "q_einsum": (1,),
    "k_einsum": (1,),
    "kv_einsum": (2,),
    "qkv_einsum": (2,),
    "attn_vec_einsum": (0, 1),
    "o_proj": (0, 1),
}
GROUPS = {
    "all": ("q", "kv", "o", "gate", "up", "down"),
    "attention": ("q", "kv", "o"),
    "mlp": ("gate", "up", "down"),
}
ROLES = ("q", "kv", "o", "gate", "up", "down", "per_layer")
_WORDS = (*GROUPS, *ROLES)


@dataclasses.dataclass(frozen=True)
class Linear:
    """One linear of a layer: `path` as Qwix names it, `weight` its parameter's name.

    `contracted` and `remaining` are the axes of `shape` that the input is summed over and the others. `used` is False
    for K and V projections of layers that read another layer's cache: Tunix builds them and never calls them.
    """

    path: str
    role: str
    weight: str
    shape: tuple[int, ...]
    contracted: tuple[int, ...]
    remaining: tuple[int, ...]
    einsum: bool
    used: bool = True

    @property
    def layer(self) -> int:
        """Index of the layer."""
        return int(self.path.split("/")[1])

    @property
    def parameter(self) -> str:
        """Path of the weight in the model's state, joined with dots."""
        return f"{self.path.replace('/', '.')}.{self.weight}"

    def adapter_shapes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of A and B in Qwix: an einsum keeps its axes apart, `nnx.Linear` is a plain matrix."""
        a = tuple(self.shape[i] for i in self.contracted)
        b = tuple(self.shape[i] for i in self.remaining)
        if self.einsum:
            return (*a, rank), (rank, *b)
        return (math.prod(a), rank), (rank, math.prod(b))

    def adapter_parameters(self, rank: int) -> int:
        """Number of adapter parameters at this rank."""
        return sum(math.prod(shape) for shape in self.adapter_shapes(rank))

    def adapters(self, rank: int, axes: Sequence[str | None], dtype: str) -> tuple[Param, Param]:
        """A and B as parameters; their mesh axes are those of the weight (`axes`), as Qwix derives them."""
        shapes = self.adapter_shapes(rank)
        over = (*(axes[i] for i in self.contracted), None), (None, *(axes[i] for i in self.remaining))
        a, b = (
            Param(f"{self.parameter}_lora_{letter}", shape, dtype, spec)
            for letter, shape, spec in zip("ab", shapes, over, strict=True)
        )
        return a, b


@functools.cache
def linears_of(name: str) -> tuple[Linear, ...]:
    """Every linear of the layers of a registry model, from its stored shapes, in order of layer and name."""
    spec = registry.get(name)
    found = []
    for param in abstract_state(name):
        *path, weight = param.path.split(".")
        if path[0] == "layers" and path[-1] in ROLE_OF:
            found.append(_linear(path, weight, param.shape, spec.layer_shares_kv(int(path[1]))))
    return tuple(sorted(found, key=lambda linear: (linear.layer, linear.path)))


def select(known: tuple[Linear, ...], targets: str) -> tuple[Linear, ...]:
    """The linears that `targets` means: roles and groups in a comma list, or one regular expression over whole paths.

    Raises:
        LabError: for an unknown word, a pattern that is not one, or a target that matches nothing.
    """
    words = [word.strip() for word in targets.split(",")]
    if all(word in _WORDS for word in words):
        roles = {role for word in words for role in GROUPS.get(word, (word,))}
        chosen = [linear for linear in known if linear.used and _roles(linear) & roles]
        _refuse_empty_roles(known, words)
    else:
        pattern = _pattern(targets, words)
        chosen = [linear for linear in known if linear.used and pattern.fullmatch(linear.path)]
    if not chosen:
        raise LabError(
            f"LoRA targets {targets!r} match none of the {len(known)} linears.",
            hint=f"Use roles ({', '.join(_WORDS)}) or a pattern over paths such as {known[0].path!r}.",
        )
    return tuple(chosen)


def missed(known: tuple[Linear, ...], chosen: tuple[Linear, ...]) -> tuple[Linear, ...]:
    """Linears left out though their role has an adapter in another layer: K and V of the paper's ten global layers."""
    roles = {role for linear in chosen for role in _roles(linear)}
    adapted = {linear.path for linear in chosen}
    return tuple(x for x in known if x.used and x.path not in adapted and _roles(x) & roles)


def _linear(path: list[str], weight: str, shape: tuple[int, ...], borrowed: bool) -> Linear:
    role = ROLE_OF[path[-1]]
    contracted = _CONTRACTED.get(path[-1], (0,))
    remaining = tuple(i for i in range(len(shape)) if i not in contracted)
    used = not (borrowed and role == "kv")
    return Linear("/".join(path), role, weight, shape, contracted, remaining, weight == "w", used)


def _roles(linear: Linear) -> set[str]:
    return {"q", "kv"} if linear.path.endswith("qkv_einsum") else {linear.role}


def _refuse_empty_roles(known: tuple[Linear, ...], words: list[str]) -> None:
    for word in words:
        if not any(_roles(linear) & set(GROUPS.get(word, (word,))) for linear in known):
            raise LabError(f"LoRA target {word!r} matches no linear of this model.", hint="Leave it out.")


def _pattern(targets: str, words: list[str]) -> re.Pattern[str]:
    if not re.search(r"[.*+?|\\()\[\]^$/]", targets):
        unknown = next(word for word in words if word not in _WORDS)
        raise LabError(f"Unknown LoRA target {unknown!r}.", hint=f"Nearest: {nearest(unknown, _WORDS)}.")
    try:
        return re.compile(targets)
    except re.error as error:
        raise LabError(f"LoRA targets {targets!r} are no regular expression: {error}.") from error
