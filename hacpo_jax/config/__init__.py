"""What to run: the config of a whole run, from YAML and dotted overrides."""

from hacpo_jax.config.agents import Agent as AgentConfig
from hacpo_jax.config.agents import NewModel, NewTokenizer, WarmStart
from hacpo_jax.config.agents import Optimizer as OptimizerConfig
from hacpo_jax.config.algorithm import Algorithm
from hacpo_jax.config.evaluation import Draws, Evaluation
from hacpo_jax.config.load import config_text, load_config, parse_config, save_config
from hacpo_jax.config.mesh import Mesh as MeshConfig
from hacpo_jax.config.schema import Config, Sampling, Training
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
from hacpo_jax.config.tracking import Tracking, Wandb

__all__ = [
    "AgentConfig",
    "Algorithm",
    "Arithmetic",
    "Condition",
    "Config",
    "Draws",
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
    "Tracking",
    "Training",
    "VerifierPart",
    "Wandb",
    "WarmStart",
    "config_text",
    "load_config",
    "parse_config",
    "save_config",
]
