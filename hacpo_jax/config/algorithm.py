"""Config of the objectives. Names and defaults follow `hacpo_jax.objectives`."""

from typing import Literal

from pydantic import Field

from hacpo_jax.config.base import Section

SGT_COEF = 0.3
"""Weight of the rescue term where `sgt` names none."""


class Capability(Section):
    """Window over which agents are compared (HACPO §3.1).

    Attributes:
      window: steps in the mean, K.
      warmup_steps: steps in which all agents count as equal (omega = 1).
      floor: least capability, so that a ratio exists.
      ratio_min: least omega.
      ratio_max: greatest omega.
    """

    window: int = Field(default=5, ge=1)
    warmup_steps: int = Field(default=0, ge=0)
    floor: float = Field(default=1e-8, gt=0)
    ratio_min: float = Field(default=0.1, gt=0, le=1)
    ratio_max: float = Field(default=10.0, ge=1)


class Hacpo(Section):
    """HACPO (arXiv 2603.02604); each mechanism can be switched off alone.

    Attributes:
      alpha: exponent of the exponential importance sampling (eq. 12); 0 switches it off.
      clip_low: lower bound of a cross ratio at the first update of a step (eq. 13). It is
        1 - delta in the text; the paper's table lists 0.8 or 0.9 under the name delta, and its
        text says delta = 0.2: both mean a lower bound of 0.8.
      clip_step: how much the lower bound rises with each update of a step; 0 is not stepwise.
      clip_cross: clip cross ratios at all.
      eps_low: own ratios are clipped at 1 - eps_low.
      eps_high: own ratios are clipped at 1 + eps_high.
      cross_baseline: whose capability baseline a peer's answer is measured against.
      capability_baseline: use the capability-aware baseline (eq. 6) instead of the joint mean.
      discrepancy: weigh peers' advantages by relative capability (eq. 10).
      reduction: a mean per `sources`, added up (eq. 4), or one mean over all `sequences`.
    """

    alpha: float = Field(default=1.0, ge=0)
    clip_low: float = Field(default=0.8, ge=0, le=1)
    clip_step: float = Field(default=0.025, ge=0)
    clip_cross: bool = True
    eps_low: float = Field(default=3e-4, ge=0)
    eps_high: float = Field(default=4e-4, ge=0)
    cross_baseline: Literal["learner", "source"] = "learner"
    capability_baseline: bool = True
    discrepancy: bool = True
    reduction: Literal["sources", "sequences"] = "sources"


class Gspo(Section):
    """GSPO (arXiv 2507.18071); `naive` sharing uses the same clip for every agent's answers.

    Attributes:
      eps_low: sequence ratios are clipped at 1 - eps_low.
      eps_high: sequence ratios are clipped at 1 + eps_high.
      scale: divide advantages by the group's `std`, or by `none`.
    """

    eps_low: float = Field(default=3e-4, ge=0)
    eps_high: float = Field(default=4e-4, ge=0)
    scale: Literal["std", "none"] = "std"


class Grpo(Section):
    """GRPO (arXiv 2402.03300); `scale: none` is Dr. GRPO (arXiv 2503.20783).

    Attributes:
      eps_low: token ratios are clipped at 1 - eps_low.
      eps_high: token ratios are clipped at 1 + eps_high (clip-higher, DAPO).
      scale: divide advantages by the group's `std`, or by `none`.
      reduction: mean over all `tokens`, or over `sequences` of their token means.
    """

    eps_low: float = Field(default=0.2, ge=0)
    eps_high: float = Field(default=0.28, ge=0)
    scale: Literal["std", "none"] = "std"
    reduction: Literal["tokens", "sequences"] = "tokens"


class Prp(Section):
    """PRP of Mutual RL (arXiv 2605.07244): peers' answers join the learner's group. The clip, the
    scale and the reduction are those of `grpo`.

    Attributes:
      denominator: what a peer's token ratio starts from: the learner's own policy before the step
        (`learner_snapshot`), or the peer's log-probs aligned to the learner's tokens (`thl_peer`).
      advantage: of a peer's answer: recomputed on the `pooled` group of all agents, or `carried`
        over from the peer's own group.
      granularity: of the alignment: cut the text at `word`s, or at every common `token` boundary.
    """

    denominator: Literal["learner_snapshot", "thl_peer"] = "learner_snapshot"
    advantage: Literal["pooled", "carried"] = "pooled"
    granularity: Literal["word", "token"] = "word"


class Rescue(Section):
    """Success-gated transfer of Mutual RL (arXiv 2605.07244), on top of any objective.

    Where an agent has no right answer to a prompt and a peer has one, the peer's is learned by its
    negative log-prob per token.

    Attributes:
      coef: weight of that term; 0 has none. null is 0.3 for `sgt` and 0 for all others.
      pick: which right answers of peers: one at `random`, the `shortest` in the learner's tokens,
        or `all`, each with an equal share of its prompt's weight.
    """

    coef: float | None = Field(default=None, ge=0)
    pick: Literal["random", "shortest", "all"] = "random"


class Algorithm(Section):
    """What is learned from the answers.

    `xgrpo`, `prp` and `sgt` are the regimes of Mutual RL: GRPO on own answers with advantages
    pooled over all agents; GRPO on everybody's answers; GRPO with `rescue`.

    Attributes:
      name: which objective; the sections below keep the settings of each.
      max_reward: the largest reward the task can give.
      kl_coef: weight of the KL penalty to the frozen start, on own answers only; 0 keeps no copy.
      entropy_coef: weight of an entropy bonus on own answers.
      minibatch_order: `own_first` or `mixed` (whole joint groups in a shuffled order).
      eos_in_ratio: peers' answers keep the end token in both means.
      max_peer_tokens: a peer's answer that is longer in the learner's tokens is left out and
        counted; null takes what the learner's context holds.
    """

    name: Literal["hacpo", "gspo", "grpo", "naive", "xgrpo", "prp", "sgt"] = "hacpo"
    hacpo: Hacpo = Hacpo()
    gspo: Gspo = Gspo()
    grpo: Grpo = Grpo()
    prp: Prp = Prp()
    rescue: Rescue = Rescue()
    capability: Capability = Capability()
    max_reward: float = Field(default=1.0, gt=0)
    kl_coef: float = Field(default=0.0, ge=0)
    entropy_coef: float = Field(default=0.0, ge=0)
    minibatch_order: Literal["own_first", "mixed"] = "own_first"
    eos_in_ratio: bool = True
    max_peer_tokens: int | None = Field(default=None, ge=1)

    @property
    def shares_answers(self) -> bool:
        """Whether learners train on their peers' answers too, besides any rescue."""
        return self.name in ("hacpo", "naive", "prp")

    @property
    def rescue_coef(self) -> float:
        """Weight of the rescue term."""
        if self.rescue.coef is not None:
            return self.rescue.coef
        return SGT_COEF if self.name == "sgt" else 0.0

    @property
    def needs_peers(self) -> bool:
        """Whether a learner without peers would have nothing to learn this way."""
        return self.shares_answers or self.name == "xgrpo" or self.rescue_coef > 0
