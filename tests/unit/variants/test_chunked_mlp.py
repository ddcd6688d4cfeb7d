"""Blocks of linear layers are found in a graph, and run in chunks where no plan fits without."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import legroom
from legroom.capture import capture_step, captured, dynamo_settings, prepared
from legroom.errors import InfeasibleBudgetError
from legroom.layers import chunked_mlp
from legroom.plan import PlanOptions
from legroom.variants import ChunkedMLP

ROWS, WIDTH, HIDDEN = 600, 32, 128


class Block(nn.Module):
    """Layers, and what is done with them."""

    def __init__(self, compute, *, bias=True, hidden=HIDDEN):
        super().__init__()
        self.first = nn.Parameter(torch.ones(WIDTH))
        self.up = nn.Linear(WIDTH, hidden, bias=bias)
        self.gate = nn.Linear(WIDTH, hidden, bias=bias)
        self.down = nn.Linear(hidden, WIDTH, bias=bias)
        self.dropout = nn.Dropout(0.1)
        self.scale = nn.Parameter(torch.ones(hidden))
        self.compute = compute

    def forward(self, value):
        made = self.compute(self, self.first * value)
        return sum(each.square().mean() for each in (made if isinstance(made, tuple) else (made,)))


def rewritten(call):
    """What a call returns with its graphs rewritten, how many blocks were found, and notes."""
    found, notes = [], []

    def backend(graph, inputs):
        changed, said, _ = prepared(graph, detached=frozenset(), rewrites=(ChunkedMLP.apply,))
        found.extend(node for node in changed.graph.nodes if node.target is chunked_mlp)
        notes.extend(said)
        return changed

    torch._dynamo.reset()
    with dynamo_settings():
        made = captured(call, backend)()
    torch._dynamo.reset()
    return made, len(found), notes


def gradients_of(model, loss):
    model.zero_grad()
    loss.backward()
    grads = {name: param.grad for name, param in model.named_parameters()}
    return {name: grad.clone() for name, grad in grads.items() if grad is not None}


def check_block(model, *, is_found, note="", value=None):
    """Look for the one block, and compare what the graph computes then."""
    value = torch.randn(4, ROWS // 4, WIDTH) if value is None else value
    loss, num_found, notes = rewritten(lambda: model(value))
    assert num_found == is_found
    assert [note in each for each in notes] == ([True] if note else [])
    if num_found:
        expected = model(value)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(gradients_of(model, loss), gradients_of(model, expected))


def gelu_new(x):
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def with_hidden(m, x):
    hidden = m.up(x)
    return m.down(F.gelu(hidden)), hidden


def with_activation(m, x):
    activation = F.gelu(m.up(x))
    return m.down(activation) + activation.mean()


def with_input_changed(m, x):
    hidden = m.up(x)
    x.mul_(2)
    return m.down(F.gelu(hidden)) + x


def without_gradient(m, x):
    with torch.no_grad():
        made = m.down(F.gelu(m.up(x)))
    return made + x


def in_a_row(m, x):
    """The middle of the second pair is the wider one."""
    return m.down(F.gelu(m.up(torch.tanh(m.square(x)))))


def flat(layer, value):
    """A layer as transformers' GPT-2 has it: the weight the other way round, rows made flat."""
    rows = torch.addmm(layer.bias, value.view(-1, value.shape[-1]), layer.weight.t().contiguous())
    return rows.view(*value.shape[:-1], rows.shape[-1])


FOUND = {
    "gelu": lambda m, x: m.down(F.gelu(m.up(x))),
    "written out": lambda m, x: m.down(gelu_new(m.up(x))),
    "quick gelu": lambda m, x: m.down(quick_gelu(m.up(x))),
    "in place": lambda m, x: m.down(F.relu(m.up(x), inplace=True)),
    "relu squared": lambda m, x: m.down(F.relu(m.up(x)).square()),
    "by method": lambda m, x: m.down(m.up(x).tanh()),
    "conv1d": lambda m, x: flat(m.down, F.gelu(flat(m.up, x))),
    "made flat": lambda m, x: m.down(F.silu(m.up(x)).reshape(-1, HIDDEN)),
    "gated": lambda m, x: m.down(F.silu(m.gate(x)) * m.up(x)),
    "gated the other way": lambda m, x: m.down(m.up(x).mul(gelu_new(m.gate(x)))),
    "dropout that is off": lambda m, x: m.down(F.dropout(F.gelu(m.up(x)), 0.1, training=False)),
    "read beside": lambda m, x: m.down(F.gelu(m.up(x))) * x,
}
LEFT = {
    "read elsewhere": with_hidden,
    "activation read elsewhere": with_activation,
    "a dropout": lambda m, x: m.down(m.dropout(F.gelu(m.up(x)))),
    "input changed": with_input_changed,
}
WHY = {
    "read elsewhere": "what is between them is used elsewhere",
    "activation read elsewhere": "what is between them is used elsewhere",
    "a dropout": "a dropout between them draws numbers",
    "input changed": "what they read is changed between them",
}
OTHERS = {
    "no activation": lambda m, x: m.down(m.up(x)),
    "a product of two": lambda m, x: m.down(m.up(x) * m.gate(x)),
    "gates of two inputs": lambda m, x: m.down(F.silu(m.gate(x)) * m.up(2 * x)),
    "another function": lambda m, x: m.down(torch.sin(m.up(x))),
    "not of elements": lambda m, x: m.down(torch.softmax(m.up(x), -1)),
    "rows that are columns": lambda m, x: m.down(F.gelu(m.up(x)).transpose(0, 1)),
    "scaled by a parameter": lambda m, x: m.down(m.scale * F.gelu(m.up(x))),
    "no gradient": without_gradient,
}


@pytest.mark.parametrize("name", FOUND)
def test_it_is_found_however_it_is_written(name):
    check_block(Block(FOUND[name], bias=name != "gated"), is_found=True)


@pytest.mark.parametrize("name", LEFT)
def test_what_somebody_else_needs_stays_and_that_is_said(name):
    check_block(Block(LEFT[name]), is_found=False, note=f"because {WHY[name]}: 1 pairs")


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_something_else_stays(name):
    check_block(Block(OTHERS[name]), is_found=False)


@pytest.mark.parametrize(
    ("hidden", "num_rows"), [(128, 511), (16, 9000), (64, 520)], ids=["few", "narrow", "small"]
)
def test_few_rows_and_narrow_middles_stay(hidden, num_rows):
    value = torch.randn(num_rows, WIDTH)
    check_block(Block(FOUND["gelu"], hidden=hidden), is_found=False, value=value)


def test_of_three_layers_the_two_around_the_widest_are_taken():
    model = Block(in_a_row)
    model.square = nn.Linear(WIDTH, WIDTH)
    names = names_of(model, torch.randn(4096, WIDTH))
    assert names.count("legroom.chunked_mlp.default") == 1
    assert names.count("legroom.chunked_mlp_backward.default") == 1
    assert "aten.tanh.default" in names
    assert "aten.gelu.default" not in names


def names_of(model, value):
    """Of the operations in a captured step."""
    options = {"exactness": "rounding", "rewrites": (ChunkedMLP.apply,)}
    captured_step = capture_step(lambda: model(value).backward(), **options)
    assert captured_step.rewritten_by == (ChunkedMLP.apply,)
    return [each.name for each in captured_step.planned.operations]


def test_autocast_stays():
    model, value = Block(FOUND["gelu"]), torch.randn(ROWS, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        check_block(model, is_found=False, value=value)
    inside = Block(lambda m, x: under_autocast(FOUND["gelu"], m, x))
    check_block(inside, is_found=False, value=value)


def under_autocast(compute, model, value):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return compute(model, value).float()


def test_at_bitwise_it_is_never_done():
    options = PlanOptions(budget="50%")
    assert ChunkedMLP.apply not in (*options.rewrites, *options.reserve)


# Models of Hugging Face ---------------------------------------------------------------------------


def language_model(kind, **config):
    import transformers

    whole = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 256,
        "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, **config,
    }  # fmt: skip
    made = getattr(transformers, f"{kind}Config")(**whole)
    suffix = "ForMaskedLM" if kind == "Bert" else "ForCausalLM"
    suffix = {"GPT2": "LMHeadModel", "T5": "ForConditionalGeneration"}.get(kind, suffix)
    return getattr(transformers, kind + suffix)(made)


T5 = {
    "d_model": 32, "d_ff": 128, "d_kv": 32, "num_layers": 1, "num_heads": 1, "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}  # fmt: skip
MODELS = {
    "GPT2": ("GPT2", {"n_embd": 32, "n_layer": 1, "n_head": 1, "n_positions": 256}, 1),
    "BERT": ("Bert", {}, 1),
    "OPT": ("OPT", {"ffn_dim": 128, "word_embed_proj_dim": 32}, 1),
    "Llama": ("Llama", {}, 1),
    "Mistral": ("Mistral", {}, 1),
    "Gemma": ("Gemma", {"head_dim": 32}, 1),
    "Qwen2": ("Qwen2", {}, 1),
    "Qwen3": ("Qwen3", {"head_dim": 32}, 1),
    "Phi": ("Phi", {}, 1),
    "T5 with ReLU": ("T5", T5, 2),
    "T5 with a gate": ("T5", {**T5, "feed_forward_proj": "gated-gelu"}, 2),
    "T5 with dropout": ("T5", {**T5, "dropout_rate": 0.1}, 0),
    "Phi3, gate and up in one layer": ("Phi3", {}, 0),
}
OFTEN = ("GPT2", "Llama", "T5 with dropout")


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in OFTEN else pytest.mark.slow) for each in MODELS]
)
def test_it_is_found_in_language_models(name):
    kind, config, num_blocks = MODELS[name]
    model = language_model(kind, **config).train()
    tokens = torch.randint(50, (4, 136))
    torch.manual_seed(0)
    loss, num_found, notes = rewritten(lambda: model(input_ids=tokens, labels=tokens).loss)
    assert num_found == num_blocks
    assert bool(notes) == (name == "T5 with dropout")
    torch.manual_seed(0)
    torch.testing.assert_close(loss, model(input_ids=tokens, labels=tokens).loss)


@pytest.mark.parametrize("kind", ["ViT", pytest.param("CLIPVision", marks=pytest.mark.slow)])
def test_it_is_found_in_vision_transformers(kind):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=1, intermediate_size=128,
        image_size=48, patch_size=4,
    )  # fmt: skip
    model, images = getattr(transformers, f"{kind}Model")(config).eval(), torch.randn(4, 3, 48, 48)
    made, num_found, _ = rewritten(lambda: model(pixel_values=images).last_hidden_state)
    assert num_found == 1
    torch.testing.assert_close(made, model(pixel_values=images).last_hidden_state)


# When it is done ----------------------------------------------------------------------------------


class Stack(nn.Module):
    """Two blocks, one with a gate, one with a weight that is frozen."""

    def __init__(self):
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(64, 512) for _ in range(2))
        self.gate = nn.Linear(64, 512)
        self.down = nn.ModuleList(nn.Linear(512, 64) for _ in range(2))
        self.down[0].weight.requires_grad_(False)

    def forward(self, value):
        value = value + self.down[0](F.gelu(self.up[0](value)))
        value = value + self.down[1](F.silu(self.gate(value)) * self.up[1](value))
        return value.square().mean()


class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.model, self.value = Stack(), torch.randn(1536, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

    def step(self):
        self.model(self.value).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def plan(self, budget, **options):
        options = {"exactness": "rounding", "points": 0, "time_limit_s": 5, **options}
        return legroom.plan(self.step, budget=budget, **options)


@pytest.fixture(scope="module")
def floors():
    """The lowest peaks without it and with it; for a module, the figures are the machine's."""
    training = Training()
    without = training.plan("lowest", without=("chunked-mlp",))
    lowest = training.plan("lowest")
    assert without.rewrites == ()
    assert lowest.rewrites == ("chunked-mlp",)
    return without.floor_peak_bytes, lowest.floor_peak_bytes


def test_the_floor_is_the_lower_of_both(floors):
    without, lowest = floors
    assert lowest < 0.6 * without


def test_where_a_plan_fits_without_it_is_not_done(floors):
    report = Training().plan(floors[0])
    assert report.rewrites == ()
    assert "chunked-mlp" in report.ways


def test_where_none_fits_it_is_done_and_its_time_is_counted(floors):
    report = Training().plan((floors[0] + floors[1]) // 2)
    assert report.rewrites == ("chunked-mlp",)
    assert report.chosen.predicted_peak_bytes <= (floors[0] + floors[1]) // 2
    assert report.chosen.added_ms > 0


def test_below_both_floors_the_error_tells_of_the_lower(floors):
    with pytest.raises(InfeasibleBudgetError) as caught:
        Training().plan(floors[1] // 2)
    assert caught.value.floor_bytes == pytest.approx(floors[1], rel=0.02)
    assert "chunked-mlp" not in " ".join(caught.value.remedies)


def test_asked_for_by_name_it_is_done_at_once():
    report = Training().plan("99%", ways=("replay", "chunked-mlp"))
    assert report.rewrites == ("chunked-mlp",)


def test_left_out_it_is_never_done(floors):
    with pytest.raises(InfeasibleBudgetError, match=r"or chunked-mlp, which --with") as caught:
        Training().plan(floors[0] - 2**20, without=("chunked-mlp",))
    assert caught.value.floor_bytes > floors[0] - 2**20


def test_fitted_below_the_floor_it_keeps_the_budget_and_the_gradients(floors):
    training = Training()
    plain, exact = copy.deepcopy(training.model), copy.deepcopy(training.model).double()
    plain(training.value).backward()
    exact(training.value.double()).backward()
    expected = {
        name: (param.grad.double(), theirs.grad)
        for (name, param), theirs in zip(plain.named_parameters(), exact.parameters(), strict=True)
        if param.requires_grad
    }
    extra_bytes = sum(each.nbytes for pair in expected.values() for each in pair)
    del plain, exact
    budget = (floors[0] + floors[1]) // 2 + extra_bytes
    fitted = legroom.fit(
        training.model, optimizer=training.optimizer, budget=budget, exactness="rounding"
    )
    for _ in range(3):
        training.step()
    report = fitted.report()
    training.model(training.value).backward()
    fitted.undo()
    assert report.rewrites == ("chunked-mlp",)
    assert report.measured_peak_bytes <= budget
    assert report.measured_peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.01)
    for name, param in training.model.named_parameters():
        if name in expected:
            eager, gradient = expected[name]
            allowed = max(1e-6 * gradient.norm(), 3 * (eager - gradient).norm())
            assert (param.grad.double() - gradient).norm() <= allowed, name
    assert training.model.down[0].weight.grad is None


def test_fitted_with_room_it_is_not_done_until_there_is_less():
    training = Training()
    fitted = legroom.fit(
        training.model, optimizer=training.optimizer, budget="90%", exactness="rounding"
    )
    training.step()
    before = fitted.report()
    fitted.reserve(before.plain_peak_bytes // 2)
    for _ in range(3):
        training.step()
    after = fitted.report()
    fitted.undo()
    assert before.rewrites == ()
    assert after.rewrites == ("chunked-mlp",)
    assert after.measured_peak_bytes <= before.budget_bytes - before.plain_peak_bytes // 2
    assert after.measured_peak_bytes == pytest.approx(after.predicted_peak_bytes, rel=0.01)
