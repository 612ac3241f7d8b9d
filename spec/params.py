"""What a client may ask of sampling and speculation, and the checks that guard it.

Pure: neither torch nor asyncio. Built at the edge, carried in messages, read by every actor.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["auto", "off", "force"]
Method = Literal["ngram", "suffix", "draft"]
Accept = Literal["coupled", "rejection"]
Granularity = Literal["step", "token"]
GrammarKind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]

MAX_DRAFT = 16
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_BIAS = 100.0
MAX_BAD_WORDS = 256
MAX_GRAMMAR = 256 * 1024
MAX_SALT = 128
SEED_MAX = 2**63 - 1


class InputError(ValueError):
    """A client's mistake: an HTTP status, the field it is in, and a sentence.

    `param` is the field's path as the client wrote it (`speculation.k`), or None when no single
    field is at fault. `code` is the machine-readable reason of OpenAI's error shape.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code
        self.retry_after = retry_after


class Speculation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a request wants to be drafted. None means the server's default.

    mode: `auto` lets the server decide, `off` never drafts, `force` drafts whenever it can.
    k: draft tokens per step at most. accept: `coupled` gives the text that the seed alone
    determines; `rejection` (Leviathan et al. 2023, Chen et al. 2023) gives the same distribution,
    and a text that also depends on the draft. memory: whether `suffix` drafts may look up recent
    traffic of the same `cache_salt`, and remember this request for later ones.
    """

    mode: Mode = "auto"
    method: Method | None = None
    k: int | None = None
    accept: Accept = "coupled"
    memory: bool = True


class Grammar(msgspec.Struct, frozen=True):
    """What the whole output must match. text: the JSON schema, the regular expression, the
    context-free grammar (Lark), or the choices as a JSON array of strings; empty for
    `json_object`, which admits any JSON object."""

    kind: GrammarKind
    text: str = ""


class SamplingParams(msgspec.Struct, frozen=True):
    """One sequence's parameters, complete: no None that a later stage must interpret but these:
    `max_tokens` (None: as many as fit) and `logprobs` (None: none wanted) until admission, and
    `seed` (None: admission draws one).

    Penalties count tokens of the output (presence, frequency) or of prompt and output
    (repetition). `logit_bias` adds to single tokens, `allowed_token_ids` (empty: all) and
    `bad_words` forbid; `bad_tokens` are the bad words as token ids, filled in by admission.
    Before `min_tokens` tokens no end token can be chosen and no stop string ends the text.
    `include_stop` keeps the stop string in the text.
    `prompt_logprobs` counts alternatives for each prompt token (None: none wanted).
    `logprobs` counts the alternatives to report beside the chosen token (0 reports only it).
    `stop_token_ids` end the text like the model's own end tokens, which `ignore_eos` disables.
    Only sequences of the same `cache_salt`, a tenant's for example, share KV and the memory of
    suffix drafts.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_tokens: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    grammar: Grammar | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    cache_salt: str = ""
    speculation: Speculation = Speculation()

    def ends(self, model_ends: frozenset[int]) -> frozenset[int]:
        """The tokens that end the text, given the model's own end tokens."""
        asked = frozenset(self.stop_token_ids)
        return asked if self.ignore_eos else asked | model_ends

    @property
    def greedy(self) -> bool:
        """Whether the choice is the plain argmax: temperature 0, or a single candidate."""
        return self.temperature == 0.0 or self.top_k == 1


def check(params: SamplingParams) -> None:
    """Raise InputError naming the first field that is out of range."""

    def need(ok: bool, param: str, rule: str, value: object) -> None:
        if not ok:
            raise InputError(f"{param} must be {rule}, got {value!r}", param=param)

    p, s = params, params.speculation
    need(0.0 <= p.temperature <= 2.0, "temperature", "between 0 and 2", p.temperature)
    need(p.top_k >= -1, "top_k", "at least 1, or 0 or -1 for no limit", p.top_k)
    need(0.0 < p.top_p <= 1.0, "top_p", "above 0 and at most 1", p.top_p)
    need(0.0 <= p.min_p <= 1.0, "min_p", "between 0 and 1", p.min_p)
    need(0.0 < p.typical_p <= 1.0, "typical_p", "above 0 and at most 1", p.typical_p)
    for name in ("presence_penalty", "frequency_penalty"):
        need(-2.0 <= getattr(p, name) <= 2.0, name, "between -2 and 2", getattr(p, name))
    need(
        0.0 < p.repetition_penalty <= 10.0,
        "repetition_penalty",
        "above 0 and at most 10",
        p.repetition_penalty,
    )
    for token, bias in p.logit_bias:
        need(abs(bias) <= MAX_BIAS, f"logit_bias.{token}", "between -100 and 100", bias)
    need(
        len(p.bad_words) <= MAX_BAD_WORDS,
        "bad_words",
        f"at most {MAX_BAD_WORDS} strings",
        len(p.bad_words),
    )
    need(all(p.bad_words), "bad_words", "free of empty strings", list(p.bad_words))
    need(p.min_tokens >= 0, "min_tokens", "at least 0", p.min_tokens)
    need(
        p.max_tokens is None or p.min_tokens <= p.max_tokens,
        "min_tokens",
        "at most max_tokens",
        p.min_tokens,
    )
    need(
        p.grammar is None or len(p.grammar.text) <= MAX_GRAMMAR,
        "response_format",
        f"at most {MAX_GRAMMAR} characters",
        p.grammar and len(p.grammar.text),
    )
    need(
        p.prompt_logprobs is None or 0 <= p.prompt_logprobs <= MAX_LOGPROBS,
        "prompt_logprobs",
        f"between 0 and {MAX_LOGPROBS}",
        p.prompt_logprobs,
    )
    need(p.seed is None or 0 <= p.seed <= SEED_MAX, "seed", "between 0 and 2^63-1", p.seed)
    need(p.max_tokens is None or p.max_tokens >= 0, "max_tokens", "at least 0", p.max_tokens)
    need(len(p.stop) <= MAX_STOPS, "stop", f"at most {MAX_STOPS} strings", len(p.stop))
    need(all(p.stop), "stop", "free of empty strings", list(p.stop))
    need(
        p.logprobs is None or 0 <= p.logprobs <= MAX_LOGPROBS,
        "logprobs",
        f"between 0 and {MAX_LOGPROBS}",
        p.logprobs,
    )
    need(
        len(p.cache_salt) <= MAX_SALT,
        "cache_salt",
        f"at most {MAX_SALT} characters",
        len(p.cache_salt),
    )
    need(
        s.k is None or 1 <= s.k <= MAX_DRAFT,
        "speculation.k",
        f"between 1 and {MAX_DRAFT}",
        s.k,
    )
