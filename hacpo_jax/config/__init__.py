"""What to run: the config of a whole run, from YAML and dotted overrides."""

from hacpo_jax.config.agents import Agent as AgentConfig
from hacpo_jax.config.agents import NewModel, NewTokenizer, WarmStart
from hacpo_jax.config.agents import Optimizer as OptimizerConfig
from hacpo_jax.config.algorithm import Algorithm
from hacpo_jax.config.load import config_text, load_config, parse_config, save_config
from hacpo_jax.config.mesh import Mesh as MeshConfig
from hacpo_jax.config.schema import Config, Evaluation, Sampling, Training
from hacpo_jax.config.task import (
    Arithmetic,
    Condition,
    Hub,
    Jsonl,
    Parquet,
    Preset,
    ReasoningGym,
    Task,
    VerifierPart,
)

__all__ = [
    "AgentConfig",
    "Algorithm",
    "Arithmetic",
    "Condition",
    "Config",
    "Evaluation",
    "Hub",
    "Jsonl",
    "MeshConfig",
    "NewModel",
    "NewTokenizer",
    "OptimizerConfig",
    "Parquet",
    "Preset",
    "ReasoningGym",
    "Sampling",
    "Task",
    "Training",
    "VerifierPart",
    "WarmStart",
    "config_text",
    "load_config",
    "parse_config",
    "save_config",
]
