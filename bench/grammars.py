"""Which library holds an output to a grammar: llguidance and xgrammar, side by side.

    python -m paceline.bench.grammars [--tokenizer FILE] [--texts 20]

Uses the libraries as they come, with compact JSON and nothing that `spec` puts around one of them;
xgrammar takes part if it is installed. The texts are drawn at random under the masks.

One run on two CPU cores, with the demo model's tokenizer (49,152 tokens):

                                    llguidance 1.9.1      xgrammar 0.2.9
compile, 21 grammars, ms            0.3 to 1.1            0.1 to 45
mask, all grammars, microseconds    mean 53, worst 3,603  mean 144, worst 30,983
texts that are not valid            none                  49 of 397
of 25 JSON schema keywords
  enforced, refused, neither        12, 10, 3             5, 0, 20
a compiled schema of 20 patterns    59 kB                 1,163 kB

llguidance was chosen: what it does not enforce it mostly refuses, where xgrammar ignores it. The
three keywords that it ignores too are looked for beforehand (`spec.grammar_schema`).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ..models.cache import default_cache_dir
from ..models.source import demo_directory
from .grammar_cases import BURDENS, CHOICES, KEYWORDS, LARK, REGEXES, SCHEMAS, Keyword
from .grammar_libraries import LIBRARIES, Matcher

LONGEST = 300
PATIENCE = 10.0
WINDOW = 8


class Bench:
    """One library with one tokenizer."""

    def __init__(self, name: str, tokenizer: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        words = [f"<|{word}|>" for word in ("im_end", "endoftext", "eot_id")]
        found = [self._tokenizer.token_to_id(word) for word in words]
        self._ends = {end for end in found if end is not None}
        self.library = LIBRARIES[name](tokenizer, sorted(self._ends))
        vocabulary = self._tokenizer.get_vocab().items()
        self._closing = {i for word, i in vocabulary if word[:1] in ('"', "]", "}", "n")}

    def draw(self, matcher: Matcher, seed: int, spent: list[float]) -> str | None:
        """A text drawn at random, closed the more readily the longer it is; None when it has no end
        or cannot go on. Adds the seconds of each mask to `spent`."""
        rng, tokens = random.Random(seed), list[int]()
        while len(tokens) < LONGEST:
            began = time.perf_counter()
            row = matcher.mask()
            spent.append(time.perf_counter() - began)
            if matcher.complete() and rng.random() < len(tokens) / 50:
                return str(self._tokenizer.decode(tokens))
            allowed = self._listed(row)
            closing = [token for token in allowed if token in self._closing]
            if not allowed:
                return str(self._tokenizer.decode(tokens)) if matcher.complete() else None
            few = closing and rng.random() < len(tokens) / 60
            tokens.append(rng.choice(closing if few else allowed))
            if not matcher.advance(tokens[-1]):
                return None
        return None

    def _listed(self, row: NDArray[np.bool_]) -> list[int]:
        """The tokens of a mask, without ends."""
        tokens: list[int] = np.flatnonzero(row).tolist()
        return [token for token in tokens if token not in self._ends]

    def admits(self, matcher: Matcher, text: str) -> bool:
        ids = self._tokenizer.encode(text).ids
        return all(map(matcher.advance, ids)) and matcher.complete()

    # --- what is measured --------------------------------------------------------------------

    def speed(self, texts: int) -> Iterator[list[str]]:
        """Cells for each grammar, and for all."""
        everything: list[float] = []
        for name, kind, text, is_valid in _cases():
            compiled, spent, good, whole = [], list[float](), 0, 0
            for seed in range(texts):
                began = time.perf_counter()
                matcher = self.library.compile(kind, text)
                compiled.append(time.perf_counter() - began)
                drawn = self.draw(matcher, seed, spent)
                whole += drawn is not None
                good += drawn is not None and is_valid(drawn)
            everything += spent
            cells = [name, _ms(np.median(compiled)), *_masks(spent)]
            yield [*cells, _us(self._window(kind, text)), f"{good}/{whole}"]
        yield ["all", "", *_masks(everything), "", ""]

    def _window(self, kind: str, text: str) -> float:
        """Seconds to go ahead by a window of tokens and back again."""
        matcher, rng, tokens = self.library.compile(kind, text), random.Random(0), list[int]()
        while len(tokens) < WINDOW:
            if not (allowed := self._listed(matcher.mask())):
                break
            tokens.append(rng.choice(allowed))
            matcher.advance(tokens[-1])
        matcher.back(len(tokens))
        took = []
        for _ in range(20):
            began = time.perf_counter()
            for token in tokens:
                matcher.advance(token)
            matcher.back(len(tokens))
            took.append(time.perf_counter() - began)
        return float(np.median(took))

    def keyword(self, keyword: Keyword) -> str:
        text = json.dumps(keyword.schema)
        try:
            if self.admits(self.library.compile("json_schema", text), keyword.invalid):
                return "IGNORED"
            if keyword.valid is None:
                return "enforced"
            valid = self.admits(self.library.compile("json_schema", text), keyword.valid)
            return "enforced" if valid else "TOO STRICT"
        except ValueError:
            return "refused"

    def bear(self, name: str) -> str:
        """Compile a burden, and take four steps."""
        began = time.perf_counter()
        try:
            matcher = self.library.compile(*BURDENS[name])
        except ValueError:
            return f"refused in {_ms(time.perf_counter() - began)} ms"
        compiled, took = time.perf_counter() - began, []
        for _ in range(4):
            began = time.perf_counter()
            row = matcher.mask()
            took.append(time.perf_counter() - began)
            if not (allowed := self._listed(row)) or not matcher.advance(allowed[0]):
                break
        return f"compiled in {_ms(compiled)} ms, masks up to {_ms(max(took))} ms"

    def memory(self) -> float:
        """Bytes of a compiled schema of twenty properties that has made one mask."""
        held, before = [], 0
        for i in range(400):
            names = [f"p{i}_{j}" for j in range(20)]
            schema = {"type": "object", "properties": {
                name: {"type": "string", "pattern": f"^[a-z]{{1,9}}{name}$"} for name in names
            }, "required": names, "additionalProperties": False}  # fmt: skip
            if i == 100:  # what was free at the beginning has been used up
                before = _resident()
            held.append(self.library.compile("json_schema", json.dumps(schema)))
            held[-1].mask()
        return (_resident() - before) / 300

    def crowded(self) -> tuple[float, float, bool]:
        """The longest mask, in seconds, alone and while another thread compiles without a pause;
        and whether the texts were the same."""
        schema, over = json.dumps(SCHEMAS["nested"]), threading.Event()
        big = BURDENS["enum of 10,000"]

        def texts(spent: list[float]) -> list[str | None]:
            matchers = (self.library.compile("json_schema", schema) for _ in range(20))
            return [self.draw(matcher, seed, spent) for seed, matcher in enumerate(matchers)]

        def compile_on() -> None:
            while not over.is_set():
                self.library.compile(*big)

        alone, beside = list[float](), list[float]()
        expected = texts(alone)
        thread = threading.Thread(target=compile_on)
        thread.start()
        found = texts(beside)
        over.set()
        thread.join()
        return max(alone), max(beside), found == expected


def _cases() -> Iterator[tuple[str, str, str, Callable[[str], bool]]]:
    for name, schema in SCHEMAS.items():
        yield name, "json_schema", json.dumps(schema), _validator(schema)
    for name, regex in REGEXES.items():
        yield (
            f"/{name}/",
            "regex",
            regex,
            lambda text, regex=regex: bool(  # type: ignore[misc]
                re.fullmatch(regex, text)
            ),
        )
    yield "choices", "regex", "|".join(CHOICES), CHOICES.__contains__
    yield "Lark", "grammar", LARK, lambda text: bool(re.fullmatch(r"[0-9.()*+ -]+", text))


def _validator(schema: dict[str, Any]) -> Callable[[str], bool]:
    def is_valid(text: str) -> bool:
        try:
            jsonschema.validate(json.loads(text), schema)
        except (ValueError, jsonschema.ValidationError):
            return False
        return True

    return is_valid


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def _ms(seconds: Any) -> str:
    return f"{1e3 * float(seconds):.2f}"


def _us(seconds: Any) -> str:
    return f"{1e6 * float(seconds):.0f}"


def _masks(spent: list[float]) -> list[str]:
    return [_us(np.mean(spent)), _us(np.percentile(spent, 99)), _us(max(spent))]


def _burden(library: str, tokenizer: Path, name: str) -> str:
    """What comes of a grammar that may be too much, in a process of its own."""
    command = [sys.executable, "-m", "paceline.bench.grammars", "--tokenizer", str(tokenizer)]
    try:
        done = subprocess.run(
            [*command, "--libraries", library, "--burden", name],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return f"no end in {PATIENCE:.0f} s"
    return f"CRASH ({done.returncode})" if done.returncode else done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = demo_directory(default_cache_dir()) / "tokenizer.json"
    parser.add_argument("--tokenizer", type=Path, default=default)
    parser.add_argument("--texts", type=int, default=20, help="texts drawn of each grammar")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=_installed())
    parser.add_argument("--burden", choices=BURDENS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    benches = {name: Bench(name, asked.tokenizer) for name in asked.libraries}
    if asked.burden:
        print(benches[asked.libraries[0]].bear(asked.burden))
        return
    console = Console(width=96)
    sizes = {name: bench.memory() for name, bench in benches.items()}
    for name, bench in benches.items():
        columns = ("compile ms", "mask us", "99th", "worst", f"{WINDOW} and back us", "valid")
        table = Table(name, *columns, box=None)
        for cells in bench.speed(asked.texts):
            table.add_row(*cells)
        console.print(table)
        alone, beside, same = bench.crowded()
        console.print(
            f"{name}: {sizes[name] / 1e3:.0f} kB a compiled schema of 20 patterns; longest mask "
            f"{_ms(alone)} ms alone, {_ms(beside)} ms while another thread compiles; "
            f"texts {'the same' if same else 'DIFFER'}\n"
        )
    keywords = Table("keyword", *benches, box=None)
    for keyword in KEYWORDS:
        keywords.add_row(keyword.name, *(bench.keyword(keyword) for bench in benches.values()))
    console.print(keywords)
    burdens = Table("\nburden", *benches, box=None)
    for name in BURDENS:
        burdens.add_row(name, *(_burden(one, asked.tokenizer, name) for one in benches))
    console.print(burdens)


def _installed() -> list[str]:
    return [name for name in LIBRARIES if importlib.util.find_spec(name)]


if __name__ == "__main__":
    main()
