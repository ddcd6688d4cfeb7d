import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from legroom.meter.findings._thrown_away_graph import _is_whole

ROWS, WIDTH = 64, 32
SIDES, PARTS = ("encoder", "decoder"), ("attention", "mlp")
X = torch.randn(ROWS, WIDTH)


def make_step(guard):
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        with guard():
            seen = model(X).square().mean()  # here
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        return seen.item()

    return step


def test_activations_of_an_unused_call_are_waste(find_in, is_here):
    finding = find_in(make_step(contextlib.nullcontext))["thrown-away-graph"]
    # The two tanhs and the output, which the square keeps.
    assert finding.bytes == (2 * ROWS * WIDTH + ROWS * 4) * 4
    assert len(finding.tensors) == 3
    assert is_here(finding)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_calls_without_gradients_are_fine(find_in, guard):
    assert "thrown-away-graph" not in find_in(make_step(guard))


def test_two_calls_in_one_loss_are_fine(find_in, train):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))

    def loss():
        return (model(X) - model(-X)).square().mean()

    assert "thrown-away-graph" not in find_in(train(model, loss))


@pytest.mark.parametrize(
    ("made_in", "is_whole"),
    [
        # A cache of keys and values: what some modules make twice is no second pass.
        (["decoder.0.attention", "decoder.1.attention", "encoder.norm"], False),
        (["encoder.0.attention", "encoder.0.mlp", "encoder.norm"], True),
        ([f"decoder.{number}.{part}" for number in range(4) for part in PARTS], True),
    ],
)
def test_a_second_pass_goes_through_most_modules(made_in, is_whole):
    layers = [f"{side}.{number}.{part}" for side in SIDES for number in range(4) for part in PARTS]
    modules = {*layers[:2], "encoder.norm", *(each for each in layers if "decoder" in each)}
    call = [SimpleNamespace(module=name) for name in made_in]
    assert _is_whole(call, modules) == is_whole


def test_the_cache_of_a_model_is_no_second_pass(find_in):
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=100, d_model=96, d_kv=32, d_ff=128, num_layers=3, num_heads=6,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(2, 100, (8, 128))

    def step():
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens[:, :48].clone()).loss.backward()
        optimizer.step()

    assert "thrown-away-graph" not in find_in(step)
