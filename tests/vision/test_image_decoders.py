"""The tokenizer of Emu3, and the decoders of Emu3 and SimpleAR, from files in their published layouts."""

from __future__ import annotations

import base64
import json
import re
import warnings
from pathlib import Path

import pytest
import tiny_flat_images
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Emu3VQVAE
from transformers.models.emu3.configuration_emu3 import Emu3VQVAEConfig

import mmspec
from mmspec.errors import ModelError
from mmspec.vision.hf.cosmos_decoder import load_cosmos
from mmspec.vision.hf.emu3_decoder import is_emu3_decoder, load_emu3_decoder
from mmspec.vision.hf.emu3_tokenizer import read_emu3_tokenizer


@pytest.mark.releases
def test_the_tokenizer_of_emu3(tmp_path: Path) -> None:
    """Byte pairs by rank, digits one by one, and the marks after them in the order of the original code."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"12"]
    lines = [base64.b64encode(token) + f" {rank}".encode() for rank, token in enumerate(tokens)]
    (tmp_path / "emu3.tiktoken").write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(ModelError, match="has no readable emu3.tiktoken and emu3_vision_tokens.txt"):
        read_emu3_tokenizer(tmp_path)
    (tmp_path / "emu3_vision_tokens.txt").write_text("<|image token|>\n<|image start|>\n<|visual token 000000|>\n")
    tokenizer = read_emu3_tokenizer(tmp_path)
    # End of text, two marks of a chat, 205 extra ones, those of the file.
    assert len(tokenizer) == 260 + 3 + 205 + 3
    ids = tokenizer("the the12<|image start|>12*34<|extra_204|>e\u0301", add_special_tokens=False)["input_ids"]
    digits = [49, 50, 42, 51, 52]
    assert ids == [257, 258, 49, 50, 260 + 3 + 205 + 1, *digits, 260 + 3 + 204, 0xC3, 0xA9]
    assert tokenizer.bos_token_id == 260 + 3 + 203 and tokenizer.pad_token_id == 260


BACK = (
    (r"middle_block\.", "mid."), (r"(up|down)_block\.\1\.", r"\1."), (r"attn_norms\.(\d+)\.", r"attn.\1.norm."),
    (r"attn_norm\.", "attn_1.norm."), (r"\b([qkv])_proj\.", r"\1."), (r"\bout_proj\.", "proj_out."),
)  # fmt: skip


@pytest.mark.releases
def test_the_decoder_of_emu3(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Emu3VQVAEConfig(codebook_size=20, base_channels=32, channel_multiplier=[1, 2], num_res_blocks=1)
    config.attn_resolutions, config.hidden_size = [1], 64
    vq = Emu3VQVAE(config).eval()
    tensors: dict[str, Tensor] = {}
    for key, value in vq.state_dict().items():
        name = key
        for pattern, new in BACK:
            name = re.sub(pattern, new, name)
        tensors[name] = value[..., None, None] if re.search(r"(_proj)\.weight$", key) else value.clone()
    save_file({name: value.contiguous() for name, value in tensors.items()}, tmp_path / "model.safetensors")
    own = {"architectures": ["Emu3VisionVQModel"], "codebook_size": 20, "ch": 32, "ch_mult": [1, 2]}
    (tmp_path / "config.json").write_text(json.dumps(own | {"num_res_blocks": 1, "attn_resolutions": [1]}))
    assert is_emu3_decoder(tmp_path)
    decoder, codes = load_emu3_decoder(tmp_path), torch.randint(0, 20, (2, 6))
    assert decoder.vocab_size == 20
    with torch.no_grad():
        assert torch.equal(decoder.decode_grid(codes, (2, 3)), vq.decode(codes.view(2, 2, 3)))
    pipe = mmspec.load(
        tiny_flat_images.model("emu3"), processor=tiny_flat_images.tokenizer("emu3"), tokenizer=str(tmp_path),
        config={"layout": "emu3"},
    )  # fmt: skip
    pipe.set_progress_bar_config(disable=True)
    # The tiny decoder has one level less than the published one: two pixels per code instead of eight.
    assert pipe("a red dog", height=16, width=24, seed=0).images[0].size == (6, 4)


class Blocks(nn.Module):
    """A stand-in for NVIDIA's program: each code becomes a block of one shade."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1 / 32000))

    def forward(self, codes: Tensor) -> Tensor:
        shade = codes.to(self.scale.dtype) * self.scale - 1
        pixels = shade.repeat_interleave(16, 2).repeat_interleave(16, 3)
        return torch.stack([pixels, pixels, pixels], dim=1)


def test_the_decoder_of_cosmos(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.script(Blocks()).save(str(tmp_path / "decoder.jit"))
    decoder = load_cosmos(tmp_path)
    pixels = decoder.decode_grid(torch.tensor([[0, 32000, 63999, 0, 1, 2]]), (2, 3))
    assert pixels.shape == (1, 3, 32, 48) and pixels.dtype == torch.bfloat16
    assert pixels[0, 0, 0, ::16].tolist() == pytest.approx([-1, 0, 1], abs=0.02)
    (tmp_path / "decoder.jit").write_bytes(b"no program")
    with pytest.raises(ModelError, match=r"decoder.jit' cannot be loaded"):
        load_cosmos(tmp_path)
