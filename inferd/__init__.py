"""The asker: sends every request of the plan to its model and journals each answer as it comes. Never imports evald."""
