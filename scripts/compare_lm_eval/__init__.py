"""lm-evaluation-harness and Tandem over the same docs and the same server of known log-probabilities, side by side."""
