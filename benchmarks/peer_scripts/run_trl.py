"""TRL's side of one row: DIR/trl/bin/python benchmarks/peer_scripts/run_trl.py ROW SHAPE."""

import os
import random
import tempfile
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
import transformers
import trl
import work
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
)

_MOST_STEPS = 1000


def main() -> None:
    given = work.arguments(__doc__)
    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    report = _ROWS[given.row](given)
    versions = f"TRL {trl.__version__}, torch {torch.__version__}"
    work.tell({"versions": f"{versions}, transformers {transformers.__version__}", **report})


def make_model(shape: work.Shape) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return Qwen3ForCausalLM(config).float()


def make_tokenizer(shape: work.Shape) -> PreTrainedTokenizerFast:
    """Each id is a word; end and filler are outside of the model's vocabulary."""
    words = [f"w{i}" for i in range(shape.vocab)] + ["<end>", "<fill>"]
    vocab = {word: id_ for id_, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", pad_token="<fill>", padding_side="left"
    )


class Answering:
    """Answers of a fresh model by `generate`, without log-probs: returning them takes the scores
    of all tokens of the vocabulary."""

    def __init__(self, shape: work.Shape, batch: work.Batch):
        self.batch, self.model = batch, make_model(shape).eval()
        self.ids = torch.randint(0, shape.vocab, (batch.prompts, batch.prompt))

    def __call__(self, new: int | None = None) -> None:
        batch, count = self.batch, new or self.batch.new
        config = GenerationConfig(
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=True,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            num_return_sequences=batch.samples,
            eos_token_id=None,
            pad_token_id=0,
        )
        with torch.no_grad():
            found = self.model.generate(
                input_ids=self.ids,
                attention_mask=torch.ones_like(self.ids),
                generation_config=config,
            )
        assert tuple(found.shape) == (batch.rows, batch.prompt + count)


def decode(given: work.Arguments) -> dict[str, Any]:
    draw = Answering(given.shape, work.DECODE)
    draw()
    draw(1)
    return {"whole": given.timed(draw), "first": given.timed(lambda: draw(1))}


def prompts(given: work.Arguments) -> dict[str, Any]:
    draw = Answering(given.shape, work.PROMPTS)
    draw()
    return {"whole": given.timed(draw)}


def scoring(given: work.Arguments) -> dict[str, Any]:
    batch, model = work.STEP, make_model(given.shape).eval()
    ids = torch.randint(0, given.shape.vocab, (batch.rows, batch.prompt + batch.new))
    answers = ids[:, -batch.new :, None]

    def score() -> None:
        with torch.no_grad():
            logits = model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                logits_to_keep=batch.new + 1,
                use_cache=False,
            ).logits[:, :-1]
            logits.gather(-1, answers)[..., 0] - logits.logsumexp(-1)

    score()
    return {"scoring": given.timed(score)}


def reward(completions: list[str], **_) -> list[float]:
    """About half of all answers get 1."""
    return [float(sum(int(word[1:]) for word in text.split()) % 2) for text in completions]


class Steps(TrainerCallback):
    """Times each step, two of which warm up, and ends the training when enough of them count."""

    def __init__(self, given: work.Arguments):
        self.given, self.watch, self.done = given, None, 0
        self.found: list[dict[str, float]] = []

    def on_step_begin(self, args, state, control, **_) -> None:
        # Answers are drawn before this is called: a step lasts from one end to the next.
        if self.watch is None:
            self.watch = work.Watch().__enter__()

    def on_step_end(self, args, state, control, **_) -> None:
        assert self.watch is not None
        self.watch.__exit__()
        self.done += 1
        if self.done > 2:
            self.found.append(self.watch.found())
        control.should_training_stop = self.given.enough(self.found)
        self.watch = work.Watch().__enter__()


def step(given: work.Arguments) -> dict[str, Any]:
    batch, shape, words = work.STEP, given.shape, random.Random(0)
    texts = [
        " ".join(f"w{words.randrange(shape.vocab)}" for _ in range(batch.prompt))
        for _ in range(batch.prompts)
    ]
    with tempfile.TemporaryDirectory() as directory:
        # The reference model is loaded by the policy's name.
        make_model(shape).save_pretrained(directory)
        make_tokenizer(shape).save_pretrained(directory)
        config = trl.GRPOConfig(
            output_dir=os.path.join(directory, "out"),
            use_cpu=True,
            bf16=False,
            fp16=False,
            per_device_train_batch_size=batch.rows,
            gradient_accumulation_steps=1,
            gradient_checkpointing=False,
            num_generations=batch.samples,
            num_iterations=1,
            beta=work.KL_COEF,
            epsilon=work.CLIP,
            loss_type="grpo",
            max_completion_length=batch.new,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            learning_rate=work.LEARNING_RATE,
            max_steps=_MOST_STEPS,
            logging_steps=_MOST_STEPS,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        steps = Steps(given)
        trainer = trl.GRPOTrainer(
            model=Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=make_tokenizer(shape),
            callbacks=[steps],
        )
        assert trainer.ref_model is not None
        torch.set_num_threads(os.cpu_count() or 1)
        trainer.train()
    return {"step": given.best(steps.found), "peak_mib": work.peak_mib()}


_ROWS = {"decode": decode, "step": step, "scoring": scoring, "prompts": prompts}

if __name__ == "__main__":
    main()
