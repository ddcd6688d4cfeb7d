"""Models of other libraries take eager's path while they are captured, and only then."""

import subprocess
import sys
import warnings
from contextlib import ExitStack

import pytest
import torch
from torch._dynamo.utils import counters

from legroom.capture._fake_rules import fake_rules
from legroom.capture._libraries import logging_functions, same_path_as_eager

transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "use_cache": False,
}


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def build_llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config).train()


def build_mixtral():
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**SHAPE, num_local_experts=4, output_router_logits=True)
    return transformers.MixtralForCausalLM(config).train()


def draw_tokens() -> torch.Tensor:
    return torch.randint(0, 61, (2, 12), generator=torch.Generator().manual_seed(1))


def padding_mask(num_padded: int) -> torch.Tensor:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 12 - num_padded :] = 0
    return mask


def run_step(model, call, **inputs) -> list[torch.Tensor]:
    model.zero_grad()
    tokens = draw_tokens()
    loss = call(input_ids=tokens, labels=tokens, **inputs).loss
    loss.backward()
    return [loss.detach(), *(param.grad.clone() for param in model.parameters())]


def captured(model):
    def run(**inputs):
        return model(**inputs)

    compiled = torch.compile(run, backend="aot_eager", dynamic=False)

    def call(**inputs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchDynamo's own, about functions with a cache
            return compiled(**inputs)

    return call


def assert_same_bits(captured_step, eager_step) -> None:
    assert len(captured_step) == len(eager_step)
    for got, expected in zip(captured_step, eager_step, strict=True):
        assert torch.equal(got.view(torch.int32), expected.view(torch.int32))


@pytest.fixture
def eagers_path():
    with ExitStack() as settings:
        settings.enter_context(torch._dynamo.config.patch(recompile_limit=32))
        settings.enter_context(fake_rules())
        settings.enter_context(same_path_as_eager())
        yield


def num_graphs() -> int:
    return counters["stats"]["unique_graphs"]


# Replaced and put back ---------------------------------------------------------------------------


def asking_functions():
    from transformers import masking_utils
    from transformers.integrations import moe

    return [
        masking_utils.is_tracing,
        masking_utils.find_packed_sequence_indices,
        masking_utils._ignore_causal_mask_sdpa,
        masking_utils._ignore_bidirectional_mask_sdpa,
        moe.is_torchdynamo_compiling,
    ]


def test_questions_are_answered_as_in_eager():
    before = asking_functions()
    with same_path_as_eager():
        inside = asking_functions()
    assert not any(new is old for new, old in zip(inside, before, strict=True))
    assert inside[0](None) is False
    assert inside[-1]() is False
    assert asking_functions() == before


def test_everything_is_back_after_an_exception():
    before = asking_functions()
    with pytest.raises(KeyError), same_path_as_eager():
        raise KeyError("the step failed")
    assert asking_functions() == before


def test_inner_exit_leaves_the_outer_open():
    before = asking_functions()
    with same_path_as_eager():
        with same_path_as_eager():
            pass
        assert asking_functions()[0] is not before[0]
    assert asking_functions() == before


def test_entered_again_the_same_functions_stand_in():
    with same_path_as_eager():
        first = asking_functions()
    with same_path_as_eager():
        assert asking_functions() == first


def test_warnings_and_caches_keep_their_answer():
    from transformers import cache_utils, modeling_utils
    from transformers.utils import output_capturing

    asked = [
        cache_utils.is_torchdynamo_compiling,
        modeling_utils.is_tracing,
        output_capturing.is_torchdynamo_compiling,
    ]
    with same_path_as_eager():
        assert asked == [
            cache_utils.is_torchdynamo_compiling,
            modeling_utils.is_tracing,
            output_capturing.is_torchdynamo_compiling,
        ]


def test_modules_imported_later_are_found():
    program = (
        "from legroom.capture._libraries import same_path_as_eager\n"
        "import sys\n"
        "with same_path_as_eager():\n"
        "    assert 'transformers' not in sys.modules\n"
        "    assert 'torch._dynamo' not in sys.modules\n"
        "from transformers import masking_utils\n"
        "original = masking_utils.is_tracing\n"
        "with same_path_as_eager():\n"
        "    assert masking_utils.is_tracing is not original\n"
        "assert masking_utils.is_tracing is original\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_logging_functions_of_transformers_are_known():
    assert transformers.utils.logging.warning_once in logging_functions()


# Eager's bits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [build_llama, build_mixtral])
def test_captured_steps_have_eagers_bits(build, eagers_path):
    model = build()
    eager_step = run_step(model, model)
    assert_same_bits(run_step(model, captured(model)), eager_step)


def test_without_a_mask_llama_is_one_graph(eagers_path):
    model = build_llama()
    run_step(model, captured(model))
    assert num_graphs() == 1
    assert not counters["graph_break"]


def test_padding_decides_between_two_graphs(eagers_path):
    model = build_llama()
    call = captured(model)
    for num_padded, num_expected in ((0, 1), (3, 2), (0, 2), (5, 2)):
        mask = padding_mask(num_padded)
        eager_step = run_step(model, model, attention_mask=mask)
        assert_same_bits(run_step(model, call, attention_mask=mask), eager_step)
        assert num_graphs() == num_expected
    assert not counters["graph_break"]


def test_packed_sequences_have_eagers_bits(eagers_path):
    model = build_llama()
    call = captured(model)
    one = torch.arange(12).expand(2, -1)
    for positions in (one, one % 6):
        eager_step = run_step(model, model, position_ids=positions)
        assert_same_bits(run_step(model, call, position_ids=positions), eager_step)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_interpolation_has_eagers_bits(mode, eagers_path):
    def run(images):
        scaled = torch.nn.functional.interpolate(images, scale_factor=1.7, mode=mode)
        return (scaled * scaled.detach().cos()).sum()

    compiled = torch.compile(run, backend="aot_eager", dynamic=False)
    steps = []
    for call in (run, compiled):
        images = torch.rand(2, 3, 7, 9, generator=torch.Generator().manual_seed(0)).requires_grad_()
        loss = call(images)
        loss.backward()
        steps.append([loss.detach(), images.grad])
    assert_same_bits(steps[1], steps[0])


def test_pytorchs_replacements_are_back_afterwards():
    operation = torch.ops.aten.upsample_bilinear2d.default
    before = dict(operation.py_kernels)
    with same_path_as_eager():
        assert torch._C.DispatchKey.Autograd not in operation.py_kernels
    assert operation.py_kernels == before
