"""Tiny models as Hugging Face's libraries load them: configuration, seeded weights, tokenizer.

In goes a folder; out comes a folder for each model. transformers writes them, so that they are in
the format of the installed version; the configuration of the diffusion U-Net is written as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tried.made_up.text import WORDS

_WIDTHS = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 2}


def models(folder: Path, random: np.random.Generator) -> None:
    """`bert`, `gpt2`, `llama`, `vit` and `unet`."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random.integers(1 << 31)))
        for name, write in (("bert", _bert), ("gpt2", _gpt2), ("llama", _llama), ("vit", _vit)):
            write(folder / name)
    _unet(folder / "unet")


def _bert(folder: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = [*special, *WORDS]
    sizes = {"vocab_size": len(vocabulary), "max_position_embeddings": 128}
    BertForMaskedLM(BertConfig(**_WIDTHS, **_HEADS, **sizes)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocabulary))
    _write_words(folder, vocabulary, special)


def _write_words(folder: Path, vocabulary: list[str], special: list[str]) -> None:
    """BERT's tokenizer: whole words between [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    codes = {word: code for code, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(codes, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", codes["[CLS]"]), ("[SEP]", codes["[SEP]"])],
    )
    tokenizer.add_special_tokens(special)
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    given = dict(zip(names, special, strict=True))
    _write_tokenizer(folder, tokenizer, {**given, "tokenizer_class": "BertTokenizer"})


def _gpt2(folder: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    codes = _write_bytes(folder, ["<|endoftext|>"], {"eos_token": "<|endoftext|>"})
    end = codes["<|endoftext|>"]
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
    config = GPT2Config(vocab_size=len(codes), bos_token_id=end, eos_token_id=end, **sizes)
    GPT2LMHeadModel(config).save_pretrained(folder)


def _llama(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    codes = _write_bytes(folder, list(named.values()), named)
    ends = {f"{name}_id": codes[token] for name, token in named.items()}
    sizes = {"vocab_size": len(codes), "max_position_embeddings": 256, "num_key_value_heads": 1}
    LlamaForCausalLM(LlamaConfig(**_WIDTHS, **_HEADS, **sizes, **ends)).save_pretrained(folder)


def _write_bytes(folder: Path, special: list[str], named: dict[str, str]) -> dict[str, int]:
    """A tokenizer of single bytes; returns the code of each token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    codes = {token: code for code, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(codes, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    settings = {**named, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128}
    _write_tokenizer(folder, tokenizer, settings)
    return codes


def _write_tokenizer(folder: Path, tokenizer: Any, settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    parsed = json.loads(tokenizer.to_str())
    vocabulary = parsed["model"]["vocab"]  # in the order of a hash, different in each process
    parsed["model"]["vocab"] = dict(sorted(vocabulary.items(), key=lambda item: item[1]))
    (folder / "tokenizer.json").write_text(json.dumps(parsed, indent=1))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def _vit(folder: Path) -> None:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(**_WIDTHS, **_HEADS, image_size=32, patch_size=8)
    ViTModel(config).save_pretrained(folder)
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 32, "width": 32},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1))


def _unet(folder: Path) -> None:
    folder.mkdir(parents=True)
    settings = {
        "_class_name": "UNet2DModel",
        "sample_size": 16,
        "in_channels": 3,
        "out_channels": 3,
        "layers_per_block": 1,
        "block_out_channels": [8, 16],
        "norm_num_groups": 4,
        "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
        "attention_head_dim": 8,
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
