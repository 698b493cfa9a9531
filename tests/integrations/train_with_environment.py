"""One step of TRL's GRPOTrainer on the Crafter environment; prints what came of it as JSON.

    python tests/integrations/train_with_environment.py FOLDER

A process of its own: the libraries are heavy, and their warnings are not this project's. The model is tiny and random,
so what it "says" is put in its mouth where the trainer would sample; everything else is the trainer's own: schema,
prompts, parsing of tool calls, the tool loop, rewards, loss and the step. Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1"}

import datasets
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from task_app.integrations.trl import dataset_rows, environment_class

TEMPLATE = Path(trl.__file__).parent / "chat_templates/qwen3.jinja"
GROUP = 4
TURNS = [
    [["do", "do"], ["fly"], ["noop"], ["move_left"]],
    [["move_left"], ["do"], ["do"], ["do"]],
]
"""What each member of the group calls, by turn; then it says a word and stops."""


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and the markers of Qwen's template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({sign: index for index, sign in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(  # pyright: ignore[reportAttributeAccessIssue]
        add_prefix_space=False, use_regex=False
    )
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    words = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    words.chat_template = TEMPLATE.read_text()
    return words


class Scripted(GRPOTrainer):
    """The trainer, with the calls of `TURNS` where it would sample."""

    turn = 0

    def _generate_single_turn(self, prompt_ids: Any, *arguments: Any, **named: Any) -> Any:
        words: Any = self.processing_class
        said = []
        for member in range(len(prompt_ids)):
            text = "Done."
            if self.turn < len(TURNS):
                call = {"name": "interact_many", "arguments": {"actions": TURNS[self.turn][member]}}
                text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
            said.append(words.encode(f"{text}<|im_end|>", add_special_tokens=False))
        self.turn += 1
        return said, None


def main(folder: Path) -> dict[str, Any]:
    words = tokenizer()
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(words), max_position_embeddings=32_768, **sizes, **heads))
    environment = environment_class(max_decisions=8, trace_db=folder / "t.db")
    seen: dict[str, list[Any]] = {}

    def sums(environments: list[Any], **columns: Any) -> list[float | None]:
        """A reward function as users write them: it reads each environment's rewards decision by decision."""
        seen["tool_calls"] = [len(one.decision_rewards) for one in environments]
        seen["sums"] = [float(sum(one.decision_rewards)) for one in environments]
        seen["rewards"] = [one.get_reward() for one in environments]
        return seen["sums"]

    settings = GRPOConfig(
        output_dir=str(folder / "out"),
        max_steps=1,
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        max_completion_length=8_192,
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Scripted(
        model=model,
        reward_funcs=sums,
        args=settings,
        train_dataset=datasets.Dataset.from_list(dataset_rows(environment, [5] * GROUP)),
        processing_class=words,
        environment_factory=environment,
    )
    loss = trainer.train().training_loss
    return {"loss": loss, "steps": trainer.state.global_step, **seen}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main(Path(sys.argv[1]))
    print(json.dumps(result))
