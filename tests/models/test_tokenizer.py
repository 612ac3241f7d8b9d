"""Text and tokens: encoding, chat templates, decoding, and whether two tokenizers agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from paceline.models.errors import ModelError
from paceline.models.tokenizer import TextCodec, same_tokenizer
from support.gguf_files import MERGES, SPECIALS, TEMPLATE, byte_level_vocabulary

STRICT = (
    "{% for m in messages %}{% if m['role'] not in ('user', 'assistant') %}"
    "{{ raise_exception('Only user and assistant roles, please') }}{% endif %}"
    "{{ m['content'] + '\n' }}{% endfor %}"
)
TURNS = ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "the 12"})


def byte_level(tokens: list[str] | None = None, *, bos: bool = False) -> Tokenizer:
    vocabulary = tokens or byte_level_vocabulary()
    made = set(vocabulary)
    merges = [(a, b) for a, b in (m.split(" ") for m in MERGES) if a + b in made]
    vocab = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token) for token in SPECIALS])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            "<|im_start|> $A", special_tokens=[("<|im_start|>", vocab["<|im_start|>"])]
        )
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Sentencepiece's kind: text with a mark for spaces, and bytes for what has no token."""
    letters = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "h", "e", "he"]
    letters.append("▁he")
    vocab = {token: i for i, token in enumerate(letters)}
    merges = [("h", "e"), ("▁", "he")]
    model = models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(token) for token in letters[:3]])
    return tokenizer


def codec(tmp_path: Path, tokenizer: Tokenizer, template: str | None = TEMPLATE) -> TextCodec:
    """`tokenizer` saved as a model's, and loaded from there."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = template
    fast.save_pretrained(tmp_path)
    return TextCodec.load(tmp_path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return codec(tmp_path_factory.mktemp("plain"), byte_level())


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return codec(tmp_path_factory.mktemp("pieces"), byte_fallback())


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_byte_level_text_survives(plain: TextCodec, text: str) -> None:
    ids = plain.encode(text)
    assert plain.decode(ids, skip_special=False) == text
    assert b"".join(map(plain.piece_bytes, ids)) == text.encode()


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_byte_fallback_text_survives(pieces: TextCodec, text: str) -> None:
    ids = pieces.encode(text)
    assert pieces.decode(ids, skip_special=False) == text
    # each piece keeps its own space, the one put before the first word included
    spelled = b"".join(map(pieces.piece_bytes, ids)).decode()
    assert spelled == (" " + text if text else "")


def test_encoding_is_transformers_own(tmp_path: Path) -> None:
    ours = codec(tmp_path, byte_level(bos=True))
    reference = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "hello the 12 <|im_end|> ünï"
    assert ours.encode(text) == reference.encode(text)
    assert ours.decode(ours.encode(text), False) == reference.decode(reference.encode(text))


def test_beginning_mark_only_where_the_tokenizer_puts_one(tmp_path: Path, plain: TextCodec) -> None:
    marked = codec(tmp_path, byte_level(bos=True))
    assert marked.encode("hello") == [SPECIALS.index("<|im_start|>"), *plain.encode("hello")]
    # a template writes its own marks
    assert marked.encode_chat(TURNS) == plain.encode_chat(TURNS)


def test_chat_is_the_template_s_text_encoded(plain: TextCodec) -> None:
    expected = (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\nthe 12<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = plain.encode_chat(TURNS)
    assert plain.decode(ids, skip_special=False) == expected
    assert ids.count(SPECIALS.index("<|im_start|>")) == 3
    assert "<|im_" not in plain.decode(ids)


def test_template_s_objection_reaches_the_client(tmp_path: Path) -> None:
    strict = codec(tmp_path, byte_level(), STRICT)
    with pytest.raises(ValueError, match="Only user and assistant roles, please"):
        strict.encode_chat([{"role": "system", "content": "be good"}])


@pytest.mark.parametrize(
    "turns", [[{"role": "user"}], [{"role": "user", "content": 3}], [{"content": "x"}], []]
)
def test_turns_the_template_trips_over(plain: TextCodec, turns: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="the chat template"):
        plain.encode_chat(turns)


def test_model_without_template(tmp_path: Path) -> None:
    base = codec(tmp_path, byte_level(), None)
    assert not base.has_chat_template
    with pytest.raises(ValueError, match="no chat template"):
        base.encode_chat(TURNS)


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_lone_surrogate_is_the_client_s_mistake(plain: TextCodec, text: str) -> None:
    with pytest.raises(ValueError, match="not valid Unicode at character"):
        plain.encode(text)
    with pytest.raises(ValueError, match="not valid Unicode at character"):
        plain.encode_chat([{"role": "user", "content": text}])


def test_prompts_are_neither_cut_nor_padded(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    free = codec(tmp_path, tokenizer)
    assert free.decode(free.encode("abcdefghijkl")) == "abcdefghijkl"
    assert len(free.encode("abc")) == 3


def test_pieces_of_a_broken_character(plain: TextCodec) -> None:
    euro = plain.encode("€")
    assert len(euro) == 3
    assert b"".join(map(plain.piece_bytes, euro)) == "€".encode()
    assert [plain.piece(token) for token in euro] == ["\ufffd"] * 3


def test_pieces_keep_spaces_and_name_special_tokens(plain: TextCodec, pieces: TextCodec) -> None:
    assert plain.piece(byte_level_vocabulary().index("Ġth")) == " th"
    assert plain.piece(SPECIALS.index("<|im_end|>")) == "<|im_end|>"
    assert pieces.piece(pieces.vocabulary()["▁he"]) == " he"
    assert pieces.piece_bytes(pieces.vocabulary()["<0x0A>"]) == b"\n"


def test_ids_beyond_the_vocabulary_are_silent(plain: TextCodec) -> None:
    beyond = plain.vocab_size
    assert (plain.piece(beyond), plain.piece(-1), plain.decode([beyond])) == ("", "", "")
    assert plain.vocab_size == len(byte_level_vocabulary())


def test_same_tokenizer(tmp_path: Path, plain: TextCodec) -> None:
    twin = codec(tmp_path / "twin", byte_level(bos=True), STRICT)
    assert same_tokenizer(plain, twin) is None

    longer = codec(tmp_path / "longer", byte_level([*byte_level_vocabulary(), "more"]))
    assert same_tokenizer(plain, longer) == "one has 270 tokens, the other 271"

    swapped = byte_level_vocabulary()
    swapped[5], swapped[6] = swapped[6], swapped[5]
    other = codec(tmp_path / "swapped", byte_level(swapped))
    assert (
        same_tokenizer(plain, other)
        == f"the token {swapped[6]!r} has id 5 in one and 6 in the other"
    )

    renamed = byte_level_vocabulary()
    renamed[-1] = "renamed"
    fourth = codec(tmp_path / "renamed", byte_level(renamed))
    assert "(id 269), the other has not" in str(same_tokenizer(plain, fourth))


def test_missing_and_broken_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer that can be read"):
        TextCodec.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=str(tmp_path)):
        TextCodec.load(tmp_path)


def test_slow_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    class Slow:
        is_fast = False

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *a, **k: Slow())
    with pytest.raises(ModelError, match=r"only a slow tokenizer \(Slow\)"):
        TextCodec.load(tmp_path)
