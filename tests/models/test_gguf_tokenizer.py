"""Tokenizers carried by GGUF files against tokenizers built from the same parts."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from paceline.models.errors import ModelError
from paceline.models.gguf import convert
from paceline.models.gguf_tokenizer import PATTERNS
from paceline.models.tokenizer import TextCodec
from support.gguf_files import (
    MERGES,
    SPECIALS,
    byte_level_vocabulary,
    tiny_model,
    write_gguf,
)

# Splitting rules in the words of the models' own tokenizer files.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEXT = st.text(
    st.sampled_from("hello the  12345\t\n'sLL,.é€") | st.characters(exclude_categories=["Cs"])
)


def split_by(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def rules() -> dict[str, tuple[Any, Any]]:
    """Splitting rule → pre-tokenizer and normalizer."""
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = pre_tokenizers.Digits(individual_digits=True)
    return {
        "gpt-2": (gpt2, None),
        "smollm": (pre_tokenizers.Sequence([digits, gpt2]), None),
        "qwen2": (split_by(QWEN2), normalizers.NFC()),
        "llama-bpe": (split_by(LLAMA3), None),
    }


@pytest.fixture(scope="module")
def codecs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextCodec]:
    """Splitting rule → what a file that names it is converted into."""
    root = tmp_path_factory.mktemp("rules")
    model = tiny_model("llama")
    return {
        rule: TextCodec.load(
            convert(write_gguf(root / f"{rule}.gguf", "llama", model, pre=rule), root / rule)
        )
        for rule in rules()
    }


def reference(rule: str) -> Tokenizer:
    vocab = {token: i for i, token in enumerate(byte_level_vocabulary())}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer, normalizer = rules()[rule]
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([AddedToken(token) for token in SPECIALS])
    return tokenizer


@pytest.mark.parametrize("rule", rules())
@given(text=TEXT)
@settings(deadline=None, max_examples=200)
def test_file_encodes_like_its_model(codecs: dict[str, TextCodec], rule: str, text: str) -> None:
    expected = reference(rule).encode(text).ids
    got = codecs[rule].encode(text)
    if rule == "llama-bpe":  # which opens every text with its mark
        assert got[0] == SPECIALS.index("<|im_start|>")
        got = got[1:]
    assert got == expected


def test_rules_differ_where_they_should(codecs: dict[str, TextCodec]) -> None:
    """Two spaces before a digit, numbers, and a composed letter tell the rules apart."""
    texts = ("a  1", "12", "e\u0301")
    kinds = {rule: tuple(tuple(codecs[rule].encode(t)) for t in texts) for rule in rules()}
    assert len(set(kinds.values())) == len(kinds)


def test_patterns_are_those_of_the_models() -> None:
    assert (PATTERNS["llama3"], PATTERNS["qwen2"]) == (LLAMA3, QWEN2)
    for pattern in set(PATTERNS.values()):
        for text in ("Hello WORLD don't 1234\n\n  x", "", "€ 12 ü"):
            parts = pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)
            assert "".join(part for part, _ in parts) == text


def test_words_that_no_merge_reaches(tmp_path: Path) -> None:
    """Llama 3's rule takes a word that is a token whole; GPT-2's needs the merges."""

    def alter(writer: GGUFWriter) -> None:
        writer.kv_data[0]["tokenizer.ggml.tokens"].value.append("zyx")
        writer.kv_data[0]["tokenizer.ggml.token_type"].value.append(1)

    token = len(byte_level_vocabulary())
    for rule, count in (("llama-bpe", 1), ("gpt-2", 3)):
        path = write_gguf(tmp_path / rule, "llama", tiny_model("llama"), pre=rule, alter=alter)
        codec = TextCodec.load(convert(path, tmp_path / f"{rule}-out"))
        ids = [i for i in codec.encode("zyx") if i != SPECIALS.index("<|im_start|>")]
        assert len(ids) == count
        assert (token in ids) == (count == 1)


@pytest.mark.parametrize("flag", [True, False])
def test_the_file_decides_about_the_beginning_mark(tmp_path: Path, flag: bool) -> None:
    def alter(writer: GGUFWriter) -> None:
        writer.add_add_bos_token(flag)

    path = write_gguf(tmp_path / "m", "qwen2", tiny_model("qwen2"), pre="llama-bpe", alter=alter)
    codec = TextCodec.load(convert(path, tmp_path / "out"))
    assert (codec.encode("hello")[0] == SPECIALS.index("<|im_start|>")) == flag


def sentencepiece(writer: GGUFWriter) -> None:
    """Replace the vocabulary by one of sentencepiece's kind, which has scores and no merges."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    words = ["▁", "h", "e", "l", "o", "he", "ll", "▁he", "llo", "▁hello"]
    values = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens + words,
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "scores": [0.0] * len(tokens) + [-float(i) for i in range(len(words), 0, -1)],
    }
    data = writer.kv_data[0]
    del data["tokenizer.ggml.merges"]
    writer.add_token_scores([0.0])
    for key, value in values.items():
        data[f"tokenizer.ggml.{key}"].value = value


def test_sentencepiece_vocabulary(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"), alter=sentencepiece)
    codec = TextCodec.load(convert(path, tmp_path / "out"))
    vocabulary = codec.vocabulary()
    assert codec.encode("hello") == [1, vocabulary["▁hello"]]
    for text in ("hello hello", "hell of 日本\n"):
        assert codec.decode(codec.encode(text)) == text
    assert codec.decode(codec.encode_chat([{"role": "user", "content": "hello"}])).strip()


GEMMA_MARKS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
GEMMA_WHOLE = ("\n", "\n\n", "\n\n\n", "<b>")
GEMMA_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
GEMMA_WORDS = (
    *("▁▁", "▁▁▁", "he", "ll", "▁t", "▁th", "▁the", "llo", "hello", "▁hello", "el", "▁é", "lo"),
    *("▁", "h", "e", "l", "o", "t", "é", "日"),
)


def gemma(writer: GGUFWriter) -> None:
    """A vocabulary like Gemma's: no space before a text, runs of line breaks taken whole."""
    tokens = [*GEMMA_MARKS, *GEMMA_WHOLE, *GEMMA_BYTES, *GEMMA_WORDS]
    counts = len(GEMMA_MARKS), len(GEMMA_WHOLE), len(GEMMA_BYTES), len(GEMMA_WORDS)
    values = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_type": [k for k, n in zip((3, 4, 6, 1), counts, strict=True) for _ in range(n)],
        "scores": [-1000.0] * sum(counts[:3]) + [-float(i) for i in range(counts[3])],
        "bos_token_id": 2,
        "eos_token_id": 1,
    }
    data = writer.kv_data[0]
    del data["tokenizer.ggml.merges"]
    writer.add_token_scores([0.0])
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_unk_token_id(3)
    for key, value in values.items():
        data[f"tokenizer.ggml.{key}"].value = value


def likeliest_pieces(text: str) -> list[str]:
    """What sentencepiece makes of a text without marks: of all neighbours, those whose joint piece
    has the highest score are joined first."""
    rank = {word: i for i, word in enumerate(GEMMA_WORDS)}
    parts = list(text.replace(" ", "▁"))
    while True:
        pairs = [(rank.get(a + b, 10**6), i) for i, (a, b) in enumerate(pairwise(parts))]
        best, i = min(pairs, default=(10**6, 0))
        if best == 10**6:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [
        piece
        for part in parts
        for piece in ([part] if part in rank else [f"<0x{b:02X}>" for b in part.encode()])
    ]


@pytest.fixture(scope="module")
def gemma_codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    root = tmp_path_factory.mktemp("gemma")
    model = tiny_model("gemma3", vocab_size=300)
    path = write_gguf(root / "m.gguf", "gemma3", model, alter=gemma)
    return TextCodec.load(convert(path, root / "out"))


@given(st.lists(st.text("helo té 日€") | st.sampled_from(GEMMA_WHOLE), max_size=6))
@settings(deadline=None, max_examples=300)
def test_a_vocabulary_like_gemmas(gemma_codec: TextCodec, parts: list[str]) -> None:
    text = "".join(parts)
    spelled = {i: token for token, i in gemma_codec.vocabulary().items()}
    wanted = ["<bos>"]
    for part in re.split("(\n{1,3}|<b>)", text):
        wanted += [part] if part in GEMMA_WHOLE else likeliest_pieces(part)
    ids = gemma_codec.encode(text)
    assert [spelled[i] for i in ids] == wanted
    assert gemma_codec.decode(ids) == text
    assert b"".join(gemma_codec.piece_bytes(i) for i in ids[1:]) == text.encode()


def test_unknown_kind_of_tokenizer_is_named(tmp_path: Path) -> None:
    def alter(writer: GGUFWriter) -> None:
        writer.kv_data[0]["tokenizer.ggml.model"].value = "rwkv"

    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_model("llama"), alter=alter)
    with pytest.raises(ModelError, match="tokenizer kind 'rwkv'"):
        convert(path, tmp_path / "out")
