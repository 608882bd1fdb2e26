"""Files that lie, are cut off or belong elsewhere: each is a `LabError` that names it, and nothing is left behind."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from labkit import convert
from labkit.errors import LabError
from labkit.models import headers
from tests.conversions import adapted, source

FILE = "model.safetensors"
Q, EMBED, NORM = "model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight", "model.norm.weight"


def split(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors of a safetensors file."""
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join(header: dict[str, Any] | bytes, body: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


Bytes = Callable[[bytes], bytes]


def entry(name: str, **changes: Any) -> Bytes:
    """A file whose header says something else of one tensor; a callable changes what it said."""

    def changed(raw: bytes) -> bytes:
        header, body = split(raw)
        for key, value in changes.items():
            header[name][key] = value(header[name][key]) if callable(value) else value
        return join(header, body)

    return changed


def header(change: Callable[[dict[str, Any]], Any]) -> Bytes:
    def changed(raw: bytes) -> bytes:
        found, body = split(raw)
        made = change(found)
        return join(found if made is None else made, body)

    return changed


def tensors(change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Bytes:
    """A well-made file of other tensors."""

    def changed(raw: bytes) -> bytes:
        from safetensors.numpy import load, save

        return save({name: np.ascontiguousarray(value) for name, value in change(load(raw)).items()})

    return changed


def one(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Bytes:
    return tensors(lambda found: found | {name: change(found[name])})


def nan(value: np.ndarray, bad: float = np.nan) -> np.ndarray:
    changed = value.copy()
    changed.reshape(-1)[-1] = bad
    return changed


def length(number: int) -> Bytes:
    return lambda raw: struct.pack("<Q", number) + raw[8:]


def mutations() -> Iterator[tuple[str, Bytes, str]]:
    """Name, change of the file, and what the error has to say; at least a hundred."""
    for size in (0, 1, 7, 8, 9, 20, 500):
        yield f"cut to {size} bytes", lambda raw, n=size: raw[:n], FILE
    for share in range(1, 20):
        yield f"cut to {share}/20", lambda raw, n=share: raw[: len(raw) * n // 20], FILE
    yield "one byte short", lambda raw: raw[:-1], f"{FILE} is truncated"
    yield "one byte more", lambda raw: raw + b"\0", "after its last tensor"
    yield "many bytes more", lambda raw: raw + bytes(5000), "after its last tensor"
    for number in (0, 1, 2**20, 10**8 + 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1):
        yield f"header of {number} bytes", length(number), FILE
    for number in (2, 3, 100):
        yield f"header of {number} bytes only", length(number), FILE
    for text in (b"[]", b"{}", b"null", b"12", b'"x"', b"{", b"\xff\xfe{}", b"{'a': 1}", b"[" * 50_000, b"NaN"):
        yield f"header {text[:8]!r}", lambda raw, text=text: join(text, split(raw)[1]), FILE
    yield "header twice", lambda raw: raw[: 8 + struct.unpack("<Q", raw[:8])[0]] * 2, FILE
    yield from entries()
    yield from whole_tensors()


def entries() -> Iterator[tuple[str, Bytes, str]]:
    """Entries of the header that lie."""
    huge = 2**62
    offsets = {
        "beyond the file": lambda o: [o[0] + 10**9, o[1] + 10**9],
        "far beyond": lambda o: [huge, huge + o[1] - o[0]],
        "over the one before": lambda o: [o[0] - 4, o[1] - 4],
        "a hole before": lambda o: [o[0] + 4, o[1] + 4],
        "at the start": lambda o: [0, o[1] - o[0]],
        "negative": lambda o: [-4, o[1]],
        "reversed": lambda o: [o[1], o[0]],
        "empty": lambda o: [o[0], o[0]],
        "of one byte": lambda o: [o[0], o[0] + 1],
        "floats": lambda o: [float(x) for x in o],
        "text": lambda o: [str(x) for x in o],
        "true": lambda o: [True, o[1]],
        "one number": lambda o: o[:1],
        "three numbers": lambda o: [*o, 0],
        "none": None,
        "beyond 64 bits": lambda o: [2**64, 2**65],
    }
    for name, change in offsets.items():
        yield f"offsets {name}", entry(Q, data_offsets=change), Q
    for dtype in ("f32", "F33", "", "FLOAT", None, 32, ["F32"], "I32 ", "F64", "BF16", "I8"):
        yield f"dtype {dtype!r}", entry(Q, dtype=dtype), Q
    shapes = ([], [1], [32, 33], [-32, -32], [32.0, 32], ["32", 32], None, "32", [2**40, 2**40], [True, 1024], [[32]])
    for shape in shapes:
        yield f"shape {shape!r}"[:40], entry(Q, shape=shape), Q
    for key in ("dtype", "shape", "data_offsets"):
        yield f"no {key}", header(lambda h, key=key: h[Q].pop(key) and None), Q
    for value in (None, 1, [], "x", {}):
        yield f"entry {value!r}", header(lambda h, value=value: h.update({Q: value})), Q
    yield "one key more", entry(Q, extra=1), Q
    yield "metadata a list", header(lambda h: h.update({"__metadata__": []})), "__metadata__"
    yield "metadata of numbers", header(lambda h: h.update({"__metadata__": {"a": 1}})), "__metadata__"
    double = json.dumps(NORM)
    yield (
        "one name twice",
        lambda raw: join(json.dumps(split(raw)[0])[:-1].encode() + f", {double}: {{}}}}".encode(), split(raw)[1]),
        f"{NORM} twice",
    )
    yield "two tensors in one place", header(lambda h: h.update({"b": dict(h[Q])})), FILE


def whole_tensors() -> Iterator[tuple[str, Bytes, str]]:
    """Files that are whole, but not of this model."""
    for name in (Q, EMBED, NORM, "model.layers.2.self_attn.k_proj.weight", "model.layers.1.layer_scalar"):
        yield f"without {name}", tensors(lambda f, n=name: {k: v for k, v in f.items() if k != n}), f"{name}.* missing"
        yield f"{name} of NaN", one(name, nan), f"{name} has 1 of"
        yield f"{name} of infinity", one(name, lambda v: nan(v, -np.inf)), f"{name} has 1 of"
        yield f"{name} of integers", one(name, lambda v: v.astype(np.int32)), f"{name}.* dtype I32"
        yield f"{name} in float64", one(name, lambda v: v.astype(np.float64)), f"{name}.* dtype F64"
        yield f"{name} too large", one(name, lambda v: np.concatenate([v, v])), f"{name}.* shape"
        yield f"{name} flat", one(name, lambda v: v.reshape(1, -1)), f"{name}.* shape"
    wide = "model.layers.0.mlp.up_proj.weight"
    yield "transposed", one(wide, lambda v: v.T), f"{wide}.* shape"
    yield "a tensor more", tensors(lambda f: f | {"model.layers.0.x": f[NORM]}), r"model\.layers\.0\.x"
    yield "a layer more", tensors(lambda f: f | {"model.layers.7.layer_scalar": f[NORM][:1]}), r"layers\.7"
    yield "one tensor by two names", tensors(lambda f: f | {"language_model." + NORM: f[NORM]}), "are one tensor"
    yield "no tensor at all", tensors(lambda f: {}), "missing"


MUTATIONS = list(mutations())


def test_there_are_a_hundred_of_them():
    assert len({name for name, _, _ in MUTATIONS}) == len(MUTATIONS) >= 100


def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(source("gemma4"), tmp_path / "given"))


def refused(call: Callable[[], Any], tmp_path: Path, message: str, keep: tuple[str, ...] = ("given",)) -> LabError:
    with pytest.raises(LabError, match=f"(?s){message}") as caught:
        call()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(keep)
    return caught.value


@pytest.mark.parametrize(("change", "message"), [m[1:] for m in MUTATIONS], ids=[m[0] for m in MUTATIONS])
def test_a_file_that_is_wrong_is_refused_and_nothing_is_left(tmp_path, change, message):
    given = copy(tmp_path)
    (given / FILE).write_bytes(change((given / FILE).read_bytes()))
    refused(lambda: convert.to_hf(given, tmp_path / "out"), tmp_path, message)


def test_the_file_itself_is_taken(tmp_path):
    """The control of all of the above."""
    assert convert.to_hf(copy(tmp_path), tmp_path / "out").verified


@pytest.mark.parametrize("share", range(0, 100, 9))
def test_random_bytes_in_the_header_never_do_harm(tmp_path, share):
    """A changed byte is either refused or of no effect on what is read."""
    raw = bytearray((source("gemma4") / FILE).read_bytes())
    rng = np.random.default_rng(share)
    size = 8 + struct.unpack("<Q", raw[:8])[0]
    for at in rng.integers(0, size, 1 + share // 10):
        raw[at] = rng.integers(256)
    (tmp_path / FILE).write_bytes(raw)
    try:
        found = headers.read(tmp_path / FILE)
    except LabError as error:
        assert FILE in error.what
    else:
        assert sum(info.end - info.start for info in found) == len(raw) - size


# Shards


def sharded(tmp_path: Path) -> Path:
    convert.to_hf(source("gemma4"), tmp_path / "given", max_shard="60KB")
    return tmp_path / "given"


def index_of(given: Path) -> Path:
    return given / "model.safetensors.index.json"


def reindex(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def changed(given: Path) -> None:
        found = json.loads(index_of(given).read_text())
        made = change(found)
        index_of(given).write_text(json.dumps(found if made is None else made))

    return changed


def second(given: Path) -> Path:
    return sorted(given.glob("*.safetensors"))[1]


SHARDS = {
    "a shard missing": (lambda g: second(g).unlink(), "shard .*-00002-of-.* is missing, which .* says has model"),
    "a shard missing, no index": (lambda g: (second(g).unlink(), index_of(g).unlink()), "00002-of-.* is missing"),
    "a shard cut off": (lambda g: second(g).write_bytes(second(g).read_bytes()[:-9]), "00002-of-.* is truncated"),
    "a shard of nothing": (lambda g: second(g).write_bytes(b""), "00002-of-"),
    "two shards swapped": (
        lambda g: (
            [a.rename(g / "x"), b.rename(a), (g / "x").rename(b)]
            if (a := sorted(g.glob("*.safetensors"))[0]) and (b := second(g))
            else None
        ),
        "says that .* is in .*, but it is not",
    ),
    "one shard twice": (
        lambda g: (shutil.copy(second(g), g / "again.safetensors"), index_of(g).unlink()),
        "is in both",
    ),
    "no weight_map": (reindex(lambda i: i.pop("weight_map") and None), "no weight_map"),
    "an empty weight_map": (reindex(lambda i: i.update(weight_map={})), "no weight_map"),
    "a list": (reindex(lambda i: []), "no JSON object"),
    "not JSON": (lambda g: index_of(g).write_text("{"), "index.json"),
    "a tensor left out": (reindex(lambda i: i["weight_map"].pop(Q) and None), f"{Q}, of which .* says nothing"),
    "a tensor more": (reindex(lambda i: i["weight_map"].update(x=second(Path()).name)), "x"),
    "another folder": (reindex(lambda i: i["weight_map"].update({Q: "../model.safetensors"})), "no safetensors file"),
    "a number": (reindex(lambda i: i["weight_map"].update({Q: 3})), "no safetensors file"),
    "a pickle": (reindex(lambda i: i["weight_map"].update({Q: "pytorch_model.bin"})), "no safetensors file"),
    "two indices": (lambda g: shutil.copy(index_of(g), g / "b.safetensors.index.json"), "2 indices"),
}


@pytest.mark.parametrize(("spoil", "message"), SHARDS.values(), ids=list(SHARDS))
def test_shards_that_do_not_fit_together_are_refused(tmp_path, spoil, message):
    given = sharded(tmp_path)
    if spoil is SHARDS["a tensor more"][0]:
        reindex(lambda i: i["weight_map"].update(x=second(given).name))(given)
    else:
        spoil(given)
    refused(lambda: convert.to_hf(given, tmp_path / "out"), tmp_path, message)
    with pytest.raises(LabError, match=message):
        convert.inspect(given)


def test_pickles_are_never_read(tmp_path):
    given = copy(tmp_path)
    (given / FILE).unlink()
    (given / "pytorch_model.bin").write_bytes(b"\x80\x04cposix\nsystem\n")
    refused(lambda: convert.to_hf(given, tmp_path / "out"), tmp_path, r"pytorch_model\.bin is pickled")
    with pytest.raises(LabError, match="pickled"):
        convert.inspect(given / "pytorch_model.bin")
    with pytest.raises(LabError, match="pickled"):
        convert.load(given)


# Adapters


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    out = tmp_path_factory.mktemp("adapter") / "adapter"
    convert.to_peft(adapted("gemma4"), out, base=str(source("gemma4")))
    return out


ADAPTER = "adapter_model.safetensors"
LORA_A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw[:-3], "truncated"),
        (lambda raw: raw[:40], ADAPTER),
        (lambda raw: b"", ADAPTER),
        (length(2**40), ADAPTER),
        (entry(LORA_A, data_offsets=lambda o: [o[0] + 8, o[1] + 8]), "lora_A"),
        (entry(LORA_A, dtype="F33"), "lora_A"),
        (one(LORA_A, nan), f"{LORA_A} has 1 of"),
        (one(LORA_A, lambda v: v.T), "rank 3"),
        (one(LORA_A, lambda v: v.astype(np.int8)), "dtype I8"),
        (one(LORA_A, lambda v: v[:, :8]), "is for"),
        (tensors(lambda f: {k: v for k, v in f.items() if k != LORA_A}), "has only lora_B"),
        (tensors(lambda f: f | {"surprise": np.zeros(3, np.float32)}), "surprise"),
    ],
)
def test_an_adapter_that_is_wrong_is_refused(tmp_path, adapter, change, message):
    given = Path(shutil.copytree(adapter, tmp_path / "given"))
    (given / ADAPTER).write_bytes(change((given / ADAPTER).read_bytes()))
    refused(lambda: convert.to_hf(given, tmp_path / "out"), tmp_path, message)


def test_an_adapter_of_another_base_is_refused_unless_told(tmp_path, adapter):
    other = copy(tmp_path)
    found = load_file(other / FILE)
    save_file(found | {EMBED: found[EMBED] + 0.01}, other / FILE, metadata={"format": "pt"})
    message = "trained on other weights"
    refused(lambda: convert.to_hf(adapter, tmp_path / "out", base=other), tmp_path, message)
    loaded = convert.from_hf(other)
    with pytest.raises(LabError, match=message):
        convert.from_peft(adapter, loaded.model, loaded.spec)
    assert convert.to_hf(adapter, tmp_path / "out", base=other, allow_other_base=True).verified


def test_a_pickled_adapter_is_refused(tmp_path, adapter):
    given = Path(shutil.copytree(adapter, tmp_path / "given"))
    (given / ADAPTER).rename(given / "adapter_model.bin")
    refused(lambda: convert.to_hf(given, tmp_path / "out"), tmp_path, "pickled")
    with pytest.raises(LabError, match="pickled"):
        convert.inspect(given)


# Orbax


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    out = tmp_path_factory.mktemp("orbax") / "checkpoint"
    convert.to_orbax(adapted("gemma4"), out)
    return out


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def largest(folder: Path) -> Path:
    return max((p for p in folder.rglob("d/*") if p.is_file()), key=lambda p: p.stat().st_size)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    for at in range(len(raw) // 4, len(raw), len(raw) // 4):
        raw[at] ^= 0xFF
    path.write_bytes(raw)


ORBAX = {
    "data cut off": lambda g: shorten(largest(g / "state" / "params")),
    "data missing": lambda g: largest(g / "state" / "params").unlink(),
    "data empty": lambda g: largest(g / "state" / "params").write_bytes(b""),
    "data changed": lambda g: flip(largest(g / "state" / "params")),
    "manifest cut off": lambda g: shorten(g / "state" / "params" / "manifest.ocdbt"),
    "manifest missing": lambda g: (g / "state" / "params" / "manifest.ocdbt").unlink(),
    "tree missing": lambda g: (g / "state" / "params" / "_METADATA").unlink(),
    "tree cut off": lambda g: shorten(g / "state" / "params" / "_METADATA"),
    "tree empty": lambda g: (g / "state" / "params" / "_METADATA").write_text("{}"),
    "params missing": lambda g: shutil.rmtree(g / "state" / "params"),
    "adapters cut off": lambda g: shorten(largest(g / "state" / "adapters")),
    "provenance missing": lambda g: (g / "provenance.json").unlink(),
    "provenance cut off": lambda g: shorten(g / "provenance.json"),
    "config missing": lambda g: (g / "config.json").unlink(),
    "config cut off": lambda g: shorten(g / "config.json"),
    "all missing": lambda g: shutil.rmtree(g / "state"),
}


@pytest.mark.parametrize("spoil", ORBAX.values(), ids=list(ORBAX))
def test_an_orbax_checkpoint_that_is_damaged_is_refused(tmp_path, checkpoint, spoil):
    given = Path(shutil.copytree(checkpoint, tmp_path / "given"))
    spoil(given)
    refused(lambda: convert.to_hf(given, tmp_path / "out"), tmp_path, "given|embedder")


# GGUF headers

_U32, _U64, _STRING = 4, 10, 8


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(
    version: int = 3, tensors: int = 2, pairs: int = 2, kind: int = 0, offset: int = 4096, rest: int = 8192
) -> bytes:
    """A small GGUF file by hand: two float32 tensors of 32 x 32."""
    raw = b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)
    raw += text("general.architecture") + struct.pack("<I", _STRING) + text("gemma4")
    raw += text("general.alignment") + struct.pack("<II", _U32, 64)
    for name, (number, at) in {"a": (0, 0), "b": (kind, offset)}.items():
        raw += text(name) + struct.pack("<IQQIQ", 2, 32, 32, number, at)
    return raw + b"\0" * (-len(raw) % 64) + bytes(rest)


def test_a_gguf_header_is_read(tmp_path):
    (tmp_path / "m.gguf").write_bytes(gguf(kind=8))
    found = convert.inspect(tmp_path / "m.gguf")
    assert [(row.name, row.dtype, row.shape, row.bytes) for row in found.tensors] == [
        ("a", "F32", (32, 32), 4096),
        ("b", "Q8_0", (32, 32), 32 * 34),
    ]
    assert found.about["general.architecture"] == "gemma4" and found.bytes == 4096 + 32 * 34


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "truncated"),
        (b"GGUX" + gguf()[4:], "does not begin"),
        (gguf(version=1), "version 1"),
        (gguf(version=2**31), "version"),
        (gguf(tensors=2**60), "too short"),
        (gguf(pairs=2**60), "too short"),
        (gguf(kind=4), "unknown type 4"),
        (gguf(kind=2**31), "unknown type"),
        (gguf(offset=64), "b .*overlaps a"),
        (gguf(offset=4100), "b "),
        (gguf(offset=2**60), "b ends at byte"),
        (gguf(rest=100), "truncated"),
        (gguf().replace(b"b\x02", b"b\xff"), "b 255 dimensions"),
        (gguf().replace(b"\x01\0\0\0\0\0\0\0b", b"\x01\0\0\0\0\0\0\0a"), "a twice"),
        (gguf().replace(struct.pack("<II", _U32, 64), struct.pack("<II", _U32, 7)), "alignment"),
        (gguf().replace(struct.pack("<Q", 20) + b"general", struct.pack("<Q", 2**50) + b"general"), "truncated"),
        (gguf(kind=12), "blocks of 256"),
        *((gguf()[:size], "truncated|too short") for size in range(5, 150, 12)),
    ],
)
def test_a_gguf_header_that_lies_is_refused(tmp_path, raw, message):
    (tmp_path / "m.gguf").write_bytes(raw)
    with pytest.raises(LabError, match=message) as caught:
        convert.inspect(tmp_path / "m.gguf")
    assert "m.gguf" in caught.value.what
