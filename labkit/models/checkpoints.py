"""What a Hugging Face checkpoint of a spec must hold, and whether a directory holds it. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import struct
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.models.spec import ModelSpec

# Gemma4ForCausalLM saves "model.", multimodal checkpoints nest the text model in one of the other two.
PREFIXES = ("model.language_model.", "language_model.model.", "model.")

# Tensors beside the text model: vision and audio towers, and a tied head or rope buffer that is saved although it
# can be computed.
_BESIDE = re.compile(
    r"^(model\.)?(vision_tower|vision_model|audio_tower|multi_modal_projector|embed_vision|embed_audio|vision_embedder)\."
    r"|rotary_emb\."
)
_LOADABLE_DTYPES = {"BF16": 2, "F16": 2, "F32": 4}


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """Where one tensor of a safetensors file is: `start` and `end` are byte offsets in `file`."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name (with the prefix "model.") and shape of each tensor of the text model, as Transformers saves them.

    Layers that share keys and values have `k_proj`, `v_proj` and `k_norm` too: published checkpoints do, and Tunix's
    model has the parameters although it never uses them.
    """
    width = spec.embed_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, width)}
    if spec.per_layer_input_dim:
        packed = spec.num_layers * spec.per_layer_input_dim
        shapes["model.embed_tokens_per_layer.weight"] = (spec.vocab_size, packed)
        shapes["model.per_layer_model_projection.weight"] = (packed, width)
        shapes["model.per_layer_projection_norm.weight"] = (spec.per_layer_input_dim,)
    for layer in range(spec.num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_shapes(spec, layer).items()}
    shapes["model.norm.weight"] = (width,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, width)
    return shapes


def count_parameters(spec: ModelSpec) -> int:
    """Number of parameters of the text model, from its shapes."""
    return sum(math.prod(shape) for shape in tensor_shapes(spec).values())


def _layer_shapes(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    width, mlp, head = spec.embed_dim, spec.layer_hidden_dim(layer), spec.layer_head_dim(layer)
    queries, keys = spec.num_heads * head, spec.layer_kv_heads(layer) * head
    shapes: dict[str, tuple[int, ...]] = {"self_attn.q_proj.weight": (queries, width)}
    shapes["self_attn.k_proj.weight"] = (keys, width)
    if not spec.layer_k_eq_v(layer):
        shapes["self_attn.v_proj.weight"] = (keys, width)
    shapes["self_attn.o_proj.weight"] = (width, queries)
    if spec.family != "llama3":
        shapes |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    shapes |= {"mlp.gate_proj.weight": (mlp, width), "mlp.up_proj.weight": (mlp, width)}
    shapes["mlp.down_proj.weight"] = (width, mlp)
    shapes |= {f"{norm}_layernorm.weight": (width,) for norm in _norms(spec)}
    if spec.family == "gemma4":
        shapes["layer_scalar"] = (1,)
    if spec.per_layer_input_dim:
        shapes["per_layer_input_gate.weight"] = (spec.per_layer_input_dim, width)
        shapes["per_layer_projection.weight"] = (width, spec.per_layer_input_dim)
        shapes["post_per_layer_input_norm.weight"] = (width,)
    return shapes


def _norms(spec: ModelSpec) -> tuple[str, ...]:
    if spec.family.startswith("gemma"):
        return ("input", "post_attention", "pre_feedforward", "post_feedforward")
    return ("input", "post_attention")


def canonical(name: str) -> str:
    """A text-model tensor's name with the prefix "model.", whatever prefix the checkpoint uses."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return "model." + name[len(prefix) :]
    return name


def read_headers(directory: str | os.PathLike[str]) -> dict[str, TensorInfo]:
    """Every tensor of every `*.safetensors` file of a directory, by the name that the file gives it.

    Raises:
        LabError: no such file, a header that cannot be read, a file shorter than its header says, or one name twice.
    """
    files = sorted(Path(directory).glob("*.safetensors"))
    if not files:
        raise LabError(f"{directory} holds no .safetensors file.", hint="Download or save the weights again.")
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for info in _read_header(file):
            if info.name in tensors:
                raise LabError(
                    f"Tensor {info.name} is in both {tensors[info.name].file.name} and {file.name} of {directory}.",
                    hint="Remove the files that are not of this checkpoint.",
                )
            tensors[info.name] = info
    return tensors


def _read_header(file: Path) -> list[TensorInfo]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = struct.unpack("<Q", stream.read(8))[0] if size >= 8 else 0
        raw = stream.read(length) if 0 < length <= size - 8 else b""
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        infos = [_info(name, file, 8 + length, entry) for name, entry in header.items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(
            f"{file} is not a complete safetensors file: its header cannot be read.",
            hint="Download or save the weights again.",
        ) from error
    for info in infos:
        if info.end > size:
            raise LabError(
                f"{file} is truncated: tensor {info.name} ends at byte {info.end:,}, the file has {size:,}.",
                hint="Download or save the weights again.",
            )
    return infos


def _info(name: str, file: Path, base: int, entry: dict[str, Any]) -> TensorInfo:
    start, end = entry["data_offsets"]
    return TensorInfo(name, file, entry["dtype"], tuple(entry["shape"]), base + start, base + end)


def check(directory: str | os.PathLike[str], spec: ModelSpec) -> dict[str, TensorInfo]:
    """The tensors of the text model in a directory, by canonical name, when they are exactly those of the spec.

    Raises:
        LabError: naming tensor and file, for a missing, unknown, misshaped or unloadable one.
    """
    expected = tensor_shapes(spec)
    found: dict[str, TensorInfo] = {}
    for name, info in read_headers(directory).items():
        if _BESIDE.search(name) or (name == "lm_head.weight" and spec.tied_embeddings):
            continue
        if canonical(name) not in expected:
            raise LabError(
                f"{info.file} holds tensor {name}, which {spec.name} ({spec.family}) does not have.",
                hint="Check that config.json belongs to these weights.",
            )
        found[canonical(name)] = info
    for name, shape in expected.items():
        if name not in found:
            raise LabError(
                f"Tensor {name} {shape} is missing from the .safetensors files of {directory}.",
                hint="Download or save the weights again; check that config.json belongs to them.",
            )
        _check_tensor(found[name], shape)
    return found


def _check_tensor(info: TensorInfo, shape: tuple[int, ...]) -> None:
    if info.shape != shape:
        raise LabError(
            f"Tensor {info.name} of {info.file} has shape {info.shape}; config.json asks for {shape}.",
            hint="Check that config.json belongs to these weights.",
        )
    if info.dtype not in _LOADABLE_DTYPES:
        raise LabError(
            f"Tensor {info.name} of {info.file} has dtype {info.dtype}.",
            hint=f"labkit loads {', '.join(_LOADABLE_DTYPES)}: use the unquantized checkpoint.",
        )
    if info.end - info.start != math.prod(shape) * _LOADABLE_DTYPES[info.dtype]:
        raise LabError(
            f"Tensor {info.name} of {info.file} has {info.end - info.start:,} bytes, which is not {shape} of "
            f"{info.dtype}.",
            hint="Download or save the weights again.",
        )
