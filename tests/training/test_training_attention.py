"""Which attention a run's programs have, and choices refused before it starts."""

import pytest
from tiny_runs import tiny_config

from hacpo_jax.errors import UserError
from hacpo_jax.training import run as run_module
from hacpo_jax.training.run import prepare


def config_of(attention: str):
    return tiny_config("unused", training={"attention": attention})


@pytest.mark.parametrize("attention", ["auto", "xla"])
def test_programs_for_cpu_have_the_plain_one(attention):
    run = prepare(config_of(attention))
    assert {run.attention(group) for group in run.groups} == {"xla"}


@pytest.mark.parametrize("attention", ["cudnn", "splash"])
def test_what_cpu_cannot_run_is_refused_at_start(attention):
    with pytest.raises(UserError, match=rf"^training\.attention = '{attention}': runs on .* 'cpu'"):
        prepare(config_of(attention))


def test_every_program_of_a_run_has_the_chosen_one(monkeypatch):
    monkeypatch.setattr(run_module, "choose_attention", lambda *_, **__: "splash")
    run = prepare(config_of("auto"))
    (group, *_) = run.groups
    specs = (run.sampling_spec(group), run.evaluation_spec(group, "held"), run.policy_spec(group))
    assert [spec.attention for spec in specs] == ["splash"] * 3
    assert run.update_spec(group).policy.attention == "splash"
