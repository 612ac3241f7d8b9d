"""What weights in few bits cost in quality: perplexity on a text that comes with the project, and
greedy answers beside those of the same model in bf16.

    python -m paceline.bench.weight_quality [--prompts 16] [--tokens 32] [--rows …] [flags of serve]

`file` is what a converted file holds in few bits; `int8` and `int4` are quantised from bf16. Each
stands there with inputs as they are, and (`+int8`) with inputs in 8 bits as the kernels multiply
them, by their slow reference. `float32` is the bf16 checkpoint computed in fp32: how far bf16 is
from it tells what differences mean. Three shares say how alike the answers are to those of bf16:
`next token`, how often the likeliest token is the same behind the text that bf16 wrote; `before
first`, tokens before the first that differs; `identical`, whole answers. The figures do not depend
on what else the machine does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from ..actors.flags import Parser, UsageError
from ..actors.settings import Settings
from ..draft.prompts import PROMPTS
from ..kv.capacity import KvShape
from ..kv.tensors import allocate
from ..models.checkpoint import PackedWeights, load_checkpoint, quantised
from ..models.config import ModelConfig, load_config
from ..models.decoder import Decoder
from ..models.layout import multiplied
from ..models.packed import PackedMatrix, fits
from ..models.source import resolve
from ..models.tokenizer import TextCodec
from ..models.weights import load_weights
from ..spec.batch import Feed, assemble
from .emulated import emulated
from .fixed_text import TEXT
from .flags import read_flags
from .perplexity import logits_of, logprobs_of, perplexity
from .report import agreement, tell

BLOCK = 64
ROWS = ("bf16", "float32", *(f"{m}{i}" for m in ("file", "int8", "int4") for i in ("", "+int8")))
Tokens = list[int]


class Row(msgspec.Struct, frozen=True):
    """A format beside bf16; shares are from 0 to 1, bits are per weight of a matrix."""

    weights: str
    bits: float
    perplexity: float
    next_token: float
    before_first: float
    identical: float


@dataclass(frozen=True, slots=True)
class Source:
    """The model that is measured: its config, its checkpoint in bf16, and what its directory holds
    in few bits."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    packed: Mapping[str, PackedMatrix]

    def decoder(self, row: str) -> tuple[Decoder, float]:
        """The decoder of a row, and its bits per weight."""
        if row in ("bf16", "float32"):
            dtype = torch.bfloat16 if row == "bf16" else torch.float32
            made = Decoder(self.config, dict(self.tensors), device="cpu", dtype=dtype)
            return made, 8.0 * dtype.itemsize
        name, _, inputs = row.partition("+")
        packed = (
            self.packed if name == "file" else self._quantised("int8" if name == "int8" else "int4")
        )
        weights = sum(matrix.shape[0] * matrix.shape[1] for matrix in packed.values())
        bits = 8 * sum(matrix.nbytes for matrix in packed.values()) / max(weights, 1)
        made = emulated(
            self.config, self.tensors, packed, dtype=torch.bfloat16, whole=inputs == "int8"
        )
        return made, bits

    def _quantised(self, mode: PackedWeights) -> dict[str, PackedMatrix]:
        names = [n for n in multiplied(self.config) if fits(self.tensors[n].shape)]
        return {name: quantised(name, self.tensors[name], mode) for name in names}


def measure(
    source: Source, codec: TextCodec, rows: Sequence[str], count: int, tokens: int
) -> list[Row]:
    """A row for each format, bf16 first."""
    text = codec.encode(TEXT)
    prompts = [codec.encode_chat([{"role": "user", "content": it}]) for it in PROMPTS[:count]]
    found: list[Row] = []
    theirs: list[Tokens] | None = None
    for name in dict.fromkeys(("bf16", *rows)):
        decoder, bits = source.decoder(name)
        answers = greedy(decoder, prompts, tokens)
        theirs = theirs or answers
        agreed = sum(agreement(a, b) for a, b in zip(theirs, answers, strict=True))
        found.append(
            Row(
                weights=name,
                bits=bits,
                perplexity=perplexity(logprobs_of(decoder, text)),
                next_token=same_next(decoder, prompts, theirs),
                before_first=agreed / sum(map(len, theirs)),
                identical=sum(a == b for a, b in zip(theirs, answers, strict=True)) / count,
            )
        )
        print(f"{name} done", file=sys.stderr)
    return found


@torch.inference_mode()
def greedy(decoder: Decoder, prompts: Sequence[Tokens], tokens: int) -> list[Tokens]:
    """Each prompt's greedy answer, up to its end token or `tokens` long."""
    config = decoder.config
    needs = [-(-(len(prompt) + tokens) // BLOCK) for prompt in prompts]
    shape = KvShape(config.layers, config.kv_heads, config.head_dim, decoder.dtype.itemsize)
    kv = allocate(shape, sum(needs), BLOCK, decoder.dtype, "cpu")
    firsts = np.cumsum([0, *needs[:-1]]).tolist()
    feeds = [
        Feed(np.array(prompt, np.int64), 0, range(first, first + need))
        for prompt, first, need in zip(prompts, firsts, needs, strict=True)
    ]
    answers: list[Tokens] = [[] for _ in prompts]
    open_ = list(range(len(prompts)))
    while open_:
        hidden = decoder.forward(assemble([feeds[i] for i in open_], decoder, kv), kv.layers)
        last = torch.tensor([len(feeds[i]) for i in open_]).cumsum(0) - 1
        for i, token in zip(open_, decoder.logits(hidden[last]).argmax(-1).tolist(), strict=True):
            answers[i].append(token)
            feeds[i] = Feed(np.array([token]), feeds[i].start + len(feeds[i]), feeds[i].blocks)
        open_ = [
            i for i in open_
            if len(answers[i]) < tokens and answers[i][-1] not in config.eos_ids
        ]  # fmt: skip
    return answers


def same_next(decoder: Decoder, prompts: Sequence[Tokens], answers: Sequence[Tokens]) -> float:
    """Share of the answers' tokens that are the decoder's likeliest behind the same text."""
    same = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        read = [*prompt, *answer[:-1]]
        likeliest = torch.cat([rows.argmax(-1) for rows in logits_of(decoder, read)])
        same += int((likeliest[len(prompt) - 1 :] == torch.tensor(answer)).sum())
    return same / sum(map(len, answers))


def table_of(rows: Sequence[Row], title: str) -> Table:
    table = Table(title=title)
    for column in ("weights", "bits", "perplexity", "next token", "before first", "identical"):
        table.add_column(column, justify="right")
    for row in rows:
        shares = (row.next_token, row.before_first, row.identical)
        table.add_row(
            row.weights, f"{row.bits:.2f}", f"{row.perplexity:.4f}",
            *(f"{share:.1%}" for share in shares),
        )  # fmt: skip
    return table


def load(settings: Settings) -> tuple[Source, TextCodec]:
    """The settings' model. Raises ModelError."""
    directory = resolve(settings.model, settings.cache_dir)
    config = load_config(directory)
    packed = load_checkpoint(directory, config, "auto").packed
    return Source(config, load_weights(directory), packed), TextCodec.load(directory)


def main() -> int:
    """Print the table, or one JSON object."""
    parser = Parser(prog="python -m paceline.bench.weight_quality", description=__doc__)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--json", action="store_true")
    own, settings = read_flags(parser)
    if not 1 <= own["prompts"] <= len(PROMPTS):
        raise UsageError(f"--prompts must be between 1 and {len(PROMPTS)}, got {own['prompts']}")
    if settings.threads:
        torch.set_num_threads(settings.threads)
    source, codec = load(settings)
    rows = [row for row in own["rows"] if source.packed or not row.startswith("file")]
    found = measure(source, codec, rows, own["prompts"], own["tokens"])
    tell(own, settings, found, table_of)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
