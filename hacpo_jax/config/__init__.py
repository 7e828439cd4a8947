"""What to run: the config of a whole run, from YAML and dotted overrides."""

from hacpo_jax.config.agents import Agent as AgentConfig
from hacpo_jax.config.agents import NewModel, NewTokenizer, WarmStart
from hacpo_jax.config.agents import Optimizer as OptimizerConfig
from hacpo_jax.config.algorithm import Algorithm
from hacpo_jax.config.load import config_text, load_config, parse_config, save_config
from hacpo_jax.config.mesh import Mesh as MeshConfig
from hacpo_jax.config.schema import Config, Evaluation, Sampling, Training
from hacpo_jax.config.task import Arithmetic, Jsonl, Task

__all__ = [
    "AgentConfig",
    "Algorithm",
    "Arithmetic",
    "Config",
    "Evaluation",
    "Jsonl",
    "MeshConfig",
    "NewModel",
    "NewTokenizer",
    "OptimizerConfig",
    "Sampling",
    "Task",
    "Training",
    "WarmStart",
    "config_text",
    "load_config",
    "parse_config",
    "save_config",
]
