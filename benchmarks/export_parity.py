"""Logits of a run's exported agents in transformers beside ours: export_parity.py RUN EXPORTED.

Needs torch. Prints, for each agent, the largest difference of any logit of one prompt.
"""

import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import torch
from transformers import AutoModelForCausalLM

from hacpo_jax.config import load_config
from hacpo_jax.models import bind
from hacpo_jax.models.lora import member, whole
from hacpo_jax.training.saved_run import choose_step, saved_groups, saved_params


def main(run_dir: Path, exported: Path) -> None:
    config = load_config(run_dir / "config.yaml")
    groups = saved_groups(run_dir, config)
    params = saved_params(run_dir, groups, choose_step(run_dir, None), config.seed)
    for group, stacked in zip(groups, params, strict=True):
        for i, agent in enumerate(group.agents):
            tokens = np.array([agent.tokenizer.encode_prompt("What is 12 + 7?")])
            model = bind(agent.model, whole(member(stacked, i)))
            positions, valid = jnp.arange(tokens.shape[1])[None], jnp.ones(tokens.shape, bool)
            hidden = model(jnp.asarray(tokens), positions, valid, dtype=jnp.float32)
            ours = np.asarray(hidden @ model.unembedding().T)
            theirs = AutoModelForCausalLM.from_pretrained(exported / agent.name, dtype="float32")
            with torch.no_grad():
                wanted = theirs(torch.tensor(tokens)).logits.numpy()
            gap, largest = np.abs(ours - wanted).max(), np.abs(wanted).max()
            print(f"{agent.name}: largest difference {gap:.1e}, largest logit {largest:.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
