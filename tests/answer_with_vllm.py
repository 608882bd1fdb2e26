"""Greedy answers of vLLM, run by the interpreter of .venv-serve: JSON in, JSON out. labkit is not imported.

.venv-serve/bin/python tests/answer_with_vllm.py ASKED.json ANSWERED.json
"""

import json
import sys
from pathlib import Path


def main() -> None:
    """Answer every prompt with the model, or with each of its adapters in turn."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    asked = json.loads(Path(sys.argv[1]).read_text())
    adapters = asked["adapters"]
    options = {"enable_lora": True, "max_lora_rank": 16, "max_loras": 1} if adapters else {}
    engine = LLM(
        asked["model"], dtype=asked["dtype"], enforce_eager=True, max_model_len=1024, disable_log_stats=True, **options
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=asked["max_tokens"], logprobs=1, stop_token_ids=asked["stop"])
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    answered = {}
    for number, (name, path) in enumerate(adapters.items() if adapters else [("plain", None)], 1):
        request = LoRARequest(name, number, path) if path else None
        done = engine.generate(prompts, greedy, lora_request=request, use_tqdm=False)
        answered[name] = [
            {
                "tokens": list(one.outputs[0].token_ids),
                "logprobs": [
                    step[token].logprob
                    for token, step in zip(one.outputs[0].token_ids, one.outputs[0].logprobs, strict=True)
                ],
            }
            for one in done
        ]
    Path(sys.argv[2]).write_text(json.dumps(answered))


if __name__ == "__main__":
    main()
