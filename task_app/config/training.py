"""The sections of a TOML that say how a model is made and trained; one frozen model each, as in models.py.

They hold shapes and ranges. What a combination of them means is the trainer's to say (`train/plan.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from task_app.config.section import PATH_OR_NAME, Section
from task_app.config.step_rewards import StepRewardSettings

__all__ = [
    "CreditSection",
    "GuardsSection",
    "ModelSection",
    "ObjectiveSection",
    "SamplerSection",
    "SftSection",
    "TeacherSection",
    "TrackingSection",
    "TrainingSection",
]


class ModelSection(Section):
    """The model that is trained: with a `path` a language model of `transformers`, else the embedded policy, a small
    Qwen3-architecture model made from scratch (the keys from `hidden_size` to `max_positions` are its shape)."""

    path: str = Field(default="", json_schema_extra=PATH_OR_NAME)
    """Folder or name of a causal language model; empty makes the embedded policy; `./` and `../` are paths."""
    allow_download: bool = False
    """Fetch a model that is given by name; otherwise only what is on this machine is used."""
    lora_rank: int = Field(default=0, ge=0, le=1024)
    """Rank of LoRA adapters, which alone are then trained; 0 trains all weights."""
    lora_alpha: float = Field(default=32.0, gt=0, le=10_000)
    """Adapters count alpha / rank."""
    lora_targets: list[str] = Field(default_factory=list)
    """Names of the layers that get adapters; empty means every linear layer but the output head."""
    gradient_checkpointing: bool = False
    """Compute each block again in the backward pass: less memory, about a third more time."""
    attention: Literal["sdpa", "eager", "flash_attention_2", "flex_attention"] = "sdpa"
    """Which attention of `transformers` a model with a path uses."""
    packing: bool = True
    """Put several rows of a model with a path into one sequence; false pads each row instead."""
    sampler_rows: int = Field(default=64, ge=1, le=65_536)
    """Answers a model with a path samples at once; changes memory and speed, never an answer."""
    max_new_tokens: int = Field(default=256, ge=1, le=131_072)
    """Most tokens of an answer of a model with a path; a longer one is cut and does not parse."""
    max_prompt_tokens: int = Field(default=4096, ge=16, le=1_000_000)
    """Most tokens of a prompt; an episode whose prompt outgrows it is truncated."""
    history: str = Field(default="none", pattern=r"^(none|full|last:[1-9]\d{0,3})$")
    """Earlier decisions a prompt repeats as chat turns: none | last:k | full."""
    keep_thinking: bool = True
    """Whether repeated answers keep their <think> part; without it decisions do not merge into one row."""
    template_options: dict[str, Any] = Field(default_factory=dict)
    """Variables for the model's chat template, such as enable_thinking."""
    hidden_size: int = Field(default=128, ge=8, le=8192)
    """Width of the residual stream."""
    layers: int = Field(default=2, ge=1, le=128)
    """Number of transformer blocks."""
    heads: int = Field(default=4, ge=1, le=128)
    """Attention heads; must divide `hidden_size`."""
    kv_heads: int = Field(default=4, ge=1, le=128)
    """Key/value heads; must divide `heads`."""
    intermediate_size: int = Field(default=256, ge=8, le=65_536)
    """Width of the feed-forward layer."""
    max_positions: int = Field(default=1024, ge=64, le=1_000_000)
    """Longest row of the embedded policy in tokens."""
    device: str = "cpu"
    """cpu | cuda | cuda:N | mps."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type the model computes in; weights and optimiser states are kept in float32."""
    threads: int = Field(default=1, ge=1, le=256)
    """CPU threads torch may use; part of a run's identity, since sums depend on it."""

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide hidden_size ({self.hidden_size})")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads ({self.kv_heads}) must divide heads ({self.heads})")
        return self


class SamplerSection(Section):
    """What samples the answers training learns from: this process, or a vLLM server beside it."""

    kind: Literal["embedded", "vllm"] = "embedded"
    """embedded: the trained model itself, in this process | vllm: a server, for a model with a path."""
    base_url: str = "http://127.0.0.1:8000"
    """vllm: the server's root address, without /v1."""
    api_key_env: str = ""
    """vllm: the variable that holds the server's key; empty sends none."""
    handover: Path | None = None
    """vllm: folder for the weights handed over, which the server sees at the same path; run_dir/handover by default."""
    timeout_s: float = Field(default=120.0, gt=0, le=7200)
    """vllm: seconds one answer may take, all tries together."""
    handover_timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    """vllm: seconds the server may take to load new weights."""
    max_mismatch: float = Field(default=0.1, gt=0, le=10)
    """vllm: largest mean difference, in nats per token, between the server's log-probabilities and the trainer's."""
    max_staleness: int = Field(default=0, ge=0, le=1)
    """vllm: 1 plays an update's episodes while the one before is learned, so with weights one update older."""

    @field_validator("base_url")
    @classmethod
    def _root_of_a_server(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("an http:// or https:// address is needed, such as http://127.0.0.1:8000")
        if parts.path.rstrip("/").endswith("/v1"):
            raise ValueError("the server's root is needed, without /v1: weights are handed over outside of it")
        return url


class CreditSection(Section):
    """How reward vectors become advantages (registry in `credit/`)."""

    estimator: str = "rtg_alive_loo"
    """return_loo | return_std | rtg_alive_loo; formulas in docs/event_rewards.md."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount per decision in the return-to-go."""
    scale: Literal["none", "group_rms", "batch_rms"] = "none"
    """Divide advantages by their root mean square, within each group or over the batch."""
    singleton: Literal["running", "zero", "raw"] = "running"
    """Baseline for a lone survivor of its group: running mean of earlier batches, itself, or 0."""


class ObjectiveSection(Section):
    """The clipped policy-gradient objective."""

    ratio: Literal["token", "gspo"] = "token"
    """One importance ratio per token, or per decision (gspo), which has a clip of its own."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """Lower clip of the token ratio: 1 − clip_low."""
    clip_high: float = Field(default=0.28, ge=0, le=10)
    """Upper clip of the token ratio: 1 + clip_high."""
    gspo_clip_low: float = Field(default=3e-4, ge=0, lt=1)
    """Lower clip of the decision ratio with `ratio = "gspo"`."""
    gspo_clip_high: float = Field(default=4e-4, ge=0, le=10)
    """Upper clip of the decision ratio with `ratio = "gspo"`."""
    sampler_weight_cap: float = Field(default=2.0, ge=1, le=100)
    """Cap of the detached token weight π_old / π_sampler."""
    normaliser: Literal["episodes", "tokens"] = "episodes"
    """Divide the summed loss by episodes × normaliser_constant, or by the tokens trained on."""
    normaliser_constant: float = Field(default=100.0, gt=0)
    """Tokens an episode is counted as, whatever its length."""
    kl_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the KL penalty (k2) to the initial policy; 0 keeps no reference model."""


class GuardsSection(Section):
    """What a running training watches itself for; nothing here changes an update."""

    collapse_spread: float = Field(default=0.01, ge=0)
    """Mean standard deviation of returns inside groups below which an update counts as collapsed."""
    collapse_warn_after: int = Field(default=3, ge=0, le=1_000_000)
    """Collapsed updates in a row that warn; 0 never warns."""
    collapse_stop_after: int = Field(default=10, ge=0, le=1_000_000)
    """Collapsed updates in a row that stop the run with status collapsed; 0 never stops."""
    slope_window: int = Field(default=10, ge=4, le=10_000)
    """Updates over which the slope of each reward layer is taken."""
    entropy_floor: float = Field(default=0.1, ge=0)
    """Nats per chosen token below which the policy's entropy warns, from the first update on."""
    window_entropy_floor: float = Field(default=0.1, ge=0, le=1)
    """Entropy of the actions in windows of 6 to 12, as a share of the most possible, below which it warns."""
    cycle_share: float = Field(default=0.5, gt=0, le=1)
    """Share of episodes that mostly repeat one short cycle of actions from which it warns."""
    top_actions: int = Field(default=8, ge=1, le=1000)
    """Actions the log names with their shares, the commonest first."""
    heartbeat_max_age_s: float = Field(default=600.0, gt=0)
    """Seconds without a heartbeat after which `train --status` calls a run dead."""

    @model_validator(mode="after")
    def _warns_before_it_stops(self) -> Self:
        if self.collapse_stop_after and self.collapse_warn_after > self.collapse_stop_after:
            raise ValueError(
                f"collapse_warn_after ({self.collapse_warn_after}) must not be above collapse_stop_after "
                f"({self.collapse_stop_after})"
            )
        return self


class TrackingSection(Section):
    """Where a run's numbers go besides metrics.jsonl, which is always written."""

    wandb: bool = False
    """Also log to Weights & Biases (extra `wandb`)."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """offline keeps the run on this machine until `wandb sync`; online sends it while it runs."""
    trackio: bool = False
    """Also log to a local Trackio project (extra `trackio`)."""
    project: str = Field(default="task-app", min_length=1)
    """The project's name in both."""


class TrainingSection(StepRewardSettings):
    """The GRPO loop."""

    updates: int = Field(default=20, ge=1, le=1_000_000)
    """Policy updates to make."""
    groups_per_update: int = Field(default=4, ge=1, le=4096)
    """Worlds (groups) played for each update."""
    optimizer_steps_per_update: int = Field(default=1, ge=1, le=64)
    """Optimiser steps on each update's batch; 1 is on-policy."""
    learning_rate: float = Field(default=2e-3, gt=0, le=1)
    """AdamW learning rate."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """AdamW weight decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm."""
    warmup_updates: int = Field(default=0, ge=0, le=1_000_000)
    """Updates over which the learning rate rises to its full value."""
    schedule: Literal["constant", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up; `cosine` falls to 0 at the last update."""
    micro_batch_tokens: int = Field(default=2_048, ge=64, le=100_000_000)
    """Tokens per forward pass of a process, padding included; changes memory and speed, never the gradient. Few of
    them stay in a CPU's cache (a small model is then half as fast again); a GPU wants many."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Updates between checkpoints; the last update and every evaluated one are always saved."""
    keep_checkpoints: int = Field(default=0, ge=0, le=1_000_000)
    """Newest checkpoints that are kept, besides the best by held-out score; 0 keeps all."""
    rank_timeout_s: float = Field(default=1800.0, gt=0, le=86_400)
    """Seconds that processes started by `torchrun` wait for one another within a step before the run fails."""
    allow_changed: list[str] = Field(default_factory=list)
    """Keys that may differ from the run that is resumed, such as "training.learning_rate"; noted in its log."""
    init_from: Path | None = None
    """Checkpoint or run folder whose weights training starts from; without one they are fresh."""
    run_dir: Path = Path("runs/crafter_rl")
    """Folder of config, metrics, checkpoints and report; running the same command again resumes it."""
    hypothesis: str = ""
    """What the run is to find out; kept in the ledger."""
    expectation: str = ""
    """The numbers expected of it; kept in the ledger beside the result."""
    note: str = ""
    """Why more than one setting that affects rewards differs from the previous run's."""
    credit: CreditSection = CreditSection()
    objective: ObjectiveSection = ObjectiveSection()
    guards: GuardsSection = GuardsSection()


class TeacherSection(Section):
    """A scripted player to imitate instead of a dataset. It plays first; then, in rounds, the policy plays and the
    teacher says what it would have done there (DAgger), which joins the data."""

    name: str = ""
    """Scripted player of the task app, such as expert; empty learns from `sft.dataset`."""
    episodes: int = Field(default=300, ge=1, le=1_000_000)
    """Episodes the teacher plays itself, each in a world of its own out of `rollout.seeds`."""
    steps: int = Field(default=120, ge=1, le=1_000_000)
    """Optimiser steps on these before the first round."""
    rounds: int = Field(default=4, ge=0, le=10_000)
    """Rounds in which the policy plays and is corrected; 0 learns from the teacher's own play alone."""
    round_episodes: int = Field(default=100, ge=1, le=1_000_000)
    """Episodes the policy plays in each round, in further worlds."""
    round_steps: int = Field(default=140, ge=1, le=1_000_000)
    """Optimiser steps after each round, on all data so far."""


class SftSection(Section):
    """Supervised fine-tuning, of the answer's tokens alone: on exported decisions, or on a teacher's."""

    dataset: Path | None = None
    """JSON lines as `traces export-sft` writes them; `train --dataset` sets it. Not beside a teacher."""
    validation: Path | None = None
    """JSON lines the loss is watched on; without it there is no early stop."""
    epochs: int = Field(default=2, ge=1, le=10_000)
    """Passes over a dataset."""
    batch_rows: int = Field(default=64, ge=1, le=65_536)
    """Decisions of one optimiser step."""
    learning_rate: float = Field(default=2e-3, gt=0, le=1)
    """AdamW learning rate; it falls to 0 as half a cosine."""
    warmup_steps: int = Field(default=20, ge=0, le=1_000_000)
    """Steps over which the learning rate rises to its full value."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """AdamW weight decay."""
    validate_every: int = Field(default=100, ge=1, le=1_000_000)
    """Steps between looks at the validation loss, and between checkpoints."""
    patience: int = Field(default=3, ge=1, le=1_000)
    """Looks without a lower validation loss after which training stops; the best weights are kept."""
    run_dir: Path = Path("runs/crafter_sft")
    """Folder of config, metrics and checkpoints; running the same command again resumes it."""
    teacher: TeacherSection = TeacherSection()
