"""Time of scoring and of updates: python benchmarks/update_speed.py [--against CHECKOUT].

8 prompts with 4 answers each, prompts of 32 tokens and answers of 64, float32, with a KL to a
reference: what one step of GRPO does after its answers are drawn. With another checkout of this
project the two run in turn, A B A B, each in a process of its own, and ratios are printed; above 1
this one is faster. Lengths may be made longer, or drawn from an exponential distribution.
"""

import argparse
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from peer_scripts.work import SHAPES

from hacpo_jax.config import Algorithm, OptimizerConfig
from hacpo_jax.models import ModelConfig, init_params
from hacpo_jax.parallel.hosts import ALONE
from hacpo_jax.parallel.layout import one_device
from hacpo_jax.rollout import bucket
from hacpo_jax.training.batches import LearnerView, pad_prompts, pad_responses
from hacpo_jax.training.cut import cut_updates
from hacpo_jax.training.objective import make_objective
from hacpo_jax.training.rescore import policy_log_probs
from hacpo_jax.training.scoring import PolicySpec
from hacpo_jax.training.update import UpdateSpec, init_state, update

OPTIMIZER = OptimizerConfig(learning_rate=1e-6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens of the longest answers")
    parser.add_argument("--mean", type=float, help="draw lengths from an exponential of this mean")
    parser.add_argument("--tokens", type=int, default=16384, help="training.micro_batch_tokens")
    parser.add_argument("--remat", action="store_true")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    checkouts = [Path(__file__).resolve().parents[1]]
    if options.against:
        checkouts.append(options.against.resolve())
    print_table(checkouts, options.reps)


def print_table(checkouts: list[Path], reps: int) -> None:
    """Least seconds of each checkout's phases, and their ratios to the first.

    Seconds of the processor tell more than those that pass where others use the machine.
    """
    workers = [_worker(path) for path in checkouts]
    names, *_ = [_ask(worker, "").split() for worker in workers]
    print(f"{'phase':10}{'checkout':40}{'passed':>9}{'ratio':>8}{'processor':>11}{'ratio':>8}")
    for name in names:
        times = [[] for _ in workers]
        for _ in range(reps):
            for worker, found in zip(workers, times, strict=True):
                found.append([float(x) for x in _ask(worker, name).split()])
        first = np.min(times[0], axis=0)
        for path, found in zip(checkouts, times, strict=True):
            (passed, used), ratios = np.min(found, axis=0), np.min(found, axis=0) / first
            row = f"{name:10}{path.name:40}{passed:9.3f}{ratios[0]:8.2f}{used:11.3f}"
            print(f"{row}{ratios[1]:8.2f}", flush=True)
    for worker in workers:
        worker.stdin.close()  # type: ignore[union-attr]
        worker.wait()


def _worker(checkout: Path) -> subprocess.Popen:
    command = [sys.executable, __file__, *sys.argv[1:], "--serve"]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def _ask(worker: subprocess.Popen, line: str) -> str:
    worker.stdin.write(line + "\n")  # type: ignore[union-attr]
    worker.stdin.flush()  # type: ignore[union-attr]
    return worker.stdout.readline().strip()  # type: ignore[union-attr]


def serve(options: argparse.Namespace) -> None:
    """Answers each line of its input: the names of phases first, then seconds of the one named."""
    phases = make_phases(options)
    for run in (*phases.values(), *phases.values()):
        run()
    for line in sys.stdin:
        name = line.strip()
        if not name:
            print(*phases, flush=True)
            continue
        start = time.perf_counter(), time.process_time()
        phases[name]()
        print(time.perf_counter() - start[0], time.process_time() - start[1], flush=True)


def make_phases(options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """`score` and `update` of one agent, each a function that waits for its result."""
    shape = SHAPES[options.shape]
    model = ModelConfig(
        model_type="qwen3",
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_layers=shape.layers,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=4096,
        qk_norm=True,
    )
    run, group = _run_of(model, options)
    rng = np.random.default_rng(0)
    prompts, samples = options.prompts, options.samples
    lengths = np.full(prompts * samples, options.new)
    if options.mean:
        drawn = rng.exponential(options.mean, len(lengths)).astype(int)
        lengths = np.clip(drawn, 1, options.new)
    answers = [rng.integers(1, model.vocab_size, n).tolist() for n in lengths]
    tokens, lengths = pad_responses([answers], samples, bucket(options.new))
    params = jax.tree.map(lambda x: x[None], init_params(model, jax.random.key(0)))
    indices = np.arange(prompts)
    drawn = types.SimpleNamespace(mine=indices, owners=np.zeros(prompts, int))
    view = _view_of(run, tokens, lengths, rng)
    state = [init_state(params, OPTIMIZER, 10)]
    kept = jax.tree.map(lambda x: x.copy(), params)
    pairs = [np.stack([np.zeros(prompts, int), indices], axis=1)]

    def score() -> None:
        policy_log_probs(run, group, kept, tokens, lengths, indices)

    def learn() -> None:
        layout, spec = run.layout(group), run.update_spec(group)
        (batch,) = cut_updates(run, group, drawn, [view], [pairs], "rows")
        with layout.use():
            state[0], _ = _step(layout, state[0], batch, spec)
        jax.block_until_ready(state[0])

    return {"score": score, "update": learn}


def _step(layout, state, batch, spec: UpdateSpec):
    rest = (np.array([0]), np.int32(0))
    if not isinstance(batch, tuple):  # a checkout before micro-batches were counted in tokens
        batch = (layout.put(batch, "agents", None, "rows"),)
    else:
        batch = layout.put(batch, "agents", "rows")
    return update(state, *batch, *rest, spec=spec, base=None)


def _run_of(model: ModelConfig, options: argparse.Namespace):
    """What scoring and updates ask of a run."""
    algorithm = Algorithm(name="grpo", kl_coef=0.04)
    policy = PolicySpec(
        model, 1.0, model.vocab_size, jax.numpy.dtype("float32"), remat=options.remat
    )
    spec = UpdateSpec(policy, make_objective(algorithm, 1), OPTIMIZER, 10, 0.04, 0.0, 0.0)
    agent = types.SimpleNamespace(name="one", index=0, algorithm=algorithm, model=model)
    group = types.SimpleNamespace(
        name="one", indices=(0,), agents=(agent,), algorithm=algorithm, model=model
    )
    rng = np.random.default_rng(1)
    texts = rng.integers(1, model.vocab_size, (options.prompts, options.prompt)).tolist()
    # The second key is that of checkouts before micro-batches were counted in tokens.
    training = types.SimpleNamespace(
        micro_batch_tokens=options.tokens,
        micro_batch_rows=max(options.tokens // (options.prompt + options.new), 1),
        group_size=options.samples,
    )
    run = types.SimpleNamespace(
        agents=(agent,),
        config=types.SimpleNamespace(training=training),
        hosts=ALONE,
        layout=lambda _: one_device(),
        policy_spec=lambda _: policy,
        update_spec=lambda _: spec,
        train=types.SimpleNamespace(prompts=lambda _, rows: [texts[i] for i in rows]),
    )
    return run, group


def _view_of(run, tokens: np.ndarray, lengths: np.ndarray, rng) -> LearnerView:
    shape = lengths.shape
    prompts, prompt_lengths = pad_prompts(run.train.prompts(0, range(shape[1])))
    noise = np.float32(-8 + 0.01 * rng.normal(size=tokens.shape))
    return LearnerView(
        learner=0,
        prompts=prompts,
        prompt_lengths=prompt_lengths,
        responses=tokens,
        response_lengths=lengths,
        advantages=rng.normal(size=shape).astype(np.float32),
        behavior_mean_log_prob=np.zeros(shape, np.float32),
        old_log_probs=noise,
        reference_log_probs=noise[0],
        transfer_weight=np.zeros(shape, np.float32),
        transfer_lengths=lengths,
    )


if __name__ == "__main__":
    main()
