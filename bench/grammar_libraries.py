"""The libraries that `bench.grammars` compares, behind one face: as they come, compact JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Matcher(Protocol):
    """Where a text stands in its grammar."""

    def mask(self) -> NDArray[np.bool_]:
        """The tokens that may come next, bool [V] or a little longer."""
        ...

    def advance(self, token: int) -> bool:
        """Take a token, if it fits."""
        ...

    def back(self, tokens: int) -> None:
        """Take so many tokens back."""
        ...

    def complete(self) -> bool:
        """Whether the text may end here."""
        ...


class Llguidance:
    """Compiles while it makes masks; `compile` raises ValueError."""

    def __init__(self, tokenizer: Path, ends: list[int]) -> None:
        import llguidance

        self._module = llguidance
        self.tokens = llguidance.LLTokenizer(str(tokenizer), eos_token=ends)

    def compile(self, kind: str, text: str) -> Matcher:
        make = self._module.LLMatcher
        if kind == "json_schema":
            compact = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
            text = make.grammar_from_json_schema(text, overrides=compact)  # type: ignore[arg-type]
        elif kind == "regex":
            text = make.grammar_from_regex(text)
        matcher = make(self.tokens, text, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return _LlguidanceMatcher(matcher)


class _LlguidanceMatcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def mask(self) -> NDArray[np.bool_]:
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(packed, bitorder="little").view(np.bool_)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.try_consume_tokens([token]))

    def back(self, tokens: int) -> None:
        self._matcher.rollback(tokens)

    def complete(self) -> bool:
        return bool(self._matcher.is_accepting())


class Xgrammar:
    """Compiles beforehand; `compile` raises ValueError."""

    def __init__(self, tokenizer: Path, ends: list[int]) -> None:
        import xgrammar
        from transformers import PreTrainedTokenizerFast

        self._module = xgrammar
        fast = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer))
        info = xgrammar.TokenizerInfo.from_huggingface(fast, stop_token_ids=ends)
        self._size = info.vocab_size
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, kind: str, text: str) -> Matcher:
        compiler = self._compiler
        try:
            if kind == "json_schema":
                compiled = compiler.compile_json_schema(
                    text, any_whitespace=False, separators=(", ", ": "), strict_mode=False
                )
            elif kind == "regex":
                compiled = compiler.compile_regex(text)
            else:
                compiled = compiler.compile_lark(text)
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        return _XgrammarMatcher(self._module, compiled, self._size)


class _XgrammarMatcher:
    def __init__(self, module: Any, compiled: Any, size: int) -> None:
        self._matcher = module.GrammarMatcher(compiled)
        self._bits = module.allocate_token_bitmask(1, size)

    def mask(self) -> NDArray[np.bool_]:
        self._matcher.fill_next_token_bitmask(self._bits)
        packed = self._bits.numpy().view(np.uint8)[0]
        return np.unpackbits(packed, bitorder="little").view(np.bool_)

    def advance(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def back(self, tokens: int) -> None:
        self._matcher.rollback(tokens)

    def complete(self) -> bool:
        return bool(self._matcher.is_completed())


Library = Llguidance | Xgrammar
LIBRARIES: dict[str, type[Llguidance] | type[Xgrammar]] = {
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}
