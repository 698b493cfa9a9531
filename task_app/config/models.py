"""One frozen model per TOML section; every field has one sentence, its default and its range. Those about making and
training a model are in training.py.

A `Config` is the same for every command; each uses the sections it needs. Sections of the older job
files are known and kept whole in `forwarded`, for a training backend.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from task_app.config.jobs import JobsSection
from task_app.config.modal import ModalSection
from task_app.config.scale import ScaleSection
from task_app.config.section import Section
from task_app.config.step_rewards import StepRewardSettings, merge_sections, resolve
from task_app.config.training import ModelSection, SamplerSection, SftSection, TrackingSection, TrainingSection
from task_app.core.types import StepRewardFlags

__all__ = [
    "FORWARDED_SECTIONS",
    "Config",
    "EvalSection",
    "PolicySection",
    "PriceSection",
    "RolloutSection",
    "SeedRange",
    "ServerSection",
    "TaskSection",
]

FORWARDED_SECTIONS: tuple[str, ...] = (
    "algorithm", "services", "compute", "topology", "vllm", "reference", "evaluation", "job", "data",
    "hyperparameters",
)  # fmt: skip
"""Sections of the job files existing users have; known, forwarded to a backend key for key."""

DEFAULT_TRACE_DB = "traces/task_app.db"
EVAL_SEED_START = 1_000_000
MAX_DECISIONS = 10_000


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
    reasoning: Literal["drop", "keep"] = "drop"
    """chat: reasoning that a model tells apart from its text: drop | keep, before the text in <think> tags."""


class RolloutSection(StepRewardSettings):
    """How episodes are made."""

    seeds: SeedRange = SeedRange(start=0, stop=8)
    """World seeds, "A:B" with B left out; training draws its worlds from this range in order."""
    group_size: int = Field(default=8, ge=1, le=1024)
    """G, the episodes played of each seed; below 8 an advantage is mostly noise, and training warns."""
    max_decisions: int = Field(default=20, ge=1, le=MAX_DECISIONS)
    """The turn limit: decisions after which an episode is truncated."""
    concurrency: int = Field(default=8, ge=1, le=1024)
    """Episodes played at once; the embedded policy plays all of an update together, unless a server samples it."""
    max_parse_failures: int = Field(default=0, ge=0, le=MAX_DECISIONS)
    """Unreadable answers in a row that truncate an episode; 0 is no limit."""
    infra_tries: int = Field(default=3, ge=1, le=10)
    """How often a decision is resumed after an infrastructure fault before its group is dropped."""
    trace_db: Path = Path(DEFAULT_TRACE_DB)
    """The SQLite database episodes are written to."""
    task_url: str = ""
    """train: address of a served task app that plays the episodes; empty plays them in this process."""
    task_timeout_s: float = Field(default=660.0, gt=0, le=86_400)
    """task_url: seconds one rollout there may take, waiting while the app is busy included."""
    policy_host: str = "127.0.0.1"
    """task_url: the address the trainer's own model endpoint listens on, for the app to ask."""
    policy_port: int = Field(default=0, ge=0, le=65_535)
    """task_url: its port; 0 lets the system choose."""
    policy_url: str = ""
    """task_url: where the app reaches that endpoint, if not at host and port (a proxy, a tunnel)."""
    policy_wait_s: float = Field(default=1.0, ge=0, le=60)
    """task_url: seconds a decision waits for those of the other rollouts, to be sampled with them."""

    _parse_seeds = field_validator("seeds", mode="before")(_seed_range)


class ServerSection(Section):
    """The hosted task app."""

    host: str = "127.0.0.1"
    """The address to listen on; beyond loopback a key must be set."""
    port: int = Field(default=8010, ge=0, le=65_535)
    """The port; 0 lets the system choose."""
    api_key_env: str = "ENVIRONMENT_API_KEY"
    """The variable that holds the key clients must send."""
    next_api_key_env: str = "ENVIRONMENT_API_KEY_NEXT"
    """The variable that holds a second valid key, while clients change from one to the other."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that answer on the one port; all limits hold for them together."""
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
    max_sessions: int = Field(default=64, ge=1, le=10_000)
    """Step-wise sessions, policies of such sessions, and OpenEnv connections open at once; more get 429."""
    session_ttl_s: float = Field(default=600.0, gt=0, le=86_400)
    """Seconds without a request after which a session or connection ends and its episode is stored as aborted."""
    trace_dir: Path | None = None
    """Folder that gets each episode's SFT rows as a file (docs/sft_export.md); without one, none are written."""
    requests_per_minute: int = Field(default=0, ge=0, le=1_000_000)
    """Requests a key may make in a minute; more get 429 and Retry-After. 0 is no limit."""
    cors_origins: list[str] = Field(default_factory=list)
    """Origins whose pages may call the app from a browser, such as "https://example.org"; none by default."""
    log: Literal["quiet", "text", "json"] = "quiet"
    """Lines on standard error, one a request: warnings alone, words, or JSON. Never a prompt, a key or an answer."""

    @property
    def key_envs(self) -> tuple[str, ...]:
        """The variables of the keys clients may send."""
        return tuple(name for name in (self.api_key_env, self.next_api_key_env) if name)


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

    type: Literal["rl", "sft", "eval", "server", "rollout", "jobs"] = "rl"
    """What the file is for; a command refuses a file of another kind only where it could do harm."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of initial weights and sampling noise."""
    task: TaskSection = TaskSection()
    policy: PolicySection = PolicySection()
    rollout: RolloutSection = RolloutSection()
    server: ServerSection = ServerSection()
    model: ModelSection = ModelSection()
    sampler: SamplerSection = SamplerSection()
    training: TrainingSection = TrainingSection()
    sft: SftSection = SftSection()
    eval: EvalSection = EvalSection()
    tracking: TrackingSection = TrackingSection()
    jobs: JobsSection = JobsSection()
    scale: ScaleSection = ScaleSection()
    modal: ModalSection = ModalSection()
    prices: dict[str, PriceSection] = Field(default_factory=dict)
    """What calls cost, by model name; `traces analyze` turns tokens and latency into costs with it."""
    forwarded: dict[str, Annotated[dict[str, Any], AfterValidator(_strict_json)]] = Field(default_factory=dict)
    """Sections of older job files, as written; local training does not use them."""

    @property
    def step_rewards(self) -> StepRewardFlags:
        """The step-reward flags in force, from [training] and [rollout]."""
        return resolve(merge_sections(self.training, self.rollout))
