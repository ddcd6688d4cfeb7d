"""Does a fitted step stay bit-equal and within budget on models that are no case? One process each.

In goes the name of a Hugging Face architecture; out comes one JSON object on stdout: for shares of
the activations and for the floor, whether training is the same bit for bit, and what was predicted
and measured. The models are small and made from their configurations: nothing is downloaded.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import nn

import legroom
from benchmarks.processes import one_line

LEVELS = ("75%", "50%", "floor")
NUM_STEPS = 3
_SEED = 0

Snapshot = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Training:
    """A model with its optimizer and one fixed batch.

    Attributes:
        batch: Keyword arguments of the model, which returns its loss among other things.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Mapping[str, Any]


def _tokens(vocabulary: int, batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def _language_model(model: type[Any], config: Any, *, batch: int, length: int) -> Any:
    tokens = _tokens(config.vocab_size, batch, length)
    return model(config), {"input_ids": tokens, "labels": tokens}


def _classifier(model: type[Any], config: Any, *, batch: int, side: int) -> Any:
    return model(config), {
        "pixel_values": torch.randn(batch, 3, side, side),
        "labels": torch.randint(config.num_labels, (batch,)),
    }


def _albert() -> Any:
    config = hf.AlbertConfig(
        vocab_size=512,
        embedding_size=32,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    return _language_model(hf.AlbertForMaskedLM, config, batch=4, length=64)


def _clip() -> Any:
    config = hf.CLIPConfig(
        text_config={
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 32,
            "attention_dropout": 0.1,
            "eos_token_id": 2,
        },
        vision_config={
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 64,
            "patch_size": 8,
        },
        projection_dim=48,
    )
    tokens = _tokens(512, 4, 32)
    tokens[:, -1] = 2
    return hf.CLIPModel(config), {
        "input_ids": tokens,
        "pixel_values": torch.randn(4, 3, 64, 64),
        "return_loss": True,
    }


def _convnext() -> Any:
    config = hf.ConvNextConfig(
        hidden_sizes=[16, 32, 64, 128],
        depths=[1, 1, 3, 1],
        num_labels=10,
        drop_path_rate=0.1,
    )
    return _classifier(hf.ConvNextForImageClassification, config, batch=4, side=64)


def _deberta() -> Any:
    config = hf.DebertaV2Config(
        vocab_size=512,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        max_position_embeddings=64,
        relative_attention=True,
        position_buckets=16,
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        position_biased_input=False,
        type_vocab_size=0,
    )
    return _language_model(hf.DebertaV2ForMaskedLM, config, batch=4, length=48)


def _gemma2() -> Any:
    config = hf.Gemma2Config(
        vocab_size=512,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=24,
        sliding_window=32,
        use_cache=False,
    )
    return _language_model(hf.Gemma2ForCausalLM, config, batch=4, length=64)


def _mamba() -> Any:
    config = hf.MambaConfig(
        vocab_size=256, hidden_size=64, state_size=8, num_hidden_layers=2, use_cache=False
    )
    return _language_model(hf.MambaForCausalLM, config, batch=4, length=24)


def _mistral() -> Any:
    config = hf.MistralConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=32,
        attention_dropout=0.1,
        use_cache=False,
    )
    return _language_model(hf.MistralForCausalLM, config, batch=4, length=64)


def _opt() -> Any:
    config = hf.OPTConfig(
        vocab_size=512,
        hidden_size=128,
        ffn_dim=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=128,
        use_cache=False,
    )
    return _language_model(hf.OPTForCausalLM, config, batch=4, length=64)


def _qwen3() -> Any:
    config = hf.Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        use_cache=False,
    )
    return _language_model(hf.Qwen3ForCausalLM, config, batch=4, length=64)


def _segformer() -> Any:
    config = hf.SegformerConfig(
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=64,
        num_labels=5,
    )
    return hf.SegformerForSemanticSegmentation(config), {
        "pixel_values": torch.randn(2, 3, 64, 64),
        "labels": torch.randint(5, (2, 64, 64)),
    }


def _swin() -> Any:
    config = hf.SwinConfig(
        image_size=64,
        patch_size=4,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=10,
    )
    return _classifier(hf.SwinForImageClassification, config, batch=4, side=64)


def _t5() -> Any:
    config = hf.T5Config(
        vocab_size=512,
        d_model=96,
        d_kv=24,
        d_ff=192,
        num_layers=2,
        num_heads=4,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return _language_model(hf.T5ForConditionalGeneration, config, batch=4, length=48)


def _vit_mae() -> Any:
    config = hf.ViTMAEConfig(
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        image_size=64,
        patch_size=8,
        decoder_hidden_size=64,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=128,
    )
    return hf.ViTMAEForPreTraining(config), {"pixel_values": torch.randn(8, 3, 64, 64)}


def _wav2vec2() -> Any:
    config = hf.Wav2Vec2Config(
        vocab_size=32,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        conv_dim=(64, 64, 64),
        conv_stride=(5, 4, 4),
        conv_kernel=(10, 4, 4),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        ctc_loss_reduction="mean",
    )
    return hf.Wav2Vec2ForCTC(config), {
        "input_values": torch.randn(4, 4000),
        "labels": torch.randint(1, 32, (4, 8)),
    }


def _whisper() -> Any:
    config = hf.WhisperConfig(
        vocab_size=512,
        d_model=96,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=192,
        decoder_ffn_dim=192,
        num_mel_bins=16,
        max_source_positions=64,
        max_target_positions=32,
        dropout=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    return hf.WhisperForConditionalGeneration(config), {
        "input_features": torch.randn(4, 16, 128),
        "labels": _tokens(512, 4, 32),
    }


ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "albert": _albert,
    "clip": _clip,
    "convnext": _convnext,
    "deberta_v2": _deberta,
    "gemma2": _gemma2,
    "mamba": _mamba,
    "mistral": _mistral,
    "opt": _opt,
    "qwen3": _qwen3,
    "segformer": _segformer,
    "swin": _swin,
    "t5": _t5,
    "vit_mae": _vit_mae,
    "wav2vec2": _wav2vec2,
    "whisper": _whisper,
}


def build(name: str) -> Training:
    """The same training each time: weights, batch and random numbers to come."""
    _seed(_SEED)
    model, batch = ARCHITECTURES[name]()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _seed(_SEED + 1)
    return Training(model, optimizer, batch)


def _seed(seed: int) -> None:
    """Masks of augmented audio come from NumPy, some dropped layers from Python itself."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def measure_architecture(name: str) -> dict[str, Any]:
    """Three steps at each level, against the same steps plain."""
    plain = _snapshots(build(name))
    return {
        "num_parameters": sum(param.numel() for param in build(name).model.parameters()),
        "rows": [{"level": level, **_row(name, level, plain)} for level in LEVELS],
    }


def _row(name: str, level: str, plain: list[Snapshot]) -> dict[str, Any]:
    training = build(name)
    gc.collect()  # what earlier levels left behind would count
    said: list[str] = []
    options = {"budget": level} if level == "floor" else {"activations": level}
    try:
        fitted = legroom.fit(training.model, optimizer=training.optimizer, **options)  # type: ignore[arg-type]
        try:
            seen = _snapshots(training)
            report = fitted.report()
        finally:
            fitted.undo()
    except Exception as error:  # a row, not the end of the benchmark
        return {"error": one_line(error)}
    differs = [
        f"step {number}: {key}"
        for number, (before, after) in enumerate(zip(plain, seen, strict=True), start=1)
        for key in {**before, **after}
        if not _is_equal(before.get(key), after.get(key))
    ]
    return {
        "is_equal": not differs,
        "differs": differs[:10],
        "plain_peak_bytes": report.plain_peak_bytes,
        "budget_bytes": report.budget_bytes,
        "predicted_peak_bytes": report.predicted_peak_bytes,
        "measured_peak_bytes": report.measured_peak_bytes,
        "planning_s": report.planning_s,
        "replans": report.replans,
        "ways": report.ways,
        "not_planned": [f"{what}: {why}" for what, why in report.not_planned],
        "said": said,
    }


def _is_equal(before: Any, after: Any) -> bool:
    """By their bytes: NaN equals itself, and -0.0 is not 0.0."""
    if before is None or after is None:
        return before is after
    return before.shape == after.shape and before.tobytes() == after.tobytes()


def _snapshots(training: Training) -> list[Snapshot]:
    """What each step leaves: as NumPy, since PyTorch's own tensors would count in the budget."""
    return [_step(training) for _ in range(NUM_STEPS)]


def _step(training: Training) -> Snapshot:
    model, optimizer = training.model, training.optimizer
    optimizer.zero_grad()
    loss = model(**training.batch).loss
    loss.backward()
    left = {"loss": _copy(loss)}
    del loss
    for name, param in model.named_parameters():
        if param.grad is not None:
            left[f"{name}.grad"] = _copy(param.grad)
    optimizer.step()
    left |= {name: _copy(param) for name, param in model.named_parameters()}
    left |= {name: _copy(buffer) for name, buffer in model.named_buffers()}
    left["random state"] = _copy(torch.get_rng_state())
    left["random state of NumPy"] = np.asarray(np.random.get_state()[1]).copy()
    return left


def _copy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    copied: np.ndarray[Any, Any] = tensor.detach().numpy().copy()
    return copied


def _answer(name: str) -> dict[str, Any]:
    try:
        return measure_architecture(name)
    except Exception as error:  # said by its first line, which the traceback's last is not
        return {"error": one_line(error)}


if __name__ == "__main__":
    print(json.dumps(_answer(sys.argv[1])))
