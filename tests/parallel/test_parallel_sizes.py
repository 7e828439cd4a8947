"""A step's sizes from the config of a run."""

import jax.numpy as jnp
import pytest
from tiny import LLAMA
from tiny_runs import tiny_config

from hacpo_jax.agents import Agent, AgentGroup
from hacpo_jax.parallel.sizes import GroupWork, StepSizes, group_work
from hacpo_jax.training.cuts import Load

BFLOAT16 = jnp.dtype("bfloat16")


def work_of(config, *indices: int) -> GroupWork:
    """Of the agents with these numbers; a tokenizer is not asked for."""
    agents = [
        Agent(
            index=i,
            name=section.name,
            model=LLAMA,
            tokenizer=None,  # type: ignore[arg-type]
            directory=None,
            optimizer=section.optimizer,
            algorithm=section.algorithm,
            mesh=section.mesh,
            warm_start=None,
        )
        for i, section in enumerate(config.agents)
    ]
    group = AgentGroup(tuple(agents[i] for i in indices))
    return group_work(config, group, dtype=BFLOAT16, rescores=True, attention="splash")


def test_sizes_follow_the_config():
    config = tiny_config(
        "unused",
        task={"max_prompt_tokens": 13},
        sampling={"max_new_tokens": 5, "max_rows": 6},
        training={"mini_batch_prompts": 1, "remat": True, "param_dtype": "bfloat16"},
    )
    work = work_of(config, 0, 2)
    assert work.name == "one+three" and work.model is LLAMA
    assert work.sizes == StepSizes(
        prompts=2,
        samples=3,
        prompt_tokens=16,  # buckets of 13 and of 5 tokens
        answer_tokens=5,
        row_tokens=6,
        updates=6,  # answers of three agents to two prompts, one prompt's at a time
        update_rows=3,
        micro_batch_tokens=16384,
        decode_rows=6,
        rescores=True,
        param_bytes=2,
        compute_bytes=2,
        remat=True,
        attention="splash",
    )
    assert (work.sizes.chunk_prompts, work.sizes.chunks) == (2, 1)
    assert work.sizes.update_loads(1) == (Load(1, 16, 3, 6),)


@pytest.mark.parametrize(
    ("sections", "reference", "kept", "peers", "updates"),
    [
        ({"algorithm": {"name": "grpo"}}, False, False, 0, 1),
        ({"algorithm": {"name": "gspo", "kl_coef": 0.1}}, True, True, 0, 1),
        ({"algorithm": {"name": "hacpo"}, "diagnostics": {"every": 2}}, False, True, 0, 3),
        ({"algorithm": {"name": "prp"}}, False, False, 2, 3),
        ({"algorithm": {"name": "prp", "prp": {"denominator": "thl_peer"}}}, False, False, 0, 3),
    ],
)
def test_what_algorithms_score(sections, reference, kept, peers, updates):
    sizes = work_of(tiny_config("unused", **sections), 1).sizes
    assert (sizes.reference_scores, sizes.keeps_reference) == (reference, kept)
    assert (sizes.snapshot_peers, sizes.updates) == (peers, updates)
    named = {name for name, _, _ in sizes.scored}
    assert ("reference" in named, "snapshot" in named) == (reference, peers > 0)
