"""Compiling a grammar with llguidance: text in, a matcher at the beginning of its grammar out.

Owned by `grammar.Grammars`; see `bench.grammars` for why this library. Works in any thread.
"""

from __future__ import annotations

import threading
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from .grammar_text import library_text, objection
from .grammar_trial import Trial, limits
from .params import Grammar


class Compiler:
    """The library with one model's tokens.

    tokenizer: a `tokenizer.json`, as a path or as its text. ends: the model's end tokens. The
    library's view of the tokens takes a quarter of a second and 80 MB for 50,000 of them, so it is
    made when the first grammar comes.
    """

    def __init__(self, tokenizer: Path | str, ends: frozenset[int]) -> None:
        self._source = tokenizer
        self._ends = sorted(ends)
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._trial = Trial()

    def try_out(self, grammar: Grammar) -> None:
        """ValueError, in a sentence, if the grammar cannot be used."""
        if not self._ends:
            raise ValueError("this model has no end token, so nothing it writes is ever complete")
        if error := self._trial.run(library_text(grammar)):
            raise ValueError(objection(grammar, error))

    def build(self, grammar: Grammar) -> LLMatcher:
        """A matcher that shares nothing with any other, of a grammar that was tried out.

        The library could share the lexer of copies. But its states are counted and each step's work
        is bounded, so what one stream may do would depend on what the others have done.
        """
        matcher = LLMatcher(self._tokens(), library_text(grammar), log_level=0, limits=limits())
        if matcher.is_error():
            raise ValueError(objection(grammar, matcher.get_error()))
        return matcher

    def close(self) -> None:
        self._trial.close()

    def _tokens(self) -> LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                try:
                    self._tokenizer = LLTokenizer(str(self._source), eos_token=self._ends)
                except ValueError as error:
                    problem = f"grammars do not work with this model's tokenizer: {error}"
                    raise ValueError(problem) from error
            return self._tokenizer
