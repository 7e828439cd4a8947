"""The loop: one step of all agents, updates, checkpoints, metrics."""
