"""What `--help` prints."""

import dataclasses
import textwrap

from hacpo_jax.cli.configs import built_in_configs


@dataclasses.dataclass(frozen=True)
class VerbHelp:
    """Help on one verb.

    Args:
      summary: one line.
      usage: what follows the program's name, in each way to use the verb.
      text: how it works and which settings it has.
      examples: what follows the program's name in a few real commands.
    """

    summary: str
    usage: tuple[str, ...]
    text: str
    examples: tuple[str, ...]


VERBS = {
    "train": VerbHelp(
        summary="train the agents of a config together; goes on where a killed run was",
        usage=(
            "[train] [--config FILE] [key=value ...]",
            "[train] ... --coordinator HOST:PORT --processes N --process I",
        ),
        text="""\
            FILE is a YAML file or the name of a built-in config, listed below; quickstart runs
            without --config. Every key of the config can be set by its dotted name; numbers reach
            into lists. The table of keys is in the README. `extends: OTHER.yaml` in a file takes
            from OTHER, a path relative to that file, whatever the file itself does not set.
            The run directory (run_dir=...) receives config.yaml, metrics.jsonl,
            evaluations.jsonl, rollouts/, checkpoints/, summary.json and report/. The same command
            again goes on from the last checkpoint. --quiet shows warnings and the end alone.
            A run of several processes starts by itself on TPU pods, in SLURM steps and in the
            JobSets of launch/. Elsewhere the same command is started N times, with
            --process 0 to N-1: HOST:PORT is a free port of the machine of process 0, as the
            others reach it. All use the same config; one that fails ends all.""",
        examples=(
            "",
            "train --config quickstart run_dir=runs/second seed=1",
            "train --config smollm2_state agents.0.model=DIR",
            "train --config quickstart algorithm.name=gspo run_dir=runs/gspo",
            "train --config hacpo_qwen3_1.7b_4b_size algorithm.hacpo.alpha=0 run_dir=runs/no_alpha",
            "train --coordinator 127.0.0.1:1234 --processes 2 --process 0",
        ),
    ),
    "eval": VerbHelp(
        summary="measure runs, checkpoints and models: avg@k, best@k and maj@k",
        usage=(
            "eval RUN[@STEP] ... [model=DIR_OR_HUB_ID ...] [out=DIR] [key=value ...]",
            "eval --config FILE [model=DIR_OR_HUB_ID ...] [out=DIR] [key=value ...]",
        ),
        text="""\
            Of a run directory, the agents at its latest checkpoint are measured, or at RUN@STEP
            (step=N is for all that name none); of a config, its models as they are before any
            training or warm start, or those of model=... alone. Beside runs, models answer the
            problems of the first run. Keys below evaluation, task.eval and task.verifier, and
            sampling.max_rows, may differ from those of a run: evaluation.samples, .temperature,
            .top_k, .top_p, .max_new_tokens, .best_of and .majority_of decide how answers are
            drawn and counted, and evaluation.benchmarks.NAME.samples and its neighbours do so for
            one benchmark.
            Writes evaluation.json (figures with standard errors, and settings), evaluation.md (a
            table of agents and algorithms by benchmarks) and evaluation_answers.jsonl (every
            answer) into the run directory, or into out=DIR; with several subjects into a folder of
            each below out, and the table of all of them into out. A killed evaluation goes on with
            the same command; no answer is drawn twice. --quiet shows the results alone.""",
        examples=(
            "eval runs/quickstart",
            "eval runs/quickstart step=0 out=before",
            "eval runs/quickstart runs/gspo runs/gspo@0 out=compared",
            "eval runs/quickstart evaluation.samples=8 evaluation.temperature=1",
            "eval --config math_gspo model=Qwen/Qwen3-1.7B-Base out=base",
        ),
    ),
    "generate": VerbHelp(
        summary="answer prompts with models and agents of runs, side by side",
        usage=(
            "generate model=DIR_OR_HUB_ID prompt=TEXT [prompt=TEXT ...] [key=value ...]",
            "generate run=RUN_DIR agent=NAME prompt=TEXT [prompt=TEXT ...] [key=value ...]",
            "generate of=RUN[:AGENT][@STEP] ... [model=... ...] prompts=FILE [key=value ...]",
        ),
        text="""\
            model           a Hugging Face directory or hub id; may be given several times
            run, agent      a run directory and one of its agents, at its latest checkpoint
            step            another of the run's checkpoints
            of              a run, all its agents or one, at its latest checkpoint or at another:
                            RUN, RUN:AGENT, RUN@STEP or RUN:AGENT@STEP; may be given several times
            prompt          the text, as it is; may be given several times
            prompts         a file with a prompt a line, or a .jsonl file with a field prompt
            system          a system message, for models with a chat template
            chat            true demands the chat template, false ignores it
            chat_options    what names in the chat template stand for, as {enable_thinking: false}
            max_new_tokens  longest answer (256, or what the context holds)
            temperature     0 is greedy (0)
            top_k, top_p    draw from the likeliest tokens only
            samples         number of answers to each prompt (1)
            seed            of the draws (0)
            With several of or model there is a table for each prompt, a column for each. The chat
            settings are for models; agents of runs keep those of their run. Control characters in
            answers are printed as escapes.""",
        examples=(
            "generate run=runs/quickstart agent=llama-bpe prompt='12+7 is '",
            "generate of=runs/quickstart@0 of=runs/quickstart prompt='12+7 is ' prompt='30+5 is '",
            "generate of=runs/a:left@20 of=runs/b:left model=DIR prompts=questions.txt",
            "generate model=HuggingFaceTB/SmolLM2-135M-Instruct prompt='What is 3 + 4?'",
            "generate model=DIR prompt=Hello prompt=Goodbye samples=4 temperature=0.8 seed=1",
        ),
    ),
    "export": VerbHelp(
        summary="write trained agents as Hugging Face directories",
        usage=("export RUN_DIR out=DIR [agent=NAME] [step=N] [dtype=float32|bfloat16]",),
        text="""\
            Writes out/<agent> for every agent, or for one: model.safetensors (in shards of 5 GB),
            config.json, generation_config.json, the tokenizer and its chat template, so that
            transformers and vLLM load it. Agents are those of the latest checkpoint unless step=N
            names another. The run directory is enough, with the models that adapters are for:
            the task is not read.""",
        examples=(
            "export runs/quickstart out=exported",
            "export runs/quickstart out=exported agent=llama-bpe dtype=bfloat16",
        ),
    ),
    "plan": VerbHelp(
        summary="compile a run for TPUs that are not there: does it fit?",
        usage=("plan [--config FILE] --topology NAME [json=FILE] [key=value ...]",),
        text="""\
            NAME is a kind of TPU and its chips along each axis (v5e:4x4, v6e:2x4, v5p:2x2x4,
            v4:2x2x2), compiled for with the `tpu` extra and no TPU, or cpu:8, fake CPU devices.
            decode, evaluate, score and update of every agent are compiled from shapes alone: of
            a model only its config.json is read, and no task. Answers are taken to be as long as
            they may be. For each program, bytes on one device, FLOPs, what devices exchange, and
            whether it fits beside all that stays there. Exits with 1 if something does not.
            json=FILE receives the same figures.""",
        examples=(
            "plan --config hacpo_qwen3_1.7b_4b_size --topology v5e:4x4 mesh.tensor=4",
            "plan --config hacpo_qwen3_4b_llama3.2_3b_model --topology v5p:2x2x1 json=plan.json",
            "plan --topology cpu:8",
        ),
    ),
    "report": VerbHelp(
        summary="show one run, or several on top of each other, on one page",
        usage=("report RUN_DIR ... [out=DIR]",),
        text="""\
            Writes report.html, which needs no other file, and its pictures as PNG files into
            report/ of the first run, or into out=DIR: rewards, accuracy, capability ratios, own
            and cross ratios with their bounds, clipping, gate, KL, entropy, lengths, who learned
            from whom, time by phase, and sample answers side by side. Runs that differ in their
            seed alone are one curve with a band. Training does so by itself at its end.""",
        examples=(
            "report runs/quickstart",
            "report runs/seed_0 runs/seed_1 runs/gspo out=compared",
        ),
    ),
}

_PROGRAM = "python -m hacpo_jax.launch"


def help_text(verb: str | None) -> str:
    """Help on one verb, or on all of them."""
    if verb == "train":
        return f"{_verb_help(VERBS[verb])}\n\nbuilt-in configs:\n{_configs()}"
    if verb is not None:
        return _verb_help(VERBS[verb])
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:{width}}  {entry.summary}" for name, entry in VERBS.items())
    examples = "\n".join(_command(entry.examples[0]) for entry in VERBS.values())
    return (
        f"usage: {_PROGRAM} [VERB] [--config FILE] [key=value ...]\n\n"
        "Trains several different language models together with verifiable rewards.\n\n"
        f"verbs (train when none is given):\n{verbs}\n\n"
        f"examples:\n{examples}\n\n"
        f"More on a verb: {_PROGRAM} VERB --help\n"
        f"Built-in configs, those of the papers too: {_PROGRAM} train --help"
    )


def _verb_help(entry: VerbHelp) -> str:
    examples = "\n".join(map(_command, entry.examples))
    text = textwrap.indent(textwrap.dedent(entry.text), "  ")
    usage = "\n".join(f"usage: {_PROGRAM} {usage}" for usage in entry.usage)
    return f"{usage}\n\n{entry.summary}\n\n{text}\n\nexamples:\n{examples}"


def _configs() -> str:
    known = built_in_configs()
    width = max(map(len, known))
    return "\n".join(f"  {name:{width}}  {what}" for name, what in known.items())


def _command(words: str) -> str:
    return f"  {_PROGRAM} {words}".rstrip()
