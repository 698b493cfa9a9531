"""Training: the embedded policy, real models, and the loops. The only package that imports torch.

tokenizer.py   words ↔ ids             renderer.py   messages → prompt ids
masks.py       the grammar as tables   model.py      a small Qwen3, seeded
decoder.py     its forward passes      sampler.py    batched constrained sampling
policy.py      `EmbeddedPolicy`        rows.py       stored tokens → padded micro-batches
objective.py   the loss per token      learner.py    one update of the weights
checkpoint.py  save, load, resume      checkpoint_folder.py  which there are, torch-free
metrics.py    metrics.jsonl             paired.py    two evaluations compared
plan.py        refusals before work    evaluate.py   held-out worlds
facts.py       what a line says         grpo.py      the loop: `run_training`
report.py      the run's report         launch.py    what `task-app train` does
load.py        which network            packing.py   rows → sequences
row_attention.py   each packed row by itself   roomy_cache.py   keys and values that are not copied
chat_model.py  a `transformers` model   chat_network.py   it as a `Network`, checked at the start
chat_template.py  its chat template     chat_renderer.py  prompts, history, answers
chat_sampler.py   free text, batched    export.py    checkpoint → Hugging Face folder
guards.py      what a run watches for  layers.py     rewards taken apart, who is alive
behaviour.py   how varied actions are  heartbeat.py  a run's sign of life
tracker.py     wandb, trackio          ledger.py     runs/ledger.jsonl
journal.py     these three for a run
weights.py     what is trained         shards.py     it in FSDP2 shards, under `torchrun`
ranks.py       leader and followers    follower.py   what the other processes do
spread_sampler.py  sampling by all     sft_learner.py   one supervised step
playing.py     an update's episodes, now or ahead
lessons.py     what SFT learns from, a file or a teacher
vllm_sampler.py   answers of a vLLM server   vllm_wire.py   how it is spoken to   vllm_handover.py   weights to it
run_folder.py  what may resume in it   disk.py       a disk that refuses
"""

import os

# Read by OpenMP when torch loads, which only this package does: threads that wait must sleep. Spinning ones
# bring training on a busy machine almost to a halt as soon as `model.threads` is more than 1.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
