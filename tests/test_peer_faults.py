"""The 27 faults of the closest existing system, and the tests here that would show each.

The faults are told in a line each; a test that is renamed or removed must be renamed or replaced here as well.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

FAULTS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("concurrent tracing loses traces", ("test_known_faults.py::every_trace_of_concurrent_clients_is_kept",)),
    2: ("messages are never stored, or twice", ("test_known_faults.py::messages_are_stored_once_as_often_as",)),
    3: ("analysis and filters find no achievements", ("test_known_faults.py::analysis_and_filters_find",)),
    4: ("episodes never end on death", ("server/test_rollout.py::death_ends_an_episode_as_done",)),
    5: ("the last step's reward is a running total", ("server/test_rollout.py::env_sparse_pays_the_steps_own",)),
    6: (
        "a mistyped mode means off, env_sparse does nothing, beta is unused",
        (
            "config/test_step_rewards.py::another_mode_is_refused_with_the_list",
            "server/test_rollout.py::env_sparse_pays_the_steps_own",
            "config/test_step_rewards.py::lambda_and_beta_are_refused_where",
        ),
    ),
    7: (
        "the flags of a TOML never reach the task app",
        ("server/test_rollout.py::without_any_the_servers_own_hold", "server/test_rollout.py::flags_come_from_env"),
    ),
    8: ("lambda 0 cannot be said, or zeroes everything", ("config/test_step_rewards.py::nothing_written_pays_unique",)),
    9: ("turns count from 1 here and from 0 there", ("test_known_faults.py::turns_are_one_based_in_every_record",)),
    10: ("with the flags off zeros are written", ("test_known_faults.py::with_the_flags_off_no_zero",)),
    11: ("one run id twice merges two sessions", ("server/test_rollout.py::one_run_id_twice_makes_two_episodes",)),
    12: ("times and ids stay empty", ("test_known_faults.py::times_and_ids_are_there",)),
    13: (
        "keys are shown, control routes are open, Bearer passes one check alone, the key is sent to model hosts",
        (
            "faults/test_endpoints.py::no_key_is_shown_nor_sent_to_a_model_endpoint",
            "server/test_routes.py::either_header_reaches_every_route",
            "faults/test_openapi.py::without_the_key_all_but_two_are_closed",
        ),
    ),
    14: (
        "a bad operation is a bare 500, validation errors too",
        ("server/test_bad_input.py::a_bad_field_is_named", "faults/test_openapi.py::with_the_key"),
    ),
    15: (
        "dry runs act, failed jobs and evaluations exit 0, list is empty, aliases fail, reload exits",
        (
            "jobs/test_launch.py::fault_15_a_dry_run_with_a_backend_sends_nothing",
            "jobs/test_launch.py::fault_15_the_exit_code_is_the_jobs_verdict",
            "cli/test_commands.py::list_knows_crafter_and_its_alias",
            "server/test_serving.py::reload_begins_anew",
        ),
    ),
    16: ("a tokenizer and a client per call", ("faults/test_endpoints.py::all_decisions_go_over_one_connection",)),
    17: (
        "one failing upstream holds a rollout for an hour, max_time_s is unread",
        (
            "faults/test_endpoints.py::one_failing_upstream_does_not_hold",
            "faults/test_endpoints.py::the_time_a_client_allows_is_kept",
        ),
    ),
    18: ("a query swallows the path", ("faults/test_endpoints.py::a_base_address_with_a_query_keeps_it",)),
    19: ("a refused answer becomes invented actions", ("faults/test_endpoints.py::a_refused_answer_is_kept_as_said",)),
    20: (
        "three limits of actions, none of them held",
        ("apps/crafter/test_tool.py::prompt_schema_parser_and_grammar_state_the_same",),
    ),
    21: ("a warning that always fires", ("test_known_faults.py::healthy_traces_raise_no_warning",)),
    22: ("task_info says the same of every seed", ("server/test_routes.py::task_info_shows_each_seeds_own_world",)),
    23: ("an id a client holds is not the store's", ("server/stepwise/test_sessions.py::the_id_a_client_holds",)),
    24: ("prompts are printed", ("faults/test_endpoints.py::nothing_is_printed_per_decision",)),
    25: (
        "concurrent rollouts reseed each other",
        ("server/test_serving.py::forty_of_forty_with_eight_clients", "server/stepwise/test_sessions.py::two_sessions"),
    ),
    26: (
        "paths resolve against the working directory, shipped TOMLs fail",
        (
            "jobs/test_launch.py::fault_26_data_named_in_a_toml_is_found_beside_it",
            "configs/test_shipped.py::every_key_has_a_comment_and_the_file_is_legal",
        ),
    ),
    27: ("exports drop text and tools", ("test_known_faults.py::exported_rows_keep_text_tools",)),
}


def test_all_are_here():
    assert list(FAULTS) == list(range(1, 28))


@pytest.mark.parametrize("number", FAULTS, ids=[f"{number}_{what}" for number, (what, _) in FAULTS.items()])
def test_a_fault_has_tests(number):
    for test in FAULTS[number][1]:
        file, _, name = test.partition("::")
        source = (TESTS / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *(async )?def test_{name}", source, re.MULTILINE), f"{test} is gone"
