"""Who learns: agents, their groups and their tokenizers."""

from hacpo_jax.agents.agent import Agent, AgentGroup, group_agents
from hacpo_jax.agents.build import base_params, build_agents, initial_params, saved_agents
from hacpo_jax.agents.builtin_tokenizers import byte_tokenizer, character_tokenizer, train_bpe
from hacpo_jax.agents.export import export_agent, save_agent
from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.agents.unread import unread_agents

__all__ = [
    "Agent",
    "AgentGroup",
    "Tokenizer",
    "base_params",
    "build_agents",
    "byte_tokenizer",
    "character_tokenizer",
    "export_agent",
    "group_agents",
    "initial_params",
    "save_agent",
    "saved_agents",
    "train_bpe",
    "unread_agents",
]
