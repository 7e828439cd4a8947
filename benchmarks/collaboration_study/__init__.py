"""The parts of `benchmarks/collaboration.py`: what to run, running it, and what came out."""
