"""The five exercises of the LoRA lab, one module each."""

from labkit.exercises.lora_sft import adapter_size, answer_mask, chunked_loss, packing

EXERCISES = (adapter_size.EXERCISE, answer_mask.EXERCISE, packing.EXERCISE, chunked_loss.EXERCISE)
