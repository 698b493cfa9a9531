"""Our forward passes against the network's own."""

import torch

from task_app.config.training import ModelSection
from task_app.train.decoder import encode, read, step
from task_app.train.model import build_model

SETTINGS = ModelSection(hidden_size=32, layers=3, heads=4, kv_heads=2, intermediate_size=48, max_positions=64)
MODEL = build_model(SETTINGS, vocabulary=50, seed=3, device=torch.device("cpu"))
IDS = torch.randint(4, 50, (3, 12), generator=torch.Generator().manual_seed(0))
LENGTHS = torch.tensor([12, 7, 9])


@torch.no_grad()
def reference(ids: torch.Tensor) -> torch.Tensor:
    return MODEL.model(input_ids=ids, use_cache=False).last_hidden_state


@torch.no_grad()
def test_encode_equals_the_networks_own_forward_row_by_row():
    padded = IDS.clone()
    for row, length in enumerate(LENGTHS):
        padded[row, length:] = 0
    keep = torch.stack([LENGTHS - 1, LENGTHS // 2], dim=1)
    hidden = encode(MODEL, padded, keep)
    for row, length in enumerate(LENGTHS):
        expected = reference(IDS[row : row + 1, :length])[0, keep[row]]
        assert (hidden[row] - expected).abs().max() < 1e-5


@torch.no_grad()
def test_rows_read_end_to_end_and_steps_equal_one_long_forward():
    cache, hidden = read(MODEL, [IDS[row, :length].tolist() for row, length in enumerate(LENGTHS)], 3)
    for row, length in enumerate(LENGTHS):
        assert (hidden[row] - reference(IDS[row : row + 1, :length])[0, -1]).abs().max() < 1e-5
    order = torch.tensor([2, 0, 1, 2])
    for kept, lengths in ((cache.of_rows(order), LENGTHS[order]), (cache, LENGTHS)):
        rows = order if kept is not cache else torch.arange(3)
        more = torch.randint(4, 50, (len(rows), 3), generator=torch.Generator().manual_seed(1))
        for index in range(3):
            hidden = step(MODEL, more[:, index], lengths + index, kept)
            for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                whole = torch.cat((IDS[row, :length], more[place, : index + 1]))
                assert (hidden[place] - reference(whole[None])[0, -1]).abs().max() < 1e-5


@torch.no_grad()
def test_a_single_layer_is_read_too():
    one = build_model(SETTINGS.model_copy(update={"layers": 1}), vocabulary=50, seed=3, device=torch.device("cpu"))
    _, hidden = read(one, [[5, 6, 7, 5], [8]], 1)
    for row, ids in zip(hidden, ([5, 6, 7, 5], [8]), strict=True):
        expected = one.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]
        assert (row - expected).abs().max() < 1e-5


def test_initial_weights_depend_on_the_seed_alone():
    before = torch.get_rng_state()
    again = build_model(SETTINGS, vocabulary=50, seed=3, device=torch.device("cpu"))
    other = build_model(SETTINGS, vocabulary=50, seed=4, device=torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [model.model.embed_tokens.weight for model in (MODEL, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert MODEL.lm_head.weight is MODEL.model.embed_tokens.weight
