"""Faults to be put into the trainer on purpose, each with tests that must then fail. Data; `broken_runs` runs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Break:
    """In `module` (below task_app) the one place that says `old` says `new`; each of `tests` must then fail.

    tests  `file::name` below tests/, with its parameters where it has some
    also   a second (old, new) of the same module
    """

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]
    also: tuple[str, str] | None = None


ROWS = "train/test_rows.py::test_"
LEARNER = "train/test_learner.py::test_"
OBJECTIVE = "train/test_objective.py::test_"
CHAT = "train/test_chat_network.py::test_"
CREDIT = "credit/test_advantages.py::test_"
GRPO = "train/test_grpo.py::test_"
UPDATE = "train/test_update.py::test_"

UNBIASED = "train/test_unbiased.py::test_the_expected_gradient_is_the_true_one[return_loo-running]"
AGREE = f"{LEARNER}sampler_and_trainer_agree_and_the_first_step_is_on_policy"
KILLED = f"{GRPO}a_kill_anywhere_ends_in_the_same_run[moment2]"
SIX = f"{GRPO}six_updates_are_three_and_resume_and_three[warm-up]"

BREAKS = (
    # What is trained on.
    Break(
        "positions off by one",
        "train.rows",
        "before = len(trace.prompt_ids) - 1",
        "before = len(trace.prompt_ids) - 2",
        (f"{ROWS}a_row_ends_before_its_last_choice", AGREE),
    ),
    Break(
        "mask off by one",
        "train.rows",
        "chosen = [index for index, kept in enumerate(trace.mask) if kept]",
        "chosen = [index - 1 for index, kept in enumerate(trace.mask) if kept]",
        (f"{ROWS}a_row_ends_before_its_last_choice",),
    ),
    Break(
        "sampler's mask off by one",
        "train.sampler",
        "chosen = int(table.forced_S[state] < 0)",
        "chosen = int(table.forced_S[int(table.next_S_V[state, token])] < 0)",
        ("train/test_sampler.py::test_answers_are_legal_and_of_different_lengths",),
    ),
    Break(
        "forced tokens are trained on and counted",
        "train.rows",
        "chosen = [index for index, kept in enumerate(trace.mask) if kept]",
        "chosen = list(range(len(trace.mask)))",
        (f"{LEARNER}only_choices_are_counted", f"{ROWS}an_answer_without_a_choice_trains_nothing"),
    ),
    Break(
        "forced tokens are imitated",
        "train.sft_data",
        "if table.forced_S[state] < 0:",
        "if True:",
        ("train/test_sft_data.py::test_only_choices_of_the_answer_are_learned",),
    ),
    Break(
        "rows merged across policy versions",
        "train.rows",
        "if rows and goes_on and version == decision.completion.model:",
        "if rows and goes_on:",
        (f"{ROWS}other_versions_and_other_prompts_do_not_share_a_row",),
    ),
    Break(
        "rows merged without an exact prefix",
        "train.rows",
        "goes_on = said is not None and trace.prompt_ids[: len(said)] == said",
        "goes_on = said is not None and len(trace.prompt_ids) >= len(said)",
        (f"{ROWS}other_versions_and_other_prompts_do_not_share_a_row",),
    ),
    Break(
        "a member's advantages given to another",
        "train.update",
        "zip(group.members, credited.advantages, strict=True)",
        "zip(group.members, credited.advantages[::-1], strict=False)",
        (f"{UPDATE}every_decision_is_trained_on_with_its_own_advantage",),
    ),
    # Whose probabilities.
    Break(
        "grammar mask dropped in the trainer",
        "train.score",
        "network.table.allowed_S_V[state_M] if network.table is not None else None",
        "None",
        (AGREE,),
    ),
    Break(
        "temperature dropped in the trainer",
        "train.learner",
        "scores = self.weights.score(batch, self._temperature)",
        "scores = self.weights.score(batch, 1.0)",
        (AGREE,),
    ),
    Break(
        "ratio from the sampler's log-probabilities",
        "train.learner",
        "old_N = scores.logp_N.detach() if old_N is None else old_N",
        "old_N = batch.sampler_logp_N",
        (f"{LEARNER}a_sampler_that_differs_weighs_tokens_and_moves_no_ratio",),
    ),
    Break(
        "old policy taken anew at every step",
        "train.learner",
        "old_N = scores.logp_N.detach() if old_N is None else old_N",
        "old_N = scores.logp_N.detach()",
        (f"{LEARNER}several_steps_keep_the_first_ones_policy_as_old",),
    ),
    Break(
        "noise keyed by the order of the batch",
        "train.sampler",
        "noise_rows(keys, self._table.longest)",
        "noise_rows([str(index) for index, _ in enumerate(keys)], self._table.longest)",
        ("train/test_sampler.py::test_what_a_key_draws_does_not_depend_on_the_batch",),
    ),
    Break(
        "noise of free text keyed by the order of the batch",
        "train.chat_sampler",
        "noise_rows(keys, most)",
        "noise_rows([str(index) for index, _ in enumerate(keys)], most)",
        ("train/test_chat_sampler.py::test_what_a_key_draws_does_not_depend_on_the_batch[gpt2]",),
    ),
    # Rows that share a sequence.
    Break(
        "packed rows' positions not begun again",
        "train.packing",
        "= torch.arange(stop - start)",
        "= torch.arange(start, stop)",
        (
            f"{CHAT}packing_fills_sequences_of_the_longest_rows_length",
            f"{CHAT}hidden_states_are_those_of_each_row_alone[packed-qwen3]",
        ),
    ),
    Break(
        "a mask of ones over packed rows",
        "train.chat_network",
        "rows = row_arguments(place.lengths, self.device) if by_row else {\"attention_mask\": place.mask_B_T}",
        "rows = {\"attention_mask\": torch.ones_like(place.input_B_T)}",
        (f"{CHAT}the_check_at_the_start_finds_nothing_in_these[qwen3]",),
    ),
    Break(
        "packed rows with a cache, and no check at the start",
        "train.chat_network",
        "use_cache=False, **rows",
        "use_cache=True, attention_mask=None",
        (
            f"{CHAT}hidden_states_are_those_of_each_row_alone[packed-llama]",
            f"{CHAT}the_gradient_does_not_depend_on_packing_or_split[llama]",
        ),
        also=("if not difference < allowed:", "if difference > 1e9:"),
    ),
    Break(
        "rows of a sequence not attended one by one",
        "train.row_attention",
        "if row_lengths is None:",
        "if True:",
        (f"{CHAT}the_check_at_the_start_finds_nothing_in_these[qwen3]",),
    ),
    Break(
        "the check at the start never finds anything",
        "train.chat_network",
        "if not difference < allowed:",
        "if difference > 1e9:",
        (f"{CHAT}rows_that_leak_into_each_other_are_refused",),
    ),
    # Objective and normaliser.
    Break(
        "each micro-batch divided by its own tokens",
        "train.learner",
        "self.weights.backward(loss_N.sum() / shared)",
        "loss_N.mean().backward()",
        (f"{LEARNER}the_split_into_micro_batches_does_not_change_the_update[episodes]",),
    ),
    Break(
        "tokens where episodes are meant",
        "train.objective",
        'if settings.normaliser == "tokens":',
        "if True:",
        (f"{OBJECTIVE}normalisers", UNBIASED),
    ),
    Break(
        "dropped groups leave the normaliser",
        "train.update",
        "asked = self._config.training.groups_per_update * self._config.rollout.group_size",
        "asked = len(batch.groups) * self._config.rollout.group_size",
        (f"{UPDATE}a_dropped_group_still_counts_in_the_normaliser",),
    ),
    Break(
        "sampler's weight left out",
        "train.objective",
        "TokenLoss(-weight_N * torch.minimum(free_N, held_N)",
        "TokenLoss(-torch.minimum(free_N, held_N)",
        (f"{OBJECTIVE}sampler_weight_is_capped_detached_and_per_token",),
    ),
    Break(
        "clip on the wrong side",
        "train.objective",
        "ratio_N.clamp(1 - low, 1 + high)",
        "ratio_N.clamp(1 - high, 1 + low)",
        (f"{OBJECTIVE}clipped_loss_and_its_slope",),
    ),
    Break(
        "gspo's ratio a sum, not a mean, over the decision's tokens",
        "train.objective",
        "return (sum_D / size_D)[decision_N]",
        "return sum_D[decision_N]",
        (f"{OBJECTIVE}gspo_has_one_ratio_a_decision_and_a_clip_of_its_own",),
    ),
    Break(
        "gspo's decision is the whole row",
        "train.rows",
        "for index, span in enumerate(spans) for _ in range(span)]",
        "for index, row in enumerate(rows) for _ in row.targets]",
        (f"{ROWS}merging_changes_neither_loss_nor_gradient[gspo]",),
    ),
    # Zero variance.
    Break(
        "zero variance taken from a standard deviation in single precision",
        "credit.advantages",
        "return all(abs(value) <= tolerance for value in _numbers([estimate.advantages]))",
        "import numpy; return bool(numpy.std(numpy.float32([sum(row) for row in group.rewards])) == 0)",
        (f"{CREDIT}stepwise_signal_survives_equal_returns", f"{CREDIT}tolerance_grows_with_the_returns"),
    ),
    Break(
        "what rounding leaves of a flat group is kept",
        "credit.advantages",
        "0.0 if still else 1.0",
        "1.0",
        (f"{CREDIT}tolerance_grows_with_the_returns",),
    ),
    Break(
        "divided by a spread of nothing",
        "credit.advantages",
        "SCALE_FLOOR = 1e-3",
        "SCALE_FLOOR = 1e-30",
        (f"{CREDIT}a_tiny_spread_is_not_blown_up_to_unit_size",),
    ),
    Break(
        "divided by the standard deviation without asking",
        "credit.advantages",
        "return [1.0] * len(raw)",
        "return [1.0 / (_rms(_numbers([group])) or 1.0) for group in raw]",
        (f"{CREDIT}scales_by_hand", UNBIASED),
    ),
    Break(
        "the running mean learns of a batch before it is read",
        "credit.advantages",
        "estimator = get_estimator(settings.estimator)",
        "estimator = get_estimator(settings.estimator); baseline.update(groups, settings)",
        (f"{CREDIT}the_baseline_is_read_before_it_learns_of_the_batch",),
    ),
    # Going on where it stopped.
    Break(
        "the schedule begins again on resume",
        "train.learner",
        "factor = self._rate_factor(number)",
        "self._made = getattr(self, '_made', 0) + 1; factor = self._rate_factor(self._made)",
        (SIX,),
    ),
    Break(
        "the optimiser's state lost on resume",
        "train.checkpoint",
        "optimizer.load_state_dict(torch.load(checkpoint / \"optimizer.pt\", weights_only=True))",
        "torch.load(checkpoint / \"optimizer.pt\", weights_only=True)",
        ("train/test_checkpoint.py::test_restored_training_goes_on_bit_for_bit",),
    ),
    Break(
        "the running means lost on resume",
        "train.grpo",
        "self._updater.baseline = baseline_of(found, state)",
        "pass",
        (SIX,),
    ),
    Break(
        "a partial update not superseded",
        "train.grpo",
        "self._store.supersede(self._run_id, self.update + 1)\n            self._metrics.cut",
        "self._metrics.cut",
        (KILLED,),
    ),
    Break(
        "the log not cut back",
        "train.grpo",
        "self._metrics.cut_after(self.update)",
        "pass",
        (KILLED,),
    ),
    Break(
        "the pointer moved before its checkpoint is there",
        "train.checkpoint_folder",
        "os.replace(partial, target)",
        "_point(folder, POINTER, target.name); os.replace(partial, target)",
        ("train/test_checkpoint.py::test_a_kill_while_saving_leaves_the_last_checkpoint[2]",),
    ),
)  # fmt: skip
