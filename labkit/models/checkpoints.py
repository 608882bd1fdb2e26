"""What a Hugging Face checkpoint of a spec must hold, and whether a directory holds it. Standard library only."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from labkit.errors import LabError
from labkit.models import headers
from labkit.models.headers import TensorInfo
from labkit.models.spec import ModelSpec

__all__ = ["TensorInfo", "canonical", "check", "count_parameters", "read_headers", "tensor_shapes"]

# Gemma4ForCausalLM saves "model.", multimodal checkpoints nest the text model in one of the other two.
PREFIXES = ("model.language_model.", "language_model.model.", "model.")

# Tensors beside the text model: vision and audio towers, and a tied head or rope buffer that is saved although it
# can be computed.
_BESIDE = re.compile(
    r"^(model\.)?(vision_tower|vision_model|audio_tower|multi_modal_projector|embed_vision|embed_audio|vision_embedder)\."
    r"|rotary_emb\."
)
_LOADABLE_DTYPES = ("BF16", "F16", "F32")
_QUANTIZED = ("weight_scale", "weight_scale_inv", "weight_packed", "qweight", "weight.absmax")
_MAX_SHARDS = 10_000
_AGAIN = "Download or save the weights again."


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
    """Every tensor of a checkpoint's safetensors files, by the name that its file gives it.

    Where there is an index, its files are read and have to hold exactly its tensors; else all files of the directory.

    Raises:
        LabError: naming tensor and file: no such file, a shard that is missing, a header that cannot be believed
            (`labkit.models.headers`), one name twice, an index that says otherwise; weights that are only pickled.
    """
    tensors: dict[str, TensorInfo] = {}
    for file in weight_files(Path(directory)):
        for info in headers.read(file):
            if info.name in tensors:
                raise LabError(
                    f"Tensor {info.name} is in both {tensors[info.name].file.name} and {file.name} of {directory}.",
                    hint="Remove the files that are not of this checkpoint.",
                )
            tensors[info.name] = info
    for index in indices(Path(directory)):
        _compare(index, weight_map(index), tensors)
    return tensors


def indices(directory: Path) -> list[Path]:
    """The index files of a directory's shards: none or one, more are an error."""
    found = sorted(directory.glob("*.safetensors.index.json"))
    if len(found) > 1:
        raise LabError(f"{directory} has {len(found)} indices: {found[0].name}, {found[1].name}.", hint="Keep one.")
    return found


def weight_map(index: Path) -> dict[str, str]:
    """Which file of an index has which tensor."""
    found = headers.read_json(index).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise LabError(f"{index} has no weight_map.", hint=_AGAIN)
    for name, file in found.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise LabError(f"{index} puts {name} into {file!r}, which is no safetensors file beside it.", hint=_AGAIN)
    return found


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint; a `LabError` if one that should be there is not."""
    index = indices(directory)
    mapped = weight_map(index[0]) if index else {}
    files = [directory / name for name in sorted(set(mapped.values()))] or sorted(directory.glob("*.safetensors"))
    if not files:
        _refuse_pickles(directory)
        raise LabError(f"{directory} holds no .safetensors file.", hint=_AGAIN)
    for file in files + _siblings(files):
        if not file.is_file():
            first = next((name for name, where in mapped.items() if where == file.name), None)
            what = f", which {index[0].name} says has {first}" if first else ""
            raise LabError(f"The shard {file} is missing{what}.", hint=_AGAIN)
    return files


def _siblings(files: list[Path]) -> list[Path]:
    """All shards of the sets of which some are there, by their names: ...-00001-of-00003.safetensors."""
    found = set()
    for file in files:
        shard = re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", file.name)
        for number in range(1, int(shard[3]) + 1) if shard and int(shard[3]) <= _MAX_SHARDS else ():
            assert shard is not None
            name = f"{shard[1]}-{number:0{len(shard[2])}}-of-{shard[3]}.safetensors"
            found.add(file.with_name(name))
    return sorted(found - set(files))


def _refuse_pickles(directory: Path) -> None:
    pickled = sorted([*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")])
    if pickled:
        raise LabError(
            f"{pickled[0]} is pickled: reading it would run whatever code is in it, so labkit never does.",
            hint="Get the checkpoint as safetensors, or save it so with the program that trusts it.",
        )


def _compare(index: Path, mapped: dict[str, str], tensors: dict[str, TensorInfo]) -> None:
    """The index and the files have to say the same."""
    for name, file in mapped.items():
        if name not in tensors or tensors[name].file.name != file:
            raise LabError(f"{index} says that {name} is in {file}, but it is not.", hint=_AGAIN)
    for name, info in tensors.items():
        if name not in mapped:
            raise LabError(f"{info.file} holds {name}, of which {index.name} says nothing.", hint=_AGAIN)


def check(directory: str | os.PathLike[str], spec: ModelSpec) -> dict[str, TensorInfo]:
    """The tensors of the text model in a directory, by canonical name, when they are exactly those of the spec.

    Raises:
        LabError: naming tensor and file, for a missing, unknown, misshaped or unloadable one.
    """
    expected = tensor_shapes(spec)
    found: dict[str, TensorInfo] = {}
    for name, info in read_headers(directory).items():
        if name.endswith(_QUANTIZED):
            raise LabError(
                f"{info.file} holds quantized weights: {name}.", hint="labkit loads the unquantized checkpoint."
            )
        if _BESIDE.search(name) or (name == "lm_head.weight" and spec.tied_embeddings):
            continue
        if canonical(name) not in expected:
            raise LabError(
                f"{info.file} holds tensor {name}, which {spec.name} ({spec.family}) does not have.",
                hint="Check that config.json belongs to these weights.",
            )
        if canonical(name) in found:
            raise LabError(
                f"{name} of {info.file} and {found[canonical(name)].name} are one tensor of {spec.name}.",
                hint="Remove the files that are not of this checkpoint.",
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
