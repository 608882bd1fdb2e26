"""What a model's answers are worth: generation, the judge in its sandbox, pass@k."""
