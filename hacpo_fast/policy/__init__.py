"""The trained model: packed forward passes, log-probs without logits, and the optimiser."""
