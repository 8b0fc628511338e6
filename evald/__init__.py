"""The scorer: scores each model-dataset pair as soon as its predictions are complete. Never imports inferd."""
