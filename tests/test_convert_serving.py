"""Converted directories in the server that they are for: vLLM on a CPU, in its own environment (`make serve-env`)."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from labkit import convert, models, resources
from labkit.data import verilog
from tests.conftest import SERVE

PROBLEMS, NEW = 50, 96
MEAN = 1e-4  # of the difference of log-probabilities

pytestmark = [pytest.mark.slow, pytest.mark.vllm, pytest.mark.parity]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """The stored adapter through Orbax, then merged, as an adapter, and in eight bits."""
    folder = tmp_path_factory.mktemp("serving")
    base = resources.path("models", "tiny-gemma4")
    convert.to_orbax(resources.path("models", "tiny-gemma4-sft", "adapter"), folder / "orbax", base=base)
    convert.to_hf(folder / "orbax", folder / "merged")
    convert.to_peft(folder / "orbax", folder / "adapter", base_name=str(base))
    convert.quantize(folder / "orbax", folder / "int8", probe=False)
    return folder


@functools.cache
def prompts() -> tuple[tuple[int, ...], ...]:
    tokenizer = models.load("tiny-gemma4").tokenizer
    asked = [[{"role": "user", "content": x.spec}] for x in verilog.problems("test_seen", PROBLEMS, seed=7)]
    return tuple(tuple(tokenizer.apply_chat_template(x, add_generation_prompt=True, return_dict=False)) for x in asked)


def stops(model: Path) -> list[int]:
    return json.loads((model / "generation_config.json").read_text())["eos_token_id"]


def of_vllm(work: Path, model: Path, adapters: dict[str, Path] | None = None, dtype: str = "float32") -> dict:
    asked = {"model": str(model), "adapters": {k: str(v) for k, v in (adapters or {}).items()}, "dtype": dtype}
    asked |= {"prompts": prompts(), "max_tokens": NEW, "stop": stops(work / "merged")}
    (work / "asked.json").write_text(json.dumps(asked))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX", "XLA"))}
    env |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    command = [str(SERVE), str(Path(__file__).with_name("answer_with_vllm.py"))]
    done = subprocess.run(
        [*command, str(work / "asked.json"), str(work / "answered.json")], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((work / "answered.json").read_text())


def of_transformers(model: Path, adapter: Path | None, stop: list[int]) -> list[dict]:
    """Greedy answers and the log-probabilities of their tokens, one prompt at a time."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded = loaded if adapter is None else PeftModel.from_pretrained(loaded, adapter)
    found = []
    for prompt in prompts():
        with torch.no_grad():
            given = torch.tensor([prompt])
            done = loaded.generate(input_ids=given, do_sample=False, max_new_tokens=NEW, eos_token_id=stop)[0]
            said = loaded(done[None]).logits[0].log_softmax(-1)
        new = done[len(prompt) :].tolist()
        places = range(len(prompt) - 1, len(done) - 1)
        found.append({"tokens": new, "logprobs": [float(said[i, t]) for i, t in zip(places, new, strict=True)]})
    return found


def gap(a: list[dict], b: list[dict]) -> float:
    """Mean difference of the log-probabilities, where both said the same."""
    pairs = [(x, y) for p, q in zip(a, b, strict=True) for x, y in zip(p["logprobs"], q["logprobs"], strict=False)]
    return float(np.mean([abs(x - y) for x, y in pairs]))


def tokens(answers: list[dict]) -> list[list[int]]:
    return [answer["tokens"] for answer in answers]


def test_a_merged_directory_gives_the_answers_of_transformers(work):
    theirs = of_transformers(work / "merged", None, stops(work / "merged"))
    found = of_vllm(work, work / "merged")["plain"]
    assert tokens(found) == tokens(theirs) and len({tuple(x) for x in tokens(found)}) > PROBLEMS // 2
    assert gap(found, theirs) <= MEAN


def test_an_adapter_unmerged_gives_them_too_and_without_the_doubled_values_does_not(work):
    base = resources.path("models", "tiny-gemma4")
    theirs = of_transformers(base, work / "adapter", stops(work / "merged"))
    halved = without_doubled_values(work)
    found = of_vllm(work, base, {"whole": work / "adapter", "halved": halved})
    assert tokens(found["whole"]) == tokens(theirs)
    assert gap(found["whole"], theirs) <= MEAN < gap(found["halved"], theirs)


def without_doubled_values(work: Path) -> Path:
    """The adapter as PEFT itself would write it: nothing for the v_proj of layers whose values are their keys."""
    out = work / "halved"
    out.mkdir()
    spec = models.load("tiny-gemma4").spec
    config = (work / "adapter" / "adapter_config.json").read_text()
    (out / "adapter_config.json").write_text(config)
    last = [f".{i}.self_attn.v_proj." for i in range(spec.num_layers) if spec.layer_k_eq_v(i)]
    found = load_file(work / "adapter" / "adapter_model.safetensors")
    kept = {name: value for name, value in found.items() if not any(mark in name for mark in last)}
    assert 0 < len(kept) < len(found)
    save_file(kept, out / "adapter_model.safetensors")
    return out


def test_eight_bits_load_and_answer_nearly_alike(work):
    found, plain = of_vllm(work, work / "int8")["plain"], of_vllm(work, work / "merged")["plain"]
    first = [a["tokens"][:8] == b["tokens"][:8] for a, b in zip(found, plain, strict=True)]
    assert np.mean(first) > 0.8 and gap(found, plain) < 0.5
