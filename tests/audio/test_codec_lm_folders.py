"""CosyVoice and Chatterbox from folders in their published form, with small models.

Chatterbox: parameter names and shapes, the prompt's embeddings and the codes of greedy decoding are those of the
package chatterbox-tts 0.1.7 with the same state. CosyVoice: the reference loop is written with transformers' Qwen2.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_chatterbox import T3, WIDTH, Levels, chatterbox, state
from tiny_cosyvoice import CODES, cosyvoice
from torch import Tensor, nn
from transformers import AutoTokenizer

import mmspec
from mmspec.audio.models.codec_lm.chatterbox import normalize_punctuation
from mmspec.audio.models.codec_lm.cosyvoice import INSTRUCTION
from mmspec.audio.models.codec_lm.cosyvoice_tokens import END_OF_PROMPT, VERSION_2, VERSION_3
from mmspec.audio.reference_audio import ReferenceCodes
from mmspec.errors import ArgumentError, ModelError, PromptError
from mmspec.heads.draft_vocabulary import expand, restrict
from mmspec.heads.speculators import write_speculators
from mmspec.methods.block.head import BlockHead

# --- Chatterbox ------------------------------------------------------------------------------------------------------

SUMS = {
    "cond": [
        *(-0.85445, 11.11975, 12.74739, 7.06183, 0.68357, 0.3955, -1.11953, 0.69136, 0.55065, -0.38065),
        *(-1.60102, 2.39374, 2.35211, 1.57158, 1.57158),
    ],
    "uncond": [
        *(-0.85445, 11.11975, 12.74739, 7.06183, 0.68357, 0.3955, -0.08622, 1.35229, 0.66831, 0.197),
        *(-1.48335, -0.1763, 1.51785, 1.57158, 1.57158),
    ],
}
GREEDY = {
    "one two three": [5562, 2843, 5670, 2450, 5448, 2312, 701, 2591, 7397, 1973, 5116, 7904],
    "two": [2326, 7084, 2912, 2848, 3188, 5133, 5514, 1973, 2312, 5133, 4090, 3743],
}


def load(folder: Path, codes: int = 6561, **config: Any) -> Any:
    return mmspec.load(str(folder), config={"codec": Levels(codes), **config})


@pytest.mark.releases
def test_chatterbox_matches_the_published_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "\n".join(sorted(f"{name} {shape}" for name, shape in T3.items()))
    assert hashlib.sha256(listed.encode()).hexdigest()[:16] == "8265ccc73ec8e6ab"
    monkeypatch.setattr("mmspec.audio.models.codec_lm.chatterbox.MAX_CODES", 12)
    pipe = load(chatterbox(tmp_path))
    prompt = pipe.adapter.frontend.prompt("one two three")
    for side, embeds in (("cond", prompt.cond), ("uncond", prompt.uncond)):
        np.testing.assert_allclose(embeds.sum(1).numpy(), SUMS[side], atol=1e-4)
    for recipe in ("plain", "scd:window=4", "recycle:window=3"):
        out = pipe(list(GREEDY), recipe=recipe, temperature=0, seed=0)
        assert [each.tokens[0].tolist() for each in out] == list(GREEDY.values())
    for where in (tmp_path, tmp_path / "tokenizer.json"):
        other = mmspec.load(str(tmp_path), processor=where, config={"codec": Levels(6561)})
        assert other.adapter.frontend.prompt("one two").cond.shape == pipe.adapter.frontend.prompt("one two").cond.shape
    audible = sum(code < 6561 for code in GREEDY["two"])
    assert out[1].sampling_rate == 1000 and out[1].audio.shape == (1, 4 * audible)


def test_chatterbox_drafts_for_itself_and_reads_older_voices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.audio.models.codec_lm.chatterbox.MAX_CODES", 12)
    folder = chatterbox(tmp_path / "large")
    pipe = load(folder, draft_model=str(folder))
    drafted = pipe("two", seed=5, recipe="draft:window=4", guidance_scale=1.0)
    assert drafted.stats.draft_calls > 0 and drafted.stats.tokens_per_call == 12 / 4  # it drafts for itself, unguided
    # An older voice file, without reference codes.
    torch.save({"t3": {"speaker_emb": torch.ones(1, 8)}}, tmp_path / "voice.pt")
    other = load(folder, voice=str(tmp_path / "voice.pt"))
    assert len(other.adapter.frontend.prompt("two").cond) == len(pipe.adapter.frontend.prompt("two").cond) - 4


def test_threads_hear_their_own_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.audio.models.codec_lm.chatterbox.MAX_CODES", 8)
    pipe = load(chatterbox(tmp_path))
    texts = ["one", "two three", "three one two", "two"] * 2
    alone = [pipe(text, seed=i).tokens[0] for i, text in enumerate(texts)]
    with ThreadPoolExecutor(len(texts)) as pool:
        found = list(pool.map(lambda i: pipe(texts[i % 8], seed=i % 8).tokens[0], range(16)))
    assert all(torch.equal(tokens, alone[i % 8]) for i, tokens in enumerate(found))


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("hello", "Hello."),
        ("  two   spaces\tand\nlines ", "two spaces and lines."),
        ("Wait... what: this – that — “yes”; ‘no’", "Wait,  what, this - that - \"yes\",  'no'."),
        ("a - b , c", "A, b, c."),
        ("Done!", "Done!"),
        ("so,", "So,"),
        ("…", ","),
        ("é…:;", "É,,,"),
        ("ßa", "SSa."),
        ("what?”", 'What?".'),
    ],
)
def test_chatterbox_normalizes_punctuation_as_its_package(text: str, normal: str) -> None:
    """The right sides are what `punc_norm` of chatterbox at 5de7a54 (July 2026) returns."""
    assert normalize_punctuation(text) == normal


def test_chatterbox_exaggeration(tmp_path: Path) -> None:
    folder = chatterbox(tmp_path / "x")
    plain, same, more = load(folder), load(folder, exaggeration=0.5), load(folder, exaggeration=1.2)
    prompts = [pipe.adapter.frontend.prompt("one").cond for pipe in (plain, same, more)]
    assert torch.equal(prompts[0], prompts[1]) and not torch.equal(prompts[0], prompts[2])
    weight = state()["cond_enc.emotion_adv_fc.weight"][:, 0]
    emotion = 1 + 4  # after the speaker and four vectors of the perceiver
    torch.testing.assert_close(prompts[2][emotion], 1.2 * weight)
    for wrong in (-1, 3, "much"):
        with pytest.raises(ArgumentError, match="exaggeration="):
            load(folder, exaggeration=wrong)
    with pytest.raises(PromptError, match="tokens, and the model positions for 42"):
        plain("one " * 30)


def test_streams_that_end_at_their_limit_are_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.audio.models.codec_lm.chatterbox.MAX_CODES", 8)
    found = load(chatterbox(tmp_path / "x"))("one", seed=0)
    assert found.truncated and "limit of 8 tokens" in found.notes[0]
    monkeypatch.setattr("mmspec.audio.models.codec_lm.cosyvoice.MAX_CODES", 3)
    pipe = load(cosyvoice(tmp_path / "c")[0], CODES)
    pipe.adapter.frontend.codec_lm.head.bias[CODES:] = -1e4  # it never ends by itself
    assert [out.truncated for out in pipe(["abc", "a"], seed=0)] == [True, True]
    assert finish_reason(pipe, "abc") == "length"
    pipe.adapter.frontend.codec_lm.head.bias[CODES:] = 1e4
    assert [out.truncated for out in pipe(["abc", "a"], seed=0)] == [False, False]
    assert finish_reason(pipe, "abc") == "stop"


def finish_reason(pipe: Any, text: str) -> str:
    """Why an engine says that a text ended, which is what the output says."""
    engine, found = mmspec.Engine(pipe), list[Any]()
    engine.add(text, seed=0)
    while engine.has_unfinished:
        found += [output for output in engine.step() if output.finished]
    assert found[0].result.truncated == (found[0].finish_reason == "length")
    return str(found[0].finish_reason)


# --- CosyVoice -------------------------------------------------------------------------------------------------------


def reference_loop(model: Any, third: bool, before: list[int], ids: list[int], codes: Tensor) -> list[int]:
    """Greedy codes within the published bounds, 2 to 20 per id of text; `codes` are those of the voice."""
    table = model["speech_embedding"].weight
    marks = table[[CODES, CODES + 2]] if third else model["llm_embedding"].weight
    words = model["llm"]["model"].model.embed_tokens(torch.tensor(before + ids, dtype=torch.int64))
    embeds = torch.cat([marks[:1], words, marks[1:], table[codes]])[None]
    made: list[int] = []
    while len(made) < 20 * len(ids):
        logits = model["llm_decoder"](model["llm"]["model"].model(inputs_embeds=embeds).last_hidden_state[0, -1])
        if len(made) < 2 * len(ids):
            logits[CODES:] = -torch.inf
        code = int(logits.argmax())
        if code >= CODES:
            break
        made.append(code)
        embeds = torch.cat([embeds, table[code][None, None]], dim=1)
    return made


def ids_of_the_package(folder: Path, third: bool, text: str) -> list[int]:
    """The ids of a text with the tokens added in the way of CosyVoice's own tokenizer classes."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "CosyVoice-BlankEN")
    tokens = list(VERSION_3 if third else VERSION_2)
    tokenizer.add_special_tokens(
        {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "additional_special_tokens": tokens}
    )
    return list(tokenizer([text])["input_ids"][0])


HARD = [
    "a[laughter]b [breath]", "<strong>ab</strong>c", "[j][ǐ]a", "a<|endofprompt|>b", "<laughter>a</laughter>",
    "[AA0] b", "[unknown]a", "a [ breath ] b", "<|im_start|>a<|im_end|>", "ab[mn]", "A [lipsmack]",
]  # fmt: skip


@pytest.mark.releases
@pytest.mark.parametrize("third", [False, True])
def test_cosyvoice_has_the_tokens_of_its_package(third: bool, tmp_path: Path) -> None:
    for tokens, known in ((VERSION_2, "794180510cdf0adb"), (VERSION_3, "4d5267643001673d")):
        assert hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:16] == known  # those of the package, in order
    folder, _ = cosyvoice(tmp_path / "c", third)
    frontend = load(folder, CODES).adapter.frontend
    for text in HARD:
        assert frontend._ids(text) == ids_of_the_package(folder, third, text)
    assert frontend._ids("<|endofprompt|>") == [5 + 2]


def test_instructions_precede_every_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmspec.audio.models.codec_lm.cosyvoice.MAX_LETTERS", 4)
    second, third = (load(cosyvoice(tmp_path / str(n), bool(n))[0], CODES) for n in (0, 1))
    ids = third.adapter.frontend._ids
    for pipe in (second, third):
        assert pipe.read("ab<|endofprompt|>a b. c d.", None).parts == ["ab<|endofprompt|>a b.", "ab<|endofprompt|>c d."]
        prompt = pipe.adapter.frontend.prompt("ab<|endofprompt|>c d")
        assert len(prompt.cond) == 2 + len(ids("ab<|endofprompt|>c d")) and prompt.min_codes == 2 * len(ids("c d"))
        with pytest.raises(PromptError, match="has no words after"):
            pipe("ab<|endofprompt|> ")
    assert len(second.adapter.frontend.prompt("c").cond) == 2 + 1
    assert len(third.adapter.frontend.prompt("c").cond) == 2 + len(ids(INSTRUCTION)) + 1
    voice = ReferenceCodes(f"a{END_OF_PROMPT}b", torch.tensor([3]))
    own = load(tmp_path / "1", CODES, voice=voice)
    assert len(own.adapter.frontend.prompt("c").cond) == 2 + 3 + 1 + 1  # the transcript has an instruction already
    bare = AutoTokenizer.from_pretrained(tmp_path / "1" / "CosyVoice-BlankEN")
    with pytest.raises(ArgumentError, match=r"does not have the token <\|endofprompt\|>, which CosyVoice 3 needs"):
        mmspec.load(str(tmp_path / "1"), processor=bare, config={"codec": Levels(CODES)})


def test_the_earlier_sampling_of_cosyvoice(tmp_path: Path) -> None:
    folder, _ = cosyvoice(tmp_path / "c")
    for option, expected in (({}, True), ({"exclude_repeated": False}, False)):
        frontend = load(folder, CODES, **option).adapter.frontend
        assert frontend.settings(frontend.sampling).processors[0].exclude is expected
    with pytest.raises(ArgumentError, match="exclude_repeated=1 is not allowed"):
        load(folder, CODES, exclude_repeated=1)


@pytest.mark.parametrize("third", [False, True])
def test_cosyvoice_matches_a_reference_loop(third: bool, tmp_path: Path) -> None:
    folder, model = cosyvoice(tmp_path / "c", third)
    codes, instruction = torch.tensor([3, 1, 4]), ids_of_the_package(folder, third, INSTRUCTION)
    for voice in (None, ReferenceCodes("dc", codes)):
        pipe = load(folder, CODES, voice=voice)
        before, voice_codes = ([], codes[:0]) if voice is None else ([4, 3], codes)
        before = [*instruction, *before] if third else before
        wanted = [reference_loop(model, third, before, ids, voice_codes) for ids in ([1, 2], [3])]
        assert len(wanted[0]) != len(wanted[1])
        for recipe in ("plain", "recycle:window=3", "scd:window=5"):
            out = pipe(["ab", "c"], recipe=recipe, temperature=0, seed=0)
            assert [pipe.adapter.codes(each.tokens[0])[0].tolist() for each in out] == wanted


def test_cosyvoice_stays_within_its_bounds(tmp_path: Path) -> None:
    folder, _ = cosyvoice(tmp_path / "c")
    small, _ = cosyvoice(tmp_path / "small", seed=1, layers=1)
    pipe = load(folder, CODES, draft_model=str(small))
    for recipe in ("scd:window=4", "draft:window=4", "lantern:window=4,delta=0.3,k=3"):
        both = pipe(["abc", "b"], seed=4, recipe=recipe)
        counts = [each.audio.shape[1] // 4 for each in both]
        assert 6 <= counts[0] <= 60 and 2 <= counts[1] <= 20
        alone = pipe("b", seed=5, recipe=recipe)
        np.testing.assert_array_equal(alone.audio, both[1].audio)


def test_errors(tmp_path: Path) -> None:
    folder, _ = cosyvoice(tmp_path / "c")
    with pytest.raises(
        ArgumentError, match="the codec that decodes them belongs to another library; pass one as config="
    ):
        mmspec.load(str(folder))
    with pytest.raises(ModelError, match="the codec has 1 codebooks of 8, the model one of 20"):
        load(folder, 8)
    with pytest.raises(ArgumentError, match="config has 'style', which this model does not have"):
        load(folder, CODES, style="x")
    with pytest.raises(
        ArgumentError, match="voice='low' is not allowed; pass a mmspec.audio.reference_audio.ReferenceCodes"
    ):
        load(folder, CODES, voice="low")
    with pytest.raises(PromptError, match="is empty"):
        load(folder, CODES)("")
    torch.save({"llm_decoder.weight": torch.ones(23, 16)}, folder / "llm.pt")
    with pytest.raises(ModelError, match="is not a CosyVoice 2 or 3; it lacks llm_decoder or speech_embedding"):
        load(folder, CODES)
    (folder / "llm.pt").write_bytes(b"no")
    with pytest.raises(ModelError, match=r"llm.pt' (cannot be read|is refused)"):
        load(folder, CODES)
    with pytest.raises(ModelError, match="does not fit: .*layers.0.mlp.gate_proj.weight"):
        load(chatterbox(tmp_path / "x", **{"tfmr.layers.0.mlp.up_proj.weight": torch.ones(47, WIDTH)}))
    with pytest.raises(ArgumentError, match="does not exist; name a file like conds.pt"):
        load(chatterbox(tmp_path / "y"), voice=str(tmp_path / "none.pt"))


def published_drafter(folder: Path, third: bool, frontend: Any, reduced: bool) -> BlockHead:
    """Writes a DSpark head with random weights for the model as vLLM runs it: texts first, then codes, then padding."""
    first, ids = len(frontend._tokenizer), CODES + (200 if third else 3)
    whole = -(-(first + ids + 2) // 128) * 128
    torch.manual_seed(4)
    drafted = torch.cat([torch.tensor([1, 3]), first + torch.arange(CODES + 1), torch.tensor([first + ids])])
    head = BlockHead(
        whole, 16, 24, 2, block_size=4, markov_rank=4, mask_token_id=2, layer_ids=(1, 2), num_hidden_layers=1,
        draft_vocab_size=len(drafted) if reduced else None,
    )  # fmt: skip
    for p in head.parameters():
        nn.init.normal_(p, std=0.5)
    if head.d2t is not None and head.t2d is not None:
        restrict(head.d2t, head.t2d, drafted)
    folder.mkdir()
    write_speculators(head, folder, None, ["Qwen2ForCausalLM"], 2)
    return head


@pytest.mark.parametrize(("third", "reduced"), [(False, True), (True, True), (False, False)])
@torch.no_grad()
def test_a_drafter_of_the_merged_vocabulary_drafts_codes(third: bool, reduced: bool, tmp_path: Path) -> None:
    """What vLLM reads as one vocabulary of texts and codes: of the codes, the head has the published one's logits."""
    folder, _ = cosyvoice(tmp_path / "c", third)
    pipe = load(folder, CODES)
    frontend = pipe.adapter.frontend
    theirs = published_drafter(tmp_path / "drafter", third, frontend, reduced)
    pipe.add_drafter(tmp_path / "drafter")
    ours, first = pipe.adapter.heads["block"], len(frontend._tokenizer)
    count = frontend.codec_lm.head.out_features
    assert ours.vocab_size == count and ours.mask_token_id == count
    texts = min(first, 300)
    theirs.embed_tokens.weight[:texts] = frontend._texts.weight[:texts]
    theirs.embed_tokens.weight[first : first + count] = frontend.codec_lm.embed.weight[:count]
    hidden, slots = torch.randn(1, 3, 32), torch.arange(3)[None]

    def outputs(head: BlockHead, anchor: int) -> tuple[Tensor, Tensor]:
        block = torch.tensor([[[anchor, *[head.mask_token_id] * 3]]])
        at = 3 + torch.arange(4)[None, None]
        out = head(block, at, head.context(hidden, slots), torch.ones(1, 1, 3, dtype=torch.bool))[0, 0]
        assert head.markov_head is not None
        bias, _ = head.markov_head(torch.tensor([anchor]), out[:1], out.new_zeros(1, 4))
        z = torch.zeros(1, head.vocab_size) if head.lm_head is None else head.lm_head(out[:1])
        return out, expand(z + bias, head.d2t, head.vocab_size)[0]

    (out, logits), (expected, all_logits) = outputs(ours, 5), outputs(theirs, first + 5)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(logits, all_logits[first : first + count])
    assert torch.isfinite(logits).sum() == (CODES + 1 if reduced else count)
    spoken = pipe(["abc", "da"], seed=0, recipe="block:window=4")
    assert spoken[0].stats.draft_calls > 0


def test_drafters_without_a_place_for_the_codes_are_refused(tmp_path: Path) -> None:
    folder, _ = cosyvoice(tmp_path / "c")
    pipe = load(folder, CODES)
    published_drafter(tmp_path / "d", False, pipe.adapter.frontend, True)
    config = json.loads((tmp_path / "d" / "config.json").read_text())
    for change, message in (({"mask_token_id": 999}, "mask token 999, which is no text token"),):
        (tmp_path / "d" / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelError, match=message):
            pipe.add_drafter(tmp_path / "d")
    config["transformer_layer_config"]["vocab_size"] = 30
    (tmp_path / "d" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="has a vocabulary of 30 tokens; the model's 23 codes would be those from"):
        pipe.add_drafter(tmp_path / "d")
