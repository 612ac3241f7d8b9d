"""Text to token ids and back, and the chat template: one model's tokenizer.

Called by admission's text thread (encoding), the streamer (decoding) and whoever pairs two models.
Fast tokenizers are not safe to share between threads, so every thread loads its own `TextCodec`;
that takes a quarter of a second, most of it once per process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import ModelError, one_line

_MARK = "\ue000 what the user says \ue000"


class TextCodec:
    """The tokenizer of one model directory. For one thread only."""

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a fast transformers tokenizer; `load` is the way to get one from a directory."""
        self._tokenizer = tokenizer
        self._backend = tokenizer.backend_tokenizer
        # some files cut or pad what they encode; a prompt must arrive as it was sent
        self._backend.no_truncation()
        self._backend.no_padding()
        added = tokenizer.added_tokens_decoder
        self._special: dict[int, str] = {i: token.content for i, token in added.items()}
        self._bytes = _Bytes.of(self._backend)

    @classmethod
    def load(cls, directory: Path | str) -> TextCodec:
        """Read the tokenizer of a Hugging Face directory; ModelError if it has no fast one."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                str(directory), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # it raises many kinds, all meaning that none can be had
            why = one_line(error)
            raise ModelError(f"{directory} has no tokenizer that can be read: {why}") from error
        if not getattr(tokenizer, "is_fast", False):
            kind = type(tokenizer).__name__
            raise ModelError(f"{directory} has only a slow tokenizer ({kind}): no tokenizer.json")
        return cls(tokenizer)

    @property
    def vocab_size(self) -> int:
        """How many tokens there are; the model's output may be padded beyond."""
        return len(self._tokenizer)

    @property
    def json(self) -> str:
        """The whole tokenizer, as a `tokenizer.json` would hold it."""
        text: str = self._backend.to_str()
        return text

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text, with the beginning mark where the model is used to one.

        Raises ValueError for text that is not Unicode (a lone surrogate).
        """
        return self._encode(text, marks=True)

    def encode_part(self, text: str) -> list[int]:
        """Ids of a text that stands within another: no marks. Raises ValueError like `encode`."""
        return self._encode(text, marks=False)

    def encode_chat(self, turns: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation, `{"role", "content"}` each, up to where the assistant speaks.

        Raises ValueError with a sentence for the client: the template's own objection (to the
        order of roles, say), or that the model has no template.
        """
        if not self.has_chat_template:
            raise ValueError("this model has no chat template: send a plain prompt instead")
        return self._encode(self._render(turns), marks=False)

    def encode_opening(self, turns: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation up to where the user speaks next. Raises ValueError likewise."""
        if not self.has_chat_template:
            raise ValueError("this model has no chat template: it cannot write conversations")
        text = self._render([*turns, {"role": "user", "content": _MARK}])
        return self._encode(text[: text.index(_MARK)], marks=False)

    def _encode(self, text: str, *, marks: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the text is not valid Unicode at character {error.start}") from error
        ids: list[int] = self._backend.encode(text, add_special_tokens=marks).ids
        return ids

    def _render(self, turns: Sequence[Mapping[str, Any]]) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(turn) for turn in turns], add_generation_prompt=True, tokenize=False
            )
        except TemplateError as error:
            raise ValueError(f"the chat template refuses these messages: {error}") from error
        except Exception as error:  # templates are programs: they may trip over any content
            raise ValueError(f"the chat template fails on these messages: {error}") from error
        return text

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of the ids. Bytes that do not make up a character come out as U+FFFD."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def piece_bytes(self, token: int) -> bytes:
        """The bytes that one token adds to a text, empty for an id that is no token.

        A token may hold part of a character. Special tokens give their own spelling.
        """
        if token in self._special:
            return self._special[token].encode()
        spelled = self._backend.id_to_token(token) if token >= 0 else None
        return b"" if spelled is None else self._bytes.read(spelled)

    def piece(self, token: int) -> str:
        """The text that one token adds, with U+FFFD where it breaks a character."""
        return self.piece_bytes(token).decode(errors="replace")

    def vocabulary(self) -> dict[str, int]:
        """Every token's spelling and id."""
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary


def same_tokenizer(a: TextCodec, b: TextCodec) -> str | None:
    """None when both have the same tokens under the same ids, else a clause on what differs."""
    ours, theirs = a.vocabulary(), b.vocabulary()
    if ours == theirs:
        return None
    if len(ours) != len(theirs):
        return f"one has {len(ours)} tokens, the other {len(theirs)}"
    token = min((t for t in ours if theirs.get(t) != ours[t]), key=lambda t: ours[t])
    if token not in theirs:
        return f"one has the token {token!r} (id {ours[token]}), the other has not"
    return f"the token {token!r} has id {ours[token]} in one and {theirs[token]} in the other"


class _Bytes:
    """How a vocabulary spells bytes: one character for each, or as text with `<0x0A>` beside it."""

    def __init__(self, table: dict[str, int] | None, fallback: bool) -> None:
        self._table = table
        self._fallback = fallback

    @classmethod
    def of(cls, backend: Any) -> _Bytes:
        decoder = str(json.loads(backend.to_str()).get("decoder"))
        return cls(_byte_alphabet() if "ByteLevel" in decoder else None, "ByteFallback" in decoder)

    def read(self, spelled: str) -> bytes:
        if self._table is not None:
            table = self._table
            known = all(c in table for c in spelled)
            return bytes(table[c] for c in spelled) if known else spelled.encode()
        if self._fallback and len(spelled) == 6 and spelled.startswith("<0x"):
            return bytes([int(spelled[3:5], 16)])
        return spelled.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}
