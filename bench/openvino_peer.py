"""OpenVINO GenAI under the workloads of `paceline bench`: a library, driven in this process.

    python -m paceline.bench.openvino_peer --model DIR --workload chat --concurrency 4

There is no HTTP, no JSON and no event loop between this and the library, which servers have to pay
for: its figures are a little better than a server's would be. It is installed by hand, in an
environment of its own (`bench/PEERS.md`); `compare` starts this through `bench/peers`.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from ..actors.flags import Parser, UsageError
from .machine import Cost
from .points import Load, Point, Report, warn
from .records import Record
from .summary import summarise
from .workloads import Ask, Wanted, make

STEP_TOKENS = 256
SEQUENCES = 16
CACHE_GIB = 2
GUESSES, NGRAM = 5, 3


class Engine(Protocol):
    """What is driven: requests go in, steps bring tokens."""

    def add(self, number: int, ask: Ask) -> int:
        """Take a request; returns the tokens of its prompt."""
        ...

    def step(self) -> Iterator[tuple[int, int, bool]]:
        """Compute; then for each request with news its number, how many tokens came, and whether
        it has ended."""
        ...


class _Open:
    """A request under way."""

    def __init__(self, due: float, wanted: int) -> None:
        self.due = due
        self.wanted = wanted
        self.prompt_tokens = 0
        self.times: list[float] = []
        self.sizes: list[int] = []

    def record(self, number: int, ended: float) -> Record:
        tokens = sum(self.sizes)
        short = tokens < self.wanted  # of a server we would hear why
        return Record(
            number=number,
            due=self.due,
            sent=self.due,
            ended=ended,
            times=self.times,
            sizes=self.sizes,
            prompt_tokens=self.prompt_tokens,
            tokens=tokens,
            finish=None if short else "length",
            steps=len(self.times),
            error="cut" if short else None,
            message=f"it ended after {tokens} of {self.wanted} tokens" if short else "",
        )


def drive(
    engine: Engine, asks: Sequence[Ask], width: int, clock: Callable[[], float]
) -> list[Record]:
    """Keep `width` requests under way until all have ended. Sizes of the records are tokens. An
    answer is of fixed length: one with fewer tokens than were asked for is recorded as cut."""
    waiting = deque(enumerate(asks))
    under_way: dict[int, _Open] = {}
    records = []
    while waiting or under_way:
        while waiting and len(under_way) < width:
            number, ask = waiting.popleft()
            under_way[number] = _Open(clock(), ask.max_tokens)
            under_way[number].prompt_tokens = engine.add(number, ask)
        for number, count, ended in engine.step():
            now = clock()
            if count:
                under_way[number].times.append(now)
                under_way[number].sizes.append(count)
            if ended:
                records.append(under_way.pop(number).record(number, now))
    return records


class OpenVino:
    """The library's pipeline of continuous batches, greedy, with answers of fixed length."""

    def __init__(self, model: str, threads: int | None, lookup: bool) -> None:
        import openvino_genai

        self._module: Any = openvino_genai
        scheduler = self._module.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_seqs = SEQUENCES
        scheduler.max_num_batched_tokens = STEP_TOKENS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        properties: dict[str, Any] = {"prompt_lookup": True} if lookup else {}
        if threads:
            properties["INFERENCE_NUM_THREADS"] = threads
        self._pipe = self._module.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._tokenizer = self._pipe.get_tokenizer()
        self._lookup = lookup
        self._handles: dict[int, Any] = {}

    def add(self, number: int, ask: Ask) -> int:
        """Take a chat or a text. Raises UsageError for token ids, which are for servers."""
        if isinstance(ask.prompt, list):
            raise UsageError("this peer takes texts only")
        text = ask.prompt
        if ask.messages is not None:
            text = self._tokenizer.apply_chat_template(ask.messages, add_generation_prompt=True)
        ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids
        config = self._module.GenerationConfig()
        config.max_new_tokens = ask.max_tokens
        config.ignore_eos = True
        if self._lookup:
            config.num_assistant_tokens = GUESSES
            config.max_ngram_size = NGRAM
        self._handles[number] = self._pipe.add_request(number, ids, config)
        return int(ids.shape[1])

    def step(self) -> Iterator[tuple[int, int, bool]]:
        self._pipe.step()
        for number, handle in list(self._handles.items()):
            count = 0
            while handle.can_read():
                count += sum(len(output.generated_ids) for output in handle.read().values())
            ended = handle.get_status() != self._module.GenerationStatus.RUNNING
            if ended:
                del self._handles[number]
            if count or ended:
                yield number, count, ended


def measure(engine: Engine, asks: Sequence[Ask], width: int, workload: str) -> Point:
    """Drive the engine and sum up. The whole process counts as the server."""
    begun, spent = time.perf_counter(), time.process_time()
    records = drive(engine, asks, width, lambda: time.perf_counter() - begun)
    passed = time.perf_counter() - begun
    cores = (time.process_time() - spent) / passed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    load, summary = Load(kind="closed", concurrency=width), summarise(records, width=width)
    return Point(
        load=load,
        workload=workload,
        summary=summary,
        server=Cost(cores, peak),
        warnings=["in process, without HTTP", *warn(summary, records, load, None, Cost(0.0, 0))],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code."""
    try:
        args = _parser().parse_strictly(sys.argv[1:] if argv is None else argv)
        seeds = [int(word) for word in args.seed.split(",")]
        wanted = Wanted(args.workload, args.requests, output_tokens=args.output_tokens)
        asks = make(wanted, np.random.default_rng(seeds))
        engine = OpenVino(args.model, args.threads, args.lookup)
        drive(engine, make(wanted, np.random.default_rng([*seeds, 1]))[:1], 1, time.perf_counter)
        point = measure(engine, asks, args.concurrency, args.workload)
    except (UsageError, ImportError, ValueError) as error:
        print(f"openvino_peer: {error}", file=sys.stderr)
        return 1
    report = Report(url="in process", model=args.model, seed=seeds[0], points=[point])
    if args.json:
        print(msgspec.json.encode(report).decode())
    else:
        from rich.console import Console

        from .load_tables import show

        show(report, Console())
    return 0


def _parser() -> Parser:
    parser = Parser(prog="python -m paceline.bench.openvino_peer", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, metavar="DIR", help="an exported model")
    add("--threads", type=int, metavar="N", help="default: the library's")
    add("--lookup", action="store_true", help="guess by prompt look-up")
    add("--workload", default="chat", metavar="NAME", help="default: chat")
    add("--concurrency", type=int, default=1, metavar="N", help="default: 1")
    add("--requests", type=int, metavar="N", help="default: each prompt once")
    add("--output-tokens", type=int, metavar="N", help="default: the workload's own")
    add("--seed", default="0", metavar="N[,N…]", help="default: 0")
    add("--json", action="store_true", help="print one JSON object (bench/points.py)")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
