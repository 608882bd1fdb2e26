"""The five exercises of the LoRA lab, one module each."""

from labkit.exercises.lora_sft import adapter_size, answer_mask, chunked_loss, packing, targets

EXERCISES = tuple(module.EXERCISE for module in (adapter_size, targets, answer_mask, packing, chunked_loss))
