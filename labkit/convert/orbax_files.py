"""What is in an Orbax checkpoint, and single arrays of it, by Orbax's own reader. Local folders and `gs://` alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import xxhash
from etils import epath

from labkit.convert.shards import as_bytes
from labkit.errors import LabError

_GROUP = 2**26  # bytes of small arrays that are read in one call, since each call costs milliseconds
_TREE = "_METADATA"  # the file that says what an item of arrays holds
_DOWN = ("state", "train", "checkpoints")  # folders of labkit's own between what a user names and the checkpoint


@dataclass(frozen=True)
class Leaf:
    """One array: its keys in the tree, shape and dtype."""

    keys: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def name(self) -> str:
        """Its path joined with dots, without the key that NNX puts around each value."""
        return ".".join(self.keys[:-1] if self.keys[-1:] == ("value",) else self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def items(path: str | epath.Path) -> dict[str, epath.Path]:
    """The items of arrays of a checkpoint, by name; of a folder of steps those of the last complete one.

    Raises:
        LabError: no Orbax checkpoint is there, or none that is complete.
    """
    folder = epath.Path(path)
    for _ in range(len(_DOWN) + 1):
        if (folder / _TREE).exists():
            return {"": folder}
        found = {child.name: child for child in folder.iterdir() if (child / _TREE).exists()} if _is_dir(folder) else {}
        if found:
            _refuse_incomplete(folder)
            return found
        below = [folder / name for name in _DOWN if _is_dir(folder / name)]
        folder = below[0] if below else _last_step(folder)
    raise _no_checkpoint(path)


def _is_dir(path: epath.Path) -> bool:
    return path.exists() and path.is_dir()


def _last_step(folder: epath.Path) -> epath.Path:
    steps = sorted((int(p.name), p) for p in folder.iterdir() if p.name.isdigit()) if _is_dir(folder) else []
    complete = [path for _, path in steps if ocp.utils.is_checkpoint_finalized(path)]
    if not complete:
        raise _no_checkpoint(folder)
    return complete[-1]


def _refuse_incomplete(folder: epath.Path) -> None:
    if not ocp.utils.is_checkpoint_finalized(folder):
        raise LabError(f"{folder} is a checkpoint that was never finished.", hint="Use an earlier step.")


def _no_checkpoint(path: Any) -> LabError:
    return LabError(f"{path} holds no complete Orbax checkpoint.", hint="Give a step's folder, or the folder of steps.")


def leaves(item: epath.Path) -> dict[str, Leaf]:
    """The arrays of an item, by name, without reading them."""
    try:
        tree = ocp.PyTreeCheckpointer().metadata(item).item_metadata.tree
    except (ValueError, KeyError, OSError, AttributeError, TypeError) as error:
        raise LabError(f"{item} is no Orbax item: {_first_line(error)}.", hint="Copy it again.") from error
    found = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: hasattr(x, "dtype"))[0]
    flat = [Leaf(tuple(map(_key, path)), tuple(x.shape), np.dtype(x.dtype)) for path, x in found if hasattr(x, "shape")]
    return {leaf.name: leaf for leaf in flat}


def _key(entry: Any) -> str:
    return str(getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", entry))))


class Reader:
    """Arrays of one item, read when they are asked for and let go when the next are.

    Arrays are read in `order`, small ones several at a time. Memory holds one array, or a group of small ones. Where
    `digests` has one for an array, the array has to have it.
    """

    def __init__(
        self,
        item: epath.Path,
        order: Sequence[str],
        *,
        digests: Mapping[str, str] | None = None,
        places: Mapping[str, jax.sharding.Sharding] | None = None,
    ) -> None:
        self.item = item
        self._digests = digests or {}
        self._places = places or {}
        self._one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        self._leaves = leaves(item)
        self._groups = {name: group for group in self._grouped(order) for name in group}
        self._held: dict[str, jax.Array] = {}

    def __call__(self, name: str) -> jax.Array:
        """The array of a name, on one device or where `places` says."""
        if name not in self._held:
            self._held.clear()
            self._held.update(self.read(self._groups[name]))
        return self._held[name]

    def read(self, names: Iterable[str]) -> dict[str, jax.Array]:
        """Several arrays in one call; a `LabError` for one that is not what it was when it was written."""
        wanted = [self._leaves[name] for name in names]
        shapes = tree(
            wanted,
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._places.get(leaf.name, self._one)),
        )
        found = restore(self.item, shapes)
        values = {leaf.name: at(found, leaf.keys) for leaf in wanted}
        for name, value in values.items():
            if name in self._digests and digest(value) != self._digests[name]:
                raise LabError(f"{name} of {self.item} has changed since it was written.", hint="Use another copy.")
        return values

    def _grouped(self, order: Sequence[str]) -> Iterable[list[str]]:
        group: list[str] = []
        size = 0
        for name in order:
            if group and size + self._leaves[name].nbytes > _GROUP:
                yield group
                group, size = [], 0
            group.append(name)
            size += self._leaves[name].nbytes
        if group:
            yield group


def digest(value: jax.Array) -> str:
    """XXH3 (128 bits) of an array's bytes."""
    return xxhash.xxh3_128(as_bytes(np.asarray(value))).hexdigest()


def restore(item: epath.Path, wanted: Any) -> Any:
    """The arrays of a tree of shapes with shardings, without others of the item; a `LabError` if one cannot be read."""
    args = jax.tree.map(
        lambda x: ocp.ArrayRestoreArgs(sharding=x.sharding, dtype=x.dtype, global_shape=x.shape), wanted
    )
    try:
        return ocp.PyTreeCheckpointer().restore(
            item, args=ocp.args.PyTreeRestore(item=wanted, restore_args=args, partial_restore=True)
        )
    except Exception as error:  # Orbax wraps TensorStore's errors, which say what is wrong, in a bare Exception
        why = _first_line(error.__cause__ or error)
        raise LabError(f"{item} cannot be read: {why}.", hint="It is damaged, or of another model.") from error


def tree(wanted: Iterable[Leaf], make: Callable[[Leaf], Any]) -> dict[str, Any]:
    """Nested dictionaries with `make(leaf)` at the keys of each leaf."""
    found: dict[str, Any] = {}
    for leaf in wanted:
        node = found
        for key in leaf.keys[:-1]:
            node = node.setdefault(key, {})
        node[leaf.keys[-1]] = make(leaf)
    return found


def at(found: Any, keys: Iterable[str]) -> Any:
    """What is at the keys of a leaf."""
    for key in keys:
        found = found[key]
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
