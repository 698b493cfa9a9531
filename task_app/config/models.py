"""One frozen model per TOML section; every field has one sentence, its default and its range.

A `Config` is the same for every command; each uses the sections it needs. Sections of the older job
files are known and kept whole in `forwarded`, for a training backend.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from task_app.config.step_rewards import StepRewardSettings, merge_sections, resolve
from task_app.core.types import StepRewardFlags

__all__ = [
    "FORWARDED_SECTIONS",
    "PATH_OR_NAME",
    "Config",
    "CreditSection",
    "EvalSection",
    "GuardsSection",
    "ModelSection",
    "ObjectiveSection",
    "PolicySection",
    "PriceSection",
    "RolloutSection",
    "Section",
    "SeedRange",
    "ServerSection",
    "SftSection",
    "TaskSection",
    "TrackingSection",
    "TrainingSection",
]

FORWARDED_SECTIONS: tuple[str, ...] = (
    "algorithm", "services", "compute", "topology", "vllm", "reference", "evaluation", "job", "data",
    "hyperparameters",
)  # fmt: skip
"""Sections of the job files existing users have; known, forwarded to a backend key for key."""

PATH_OR_NAME: dict[str, Any] = {"resolved": "with a leading dot"}
"""Marks a text that is a path, relative to its file, when it begins with a dot, and a name otherwise."""

DEFAULT_TRACE_DB = "traces/task_app.db"
EVAL_SEED_START = 1_000_000
MAX_DECISIONS = 10_000


class Section(BaseModel):
    """Base of all sections: frozen, strict types, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class SeedRange(BaseModel):
    """The seeds `start` to `stop`, the end left out; written `"A:B"`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    start: int = Field(ge=0)
    stop: int = Field(le=2**31 - 1)

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.start >= self.stop:
            raise ValueError(f"seeds {str(self)!r} is empty; start must be below stop")
        return self

    @classmethod
    def parse(cls, text: str) -> SeedRange:
        """Read `"A:B"` or one seed `"A"`. Raises ValueError for anything else or an empty range."""
        match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
        if not match:
            raise ValueError(f"seeds must be 'A:B' (the end left out) or one seed, got {text!r}")
        start = int(match[1])
        stop = int(match[2]) if match[2] else start + 1
        if not start < stop <= 2**31 - 1:
            raise ValueError(f"seeds {text!r} is empty or beyond 2**31 - 1; A must be below B")
        return cls(start=start, stop=stop)

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"

    def __len__(self) -> int:
        return self.stop - self.start

    def seeds(self) -> range:
        """The seeds in order."""
        return range(self.start, self.stop)


def _seed_range(value: Any) -> Any:
    return SeedRange.parse(value) if isinstance(value, str) else value


def _strict_json(section: dict[str, Any]) -> dict[str, Any]:
    """Refuse numbers that no record can hold; dates are allowed and become text."""
    try:
        json.dumps(section, allow_nan=False, default=str)
    except ValueError as error:
        raise ValueError("no NaN or infinity is allowed") from error
    return section


class TaskSection(Section):
    """Which task app is played, and its options (checked against the app's own model at wiring)."""

    app: str = "crafter"
    options: dict[str, Any] = Field(default_factory=dict)


class PolicySection(Section):
    """Who decides. Keys below `name` and `checkpoint` are for `chat`, an OpenAI-compatible endpoint."""

    name: str = "random"
    """random | expert | replay | chat | embedded; a task app may know further scripted ones."""
    checkpoint: Path | None = None
    """embedded: the checkpoint folder to play with; without one, freshly initialised weights."""
    replay_db: Path | None = None
    """replay: the database whose executed actions are played again, matched by seed and member."""
    model: str = ""
    """chat: the model's name at the endpoint."""
    inference_url: str = ""
    """chat: the endpoint's base URL, such as https://api.openai.com/v1; a query string is kept."""
    api_key_env: str = ""
    """chat: the variable that holds the key; empty picks OPENAI_API_KEY or GROQ_API_KEY by host."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Sampling temperature; the embedded policy needs more than 0. Evaluations use `eval.temperature`."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """chat: nucleus sampling; 1 samples from the whole distribution."""
    max_tokens: int = Field(default=512, ge=1, le=131_072)
    """chat: most tokens an answer may have."""
    timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """chat: seconds one request may take."""
    deadline_s: float = Field(default=180.0, gt=0, le=7200)
    """chat: seconds all tries of one decision may take together."""
    tries: int = Field(default=3, ge=1, le=10)
    """chat: how often one decision's request is tried."""


class RolloutSection(StepRewardSettings):
    """How episodes are made."""

    seeds: SeedRange = SeedRange(start=0, stop=8)
    """World seeds, "A:B" with B left out; training draws its worlds from this range in order."""
    group_size: int = Field(default=8, ge=1, le=1024)
    """G, the episodes played of each seed; below 8 an advantage is mostly noise, and training warns."""
    max_decisions: int = Field(default=20, ge=1, le=MAX_DECISIONS)
    """The turn limit: decisions after which an episode is truncated."""
    concurrency: int = Field(default=8, ge=1, le=1024)
    """Episodes played at once (embedded: all of an update play together)."""
    max_parse_failures: int = Field(default=0, ge=0, le=MAX_DECISIONS)
    """Unreadable answers in a row that truncate an episode; 0 is no limit."""
    infra_tries: int = Field(default=3, ge=1, le=10)
    """How often a decision is resumed after an infrastructure fault before its group is dropped."""
    trace_db: Path = Path(DEFAULT_TRACE_DB)
    """The SQLite database episodes are written to."""

    _parse_seeds = field_validator("seeds", mode="before")(_seed_range)


class ServerSection(Section):
    """The hosted task app."""

    host: str = "127.0.0.1"
    """The address to listen on; beyond loopback a key must be set."""
    port: int = Field(default=8010, ge=0, le=65_535)
    """The port; 0 lets the system choose."""
    api_key_env: str = "ENVIRONMENT_API_KEY"
    """The variable that holds the key clients must send."""
    max_concurrent_rollouts: int = Field(default=8, ge=1, le=256)
    """Rollouts running at once; further ones wait."""
    max_waiting_rollouts: int = Field(default=64, ge=0, le=10_000)
    """Rollouts that may wait; more are refused with 429 and Retry-After."""
    max_body_bytes: int = Field(default=1_000_000, ge=1_000, le=100_000_000)
    """The largest request body; larger ones are refused with 413."""
    max_decisions: int = Field(default=1_000, ge=1, le=MAX_DECISIONS)
    """The largest turn limit a request may ask for."""
    max_time_s: float = Field(default=600.0, gt=0, le=86_400)
    """The longest a rollout may take, in seconds; a request that asks for longer is held to it."""
    trace_dir: Path | None = None
    """Folder that gets each episode's SFT rows as a file (docs/sft_export.md); without one, none are written."""


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
    micro_batch_tokens: int = Field(default=12_288, ge=64, le=100_000_000)
    """Tokens per forward pass, padding included; changes memory and speed, never the gradient."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Updates between checkpoints; the last update and every evaluated one are always saved."""
    keep_checkpoints: int = Field(default=0, ge=0, le=1_000_000)
    """Newest checkpoints that are kept, besides the best by held-out score; 0 keeps all."""
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


class SftSection(Section):
    """Supervised fine-tuning on exported decisions, of the answer's tokens alone."""

    dataset: Path | None = None
    """JSON lines as `traces export-sft` writes them; `train --dataset` sets it."""
    validation: Path | None = None
    """JSON lines the loss is watched on; without it there is no early stop."""
    epochs: int = Field(default=2, ge=1, le=10_000)
    """Passes over the data."""
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


class EvalSection(Section):
    """Evaluation on held-out worlds, before and after training and in between."""

    seeds: SeedRange = SeedRange(start=EVAL_SEED_START, stop=EVAL_SEED_START + 64)
    """Held-out world seeds, never among the training seeds; one episode each."""
    every: int = Field(default=0, ge=0)
    """Updates between evaluations; 0 evaluates only before and after."""
    sampling_seed: int = Field(default=0, ge=0)
    """Seed of the sampling noise, so that two policies meet the same draws."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Sampling temperature of every evaluation, whatever the policy is trained or rolled out at."""
    env_steps: int = Field(default=0, ge=0, le=MAX_DECISIONS)
    """Environment steps of a second evaluation whose episodes end when these are used; 0 makes none."""
    env_steps_max_decisions: int = Field(default=0, ge=0, le=MAX_DECISIONS)
    """Turn limit of that second evaluation, which observations may show; 0 is as many as steps."""

    _parse_seeds = field_validator("seeds", mode="before")(_seed_range)

    @field_validator("seeds")
    @classmethod
    def _held_out(cls, seeds: SeedRange) -> SeedRange:
        if seeds.start < EVAL_SEED_START:
            raise ValueError(
                f"held-out worlds have seeds of {EVAL_SEED_START} and more, so that no training range reaches them"
            )
        return seeds


class PriceSection(Section):
    """What the calls of one model cost, in any one currency; at least one key must be given."""

    input: float = Field(default=0.0, ge=0)
    """Per million prompt tokens."""
    output: float = Field(default=0.0, ge=0)
    """Per million completion tokens."""
    gpu_hour: float = Field(default=0.0, ge=0)
    """Per hour of latency, added up over calls: for a model that is rented by time."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("a price needs at least one of input, output, gpu_hour")
        return self


class Config(Section):
    """A whole TOML file, defaults filled in. The flags in force are `step_rewards`."""

    type: Literal["rl", "sft", "eval", "server", "rollout"] = "rl"
    """What the file is for; a command refuses a file of another kind only where it could do harm."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of initial weights and sampling noise."""
    task: TaskSection = TaskSection()
    policy: PolicySection = PolicySection()
    rollout: RolloutSection = RolloutSection()
    server: ServerSection = ServerSection()
    model: ModelSection = ModelSection()
    training: TrainingSection = TrainingSection()
    sft: SftSection = SftSection()
    eval: EvalSection = EvalSection()
    tracking: TrackingSection = TrackingSection()
    prices: dict[str, PriceSection] = Field(default_factory=dict)
    """What calls cost, by model name; `traces analyze` turns tokens and latency into costs with it."""
    forwarded: dict[str, Annotated[dict[str, Any], AfterValidator(_strict_json)]] = Field(default_factory=dict)
    """Sections of older job files, as written; local training does not use them."""

    @property
    def step_rewards(self) -> StepRewardFlags:
        """The step-reward flags in force, from [training] and [rollout]."""
        return resolve(merge_sections(self.training, self.rollout))
