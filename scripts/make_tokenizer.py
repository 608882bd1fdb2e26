"""Train the tiny models' tokenizer on the pretraining documents: a byte-level BPE with Gemma 4's chat markers.

python scripts/make_tokenizer.py --out data/models/tiny-gemma4
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from labkit.data.verilog import corpus

SPECIAL_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}"
    "{{ message['content'] + '<turn|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\\n' }}{% endif %}"
)


def train(documents: int, vocab_size: int, seed: int) -> Tokenizer:
    """A byte-level BPE: the leading space belongs to the word, digits merge freely."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(islice(corpus(seed), documents), trainer)
    return tokenizer


def main() -> None:
    """Write `tokenizer.json`, its configuration and the chat template."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=12_000)
    parser.add_argument("--vocab-size", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=train(args.documents, args.vocab_size, args.seed),
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(args.out)
    print(f"{args.out}: {len(fast)} tokens")


if __name__ == "__main__":
    main()
