"""The tokenizer a GGUF file carries, written as `tokenizer.json` and `tokenizer_config.json`.

Called by `gguf.convert`. A byte-level vocabulary (GPT-2's kind) is written out directly, with the
splitting rule that its `tokenizer.ggml.pre` names: a wrong rule would still decode well and
encode badly, so an unknown one is refused. A sentencepiece vocabulary has no such choice and is
left to transformers, which recovers the merges from the scores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import ModelError
from .gguf_config import CONTROL
from .gguf_file import GgufFile

USER_DEFINED = 4  # a token matched whole in text, yet not hidden when decoding

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

GPT2_RULES = frozenset(("default", "gpt-2"))
DIGIT_RULES = frozenset(("smollm", "starcoder", "refact", "command-r"))
QWEN_RULES = frozenset(("qwen2", "deepseek-r1-qwen"))
LLAMA3_RULES = frozenset(("llama3", "llama-v3", "llama-bpe", "smaug-bpe", "falcon3", "dbrx"))
PATTERNS = {
    **dict.fromkeys(QWEN_RULES, _QWEN2),
    **dict.fromkeys(LLAMA3_RULES, _LLAMA3),
    "tekken": _TEKKEN,
}


def write_tokenizer(file: GgufFile, out: Path) -> None:
    """Write the tokenizer files into the directory `out`; ModelError for an unknown kind."""
    kind = file.need("tokenizer.ggml.model")
    if kind == "gpt2":
        _write_json(out / "tokenizer.json", byte_level(file))
        _write_json(out / "tokenizer_config.json", _settings(file))
    elif kind == "llama":
        _sentencepiece(file, out)
    else:
        raise ModelError(f"{file.path}: unsupported tokenizer kind {kind!r}")


def byte_level(file: GgufFile) -> dict[str, Any]:
    """The content of `tokenizer.json` for a byte-level BPE vocabulary."""
    rule = file.get("tokenizer.ggml.pre", "default")
    tokens: list[str] = file.need("tokenizer.ggml.tokens")
    normal = {"type": "NFC"} if rule in QWEN_RULES else None
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(file, tokens),
        "normalizer": normal,
        "pre_tokenizer": _splitting(rule, file),
        "post_processor": _opening(file, tokens, rule),
        "decoder": _byte_stage(regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            # a word that is itself a token is taken whole, even where no merges lead to it
            "ignore_merges": rule in LLAMA3_RULES or rule == "tekken",
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in file.need("tokenizer.ggml.merges")],
        },
    }


def _added_tokens(file: GgufFile, tokens: list[str]) -> list[dict[str, Any]]:
    types = file.get("tokenizer.ggml.token_type", [])
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": i, "content": token, **plain, "special": kind == CONTROL}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind in (CONTROL, USER_DEFINED)
    ]


def _splitting(rule: str, file: GgufFile) -> dict[str, Any]:
    if rule in GPT2_RULES:
        return _byte_stage(regex=True)
    if rule in DIGIT_RULES:
        first: dict[str, Any] = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [first, _byte_stage(regex=True)]}
    if rule not in PATTERNS:
        raise ModelError(f"{file.path}: unsupported tokenizer splitting rule {rule!r}")
    pattern = {"Regex": PATTERNS[rule]}
    first = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [first, _byte_stage(regex=False)]}


def _byte_stage(*, regex: bool) -> dict[str, Any]:
    shape = {"add_prefix_space": False, "trim_offsets": True, "use_regex": regex}
    return {"type": "ByteLevel", **shape}


def _opening(file: GgufFile, tokens: list[str], rule: str) -> dict[str, Any] | None:
    """The stage that puts the beginning mark before a text, for models that want one."""
    bos = file.get("tokenizer.ggml.bos_token_id")
    # files older than the flag are silent about it, and Llama 3 always wants the mark
    if bos is None or not file.get("tokenizer.ggml.add_bos_token", rule in LLAMA3_RULES):
        return None
    mark = {"SpecialToken": {"id": tokens[bos], "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [mark, text],
        "pair": [mark, text, mark, second],
        "special_tokens": {tokens[bos]: {"id": tokens[bos], "ids": [bos], "tokens": [tokens[bos]]}},
    }


def _settings(file: GgufFile) -> dict[str, Any]:
    """`tokenizer_config.json`: the named tokens, and the chat template if there is one."""
    tokens = file.need("tokenizer.ggml.tokens")
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {name: file.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    template = file.get("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.need_int("context_length"),
        **{f"{name}_token": tokens[i] for name, i in ids.items() if i is not None},
        **({"chat_template": template} if template else {}),
    }


def _sentencepiece(file: GgufFile, out: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            str(file.path.parent), gguf_file=file.path.name, local_files_only=True
        )
    except Exception as error:  # whatever it stumbles over, the file is what cannot be used
        raise ModelError(f"{file.path}: cannot build its tokenizer: {error}") from error
    tokenizer.save_pretrained(out)
    saved = json.loads((out / "tokenizer_config.json").read_text(encoding="utf-8"))
    for key in ("is_local", "local_files_only"):
        saved.pop(key, None)
    _write_json(out / "tokenizer_config.json", saved | {"clean_up_tokenization_spaces": False})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
