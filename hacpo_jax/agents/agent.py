"""Agents and the groups in which they are trained together."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from hacpo_jax.agents.tokenizer import Tokenizer
from hacpo_jax.config import Algorithm, MeshConfig, OptimizerConfig, WarmStart
from hacpo_jax.models import ModelConfig


@dataclasses.dataclass(frozen=True)
class Agent:
    """One policy, without its parameters.

    Args:
      index: place among all agents; part of every sample's seed.
      name: unique.
      model: shape of the model.
      tokenizer: its own.
      directory: Hugging Face directory of its first weights; None starts from random ones.
      optimizer: how it is updated.
      algorithm: what it learns from its own and its peers' answers.
      mesh: how its arrays lie on the devices.
      warm_start: supervised training first, if any.
    """

    index: int
    name: str
    model: ModelConfig
    tokenizer: Tokenizer
    directory: Path | None
    optimizer: OptimizerConfig
    algorithm: Algorithm
    mesh: MeshConfig
    warm_start: WarmStart | None


@dataclasses.dataclass(frozen=True)
class AgentGroup:
    """Agents that one program serves: same model shape, tokenizer, optimizer, algorithm and mesh.

    Their parameters are stacked on a leading axis and every jitted function is vmapped over it, so
    two agents of one architecture cost one compilation and one dispatch. A group of one is the
    ordinary case.
    """

    agents: tuple[Agent, ...]

    @property
    def model(self) -> ModelConfig:
        return self.agents[0].model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.agents[0].tokenizer

    @property
    def optimizer(self) -> OptimizerConfig:
        return self.agents[0].optimizer

    @property
    def algorithm(self) -> Algorithm:
        return self.agents[0].algorithm

    @property
    def mesh(self) -> MeshConfig:
        return self.agents[0].mesh

    @property
    def indices(self) -> list[int]:
        """Places of the group's agents among all agents."""
        return [agent.index for agent in self.agents]

    @property
    def name(self) -> str:
        return "+".join(agent.name for agent in self.agents)


def group_agents(agents: Sequence[Agent]) -> list[AgentGroup]:
    """Put agents that can share a program into one group, in order of first appearance."""
    groups: dict[tuple, list[Agent]] = {}
    for agent in agents:
        key = (agent.model, agent.tokenizer.fingerprint, agent.optimizer, agent.algorithm)
        key = (*key, agent.mesh)
        if agent.model.lora is not None:  # one base for all
            key = (*key, agent.directory or agent.index)
        groups.setdefault(key, []).append(agent)
    return [AgentGroup(tuple(members)) for members in groups.values()]
