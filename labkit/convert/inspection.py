"""What is in a checkpoint, of any kind, without loading it: only headers and metadata are read."""

from __future__ import annotations

import html
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from labkit.convert import formats, gguf
from labkit.errors import LabError
from labkit.models import checkpoints, headers
from labkit.records import Record

_LISTED = 12  # tensors in the one-page text


@dataclass(frozen=True)
class TensorRow(Record):
    """One array of a checkpoint: its own name for the dtype, `bytes` in memory, and the file or item that has it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    file: str

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)} {self.bytes:,} bytes in {self.file}"


@dataclass(frozen=True)
class Branch(Record):
    """The arrays under one prefix of names: how many, and their bytes."""

    prefix: str
    tensors: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.prefix or 'everything'}: {self.tensors} tensors, {self.bytes:,} bytes"


@dataclass(frozen=True)
class Inspection(Record):
    """What a checkpoint holds. `format` is "hf", "safetensors", "peft", "orbax" or "gguf"; `about` its own words."""

    path: str
    format: str
    bytes: int
    tensors: tuple[TensorRow, ...]
    about: dict[str, str]

    @property
    def dtypes(self) -> dict[str, int]:
        """Bytes of each dtype."""
        found: dict[str, int] = defaultdict(int)
        for row in self.tensors:
            found[row.dtype] += row.bytes
        return dict(found)

    def branches(self, under: str = "") -> tuple[Branch, ...]:
        """The next parts of names below a prefix ("" is the top), in the checkpoint's order."""
        start = f"{under}." if under else ""
        found: dict[str, list[int]] = defaultdict(list)
        for row in self.tensors:
            if row.name.startswith(start):
                found[start + row.name[len(start) :].partition(".")[0]].append(row.bytes)
            elif row.name == under:
                found[under].append(row.bytes)
        return tuple(Branch(prefix, len(sizes), sum(sizes)) for prefix, sizes in found.items())

    def branch(self, prefix: str) -> Branch:
        """All arrays below a prefix; "" is everything."""
        sizes = [row.bytes for row in self.tensors if not prefix or f"{row.name}.".startswith(f"{prefix}.")]
        return Branch(prefix, len(sizes), sum(sizes))

    def forks(self) -> tuple[Branch, ...]:
        """Every prefix below which names part, the outer ones first."""
        found: list[Branch] = []
        below = list(self.branches())
        while below:
            branch = below.pop(0)
            deeper = [part for part in self.branches(branch.prefix) if part.prefix != branch.prefix]
            found += [branch] if deeper else []
            below += deeper
        return tuple(found)

    def at(self, prefix: str) -> tuple[TensorRow, ...]:
        """The arrays one step below a prefix."""
        names = {branch.prefix for branch in self.branches(prefix)}
        return tuple(row for row in self.tensors if row.name in names)

    def __str__(self) -> str:
        files = len({row.file for row in self.tensors})
        sizes = ", ".join(f"{dtype} {size / 2**20:,.1f} MiB" for dtype, size in self.dtypes.items())
        head = f"{self.path}: {self.format}, {len(self.tensors)} tensors in {files} file{'s' * (files != 1)} ({sizes})"
        more = len(self.tensors) - _LISTED
        rows = [f"  {row.name}  {row.dtype}{list(row.shape)}" for row in self.tensors[:_LISTED]]
        return "\n".join([head, *rows, *([f"  and {more} more"] if more > 0 else [])])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(row.name)}</td><td>{list(row.shape)}</td><td>{row.dtype}"
            f"</td><td>{row.bytes:,}</td></tr>"
            for row in self.tensors
        )
        caption = html.escape(str(self).partition("\n")[0])
        return f"<table><caption style='text-align:left'>{caption}</caption>{rows}</table>"


def inspect(path: str | Path) -> Inspection:
    """Names, shapes, dtypes and bytes of everything in a checkpoint, from its headers.

    Args:
        path: a safetensors file, a Hugging Face directory (one file, or shards with an index), a PEFT directory, an
            Orbax checkpoint or folder of steps (`gs://` too), a GGUF file.

    Raises:
        LabError: naming file and tensor: nothing that is known, a header that cannot be believed, a missing shard, or
            a pickled file, which is never read.
    """
    if not str(path).startswith(formats.REMOTE) and not Path(path).exists():
        raise LabError(f"There is no {path}.", hint="Give a file or a folder.")
    kind = formats.kind_of(path)
    read = {"hf": _directory, "safetensors": _file, "peft": _peft, "orbax": _orbax, "gguf": _gguf}[kind]
    rows, about = read(path)
    return Inspection(str(path), kind, sum(row.bytes for row in rows), tuple(rows), about)


def _directory(path: str | Path) -> tuple[list[TensorRow], dict[str, str]]:
    found = checkpoints.read_headers(Path(path)).values()
    config = Path(path) / "config.json"
    known = headers.read_json(config) if config.is_file() else {}
    keys: tuple[str, ...] = ("model_type", "dtype", "torch_dtype")
    return [_row(info) for info in found], {key: str(known[key]) for key in keys if key in known}


def _file(path: str | Path) -> tuple[list[TensorRow], dict[str, str]]:
    return [_row(info) for info in headers.read(Path(path))], headers.metadata(Path(path))


def _peft(path: str | Path) -> tuple[list[TensorRow], dict[str, str]]:
    folder = Path(path)
    config = headers.read_json(folder / "adapter_config.json")
    if not (folder / "adapter_model.safetensors").is_file():
        checkpoints.weight_files(folder)  # says what is there instead
    keys = ("peft_type", "base_model_name_or_path", "r", "lora_alpha", "use_rslora", "target_modules")
    rows, _ = _file(folder / "adapter_model.safetensors")
    return rows, {key: str(config[key]) for key in keys if key in config}


def _row(info: headers.TensorInfo) -> TensorRow:
    return TensorRow(info.name, info.shape, info.dtype, info.end - info.start, info.file.name)


def _gguf(path: str | Path) -> tuple[list[TensorRow], dict[str, str]]:
    place = Path(path)
    files = [place] if place.is_file() else sorted(place.glob("*.gguf"))
    rows: list[TensorRow] = []
    about: dict[str, str] = {}
    for file in files:
        entries, said = gguf.read(file)
        rows += [TensorRow(x.name, x.shape, x.dtype, x.nbytes, file.name) for x in entries]
        about |= said
    return rows, about


def _orbax(path: str | Path) -> tuple[list[TensorRow], dict[str, str]]:
    from labkit.convert import orbax_files  # brings JAX

    items = orbax_files.items(str(path))
    rows = [
        TensorRow(leaf.name, leaf.shape, str(leaf.dtype), leaf.nbytes, name or item.name)
        for name, item in items.items()
        for leaf in orbax_files.leaves(item).values()
    ]
    return rows, {"items": ", ".join(sorted(items)), "folder": str(next(iter(items.values())).parent)}
