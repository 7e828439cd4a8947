"""Parameters in bfloat16: what they keep, what they lose, and the warning about it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import tiny_config

from hacpo_jax.config import OptimizerConfig
from hacpo_jax.training.optimizer import make_optimizer
from hacpo_jax.training.update import apply_gradients, init_state
from hacpo_jax.training.watch import LEAST_BFLOAT16_STEP, rounding_warnings


def moved(dtype, learning_rate: float):
    """A weight of 0.02 after one AdamW step, and the state it leaves."""
    settings = OptimizerConfig(learning_rate=learning_rate)
    params = {"weight": jnp.full((1, 3), 0.02, dtype)}
    state = jax.tree.map(lambda x: x[0], init_state(params, settings, 1))
    gradients = {"weight": jnp.asarray([1.0, -1.0, 0.5], dtype)}
    optimizer = make_optimizer(settings, 1)
    return jax.jit(lambda s, g: apply_gradients(s, g, optimizer)[0])(state, gradients)


def test_a_small_step_is_lost_in_bfloat16_and_kept_in_float32():
    """AReaL#1634: numbers from 1/64 to 1/32 are 2^-13 = 1.2e-4 apart in bfloat16."""
    assert np.spacing(np.float32(2**-6)) * 2**16 == 2**-13  # 16 bits of mantissa fewer
    wide = moved(jnp.float32, 1e-6).params["weight"]
    np.testing.assert_allclose(wide, 0.02 - 1e-6 * np.array([1, -1, 1]), rtol=1e-6)
    narrow = moved(jnp.bfloat16, 1e-6).params["weight"]
    np.testing.assert_array_equal(narrow, jnp.full(3, 0.02, jnp.bfloat16))


@pytest.mark.parametrize(("factor", "moves"), [(0.9, False), (1.1, True)])
def test_the_bound_is_where_steps_of_adam_begin_to_count(factor, moves):
    found = moved(jnp.bfloat16, 2**-14 * factor).params["weight"]
    assert bool((found != jnp.asarray(0.02, jnp.bfloat16)).any()) is moves
    assert pytest.approx(2**-14, rel=0.02) == LEAST_BFLOAT16_STEP


def test_means_of_the_optimizer_stay_in_float32():
    state = moved(jnp.bfloat16, 1e-3)
    assert state.params["weight"].dtype == jnp.bfloat16
    floats = [x for x in jax.tree.leaves(state.opt_state) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert len(floats) == 2 and all(x.dtype == jnp.float32 for x in floats)


def warnings_of(param_dtype: str, *rates: float) -> list[str]:
    agents = [
        {
            "name": name,
            "model": "unused",
            "optimizer": {"learning_rate": rate},
        }
        for name, rate in zip("ab", rates, strict=True)
    ]
    return rounding_warnings(
        tiny_config("unused", agents=agents, training={"param_dtype": param_dtype})
    )


def test_a_learning_rate_that_is_lost_is_told_with_the_agent_s_name():
    (warning,) = warnings_of("bfloat16", 1e-6, 1e-3)
    assert warning.startswith("a: ") and "1e-06" in warning and "param_dtype" in warning
    assert warnings_of("float32", 1e-6, 1e-6) == []
