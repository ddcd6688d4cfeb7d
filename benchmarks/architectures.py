"""Does a fitted step stay bit-equal and within budget on models that are no case? One process each.

In goes the name of a Hugging Face architecture; out comes one JSON object on stdout: for shares of
the activations and for the floor, whether training is the same bit for bit, and what was predicted
and measured. The models are small and made from their configurations: nothing is downloaded.
"""

from __future__ import annotations

import functools
import json
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers as hf

import legroom
from benchmarks.cases import Case
from benchmarks.exactness import compare_levels
from benchmarks.processes import one_line

_SEED = 0


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


def _patchtst() -> Any:
    """Batch norms over transposed tensors, whose layout PyTorch foretells wrong."""
    config = hf.PatchTSTConfig(
        num_input_channels=3,
        context_length=128,
        prediction_length=16,
        d_model=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        ffn_dim=128,
    )
    return hf.PatchTSTForPrediction(config), {
        "past_values": torch.randn(8, 128, 3),
        "future_values": torch.randn(8, 16, 3),
    }


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
    "patchtst": _patchtst,
    "qwen3": _qwen3,
    "segformer": _segformer,
    "swin": _swin,
    "t5": _t5,
    "vit_mae": _vit_mae,
    "wav2vec2": _wav2vec2,
    "whisper": _whisper,
}


def build(name: str) -> Case:
    """The same training each time: weights, batch and random numbers to come."""
    _seed(_SEED)
    model, batch = ARCHITECTURES[name]()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    _seed(_SEED + 1)

    def loss() -> torch.Tensor:
        found: torch.Tensor = model(**batch).loss
        return found

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        return value.detach()

    return Case(
        name,
        "tiny",
        model,
        optimizer,
        step,
        loss,
        models=(model,),
        optimizers=(optimizer,),
        rewind=lambda: None,  # there is one batch
    )


def _seed(seed: int) -> None:
    """Masks of augmented audio come from NumPy, some dropped layers from Python itself."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def measure_architecture(name: str) -> dict[str, Any]:
    """Three steps at each level, against the same steps plain."""
    return {
        "num_parameters": sum(param.numel() for param in build(name).model.parameters()),
        "rows": compare_levels(
            functools.partial(build, name),
            lambda case, **level: legroom.fit(case.model, optimizer=case.optimizer, **level),
        ),
    }


def _answer(name: str) -> dict[str, Any]:
    try:
        return measure_architecture(name)
    except Exception as error:  # said by its first line, which the traceback's last is not
        return {"error": one_line(error)}


if __name__ == "__main__":
    print(json.dumps(_answer(sys.argv[1])))
