"""`python -m paceline.bench.random_draft HEAD OUT`: a head draft that knows nothing.

The same files as HEAD's with its numbers drawn anew, so that it costs as much as HEAD and guesses
as well as chance: the worst that a server may be given as a draft. `paceline-random-draft` among
the peers serves with it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ..actors.flags import Parser, UsageError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def randomise(head: Path, out: Path, seed: int = 0) -> None:
    """Write the head without its knowledge: each float tensor as noise of the same spread."""
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(head / WEIGHTS)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() > 1:
            noise = torch.randn(tensor.shape, generator=generator)
            tensors[name] = (noise * tensor.float().std()).to(tensor.dtype)
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(head / CONFIG, out / CONFIG)
    save_file(tensors, out / WEIGHTS)


def main() -> int:
    parser = Parser(prog="python -m paceline.bench.random_draft", description=__doc__)
    parser.add_argument("head", type=Path, help="directory of a head draft")
    parser.add_argument("out", type=Path, help="directory to write")
    try:
        args = parser.parse_args()
        for name in (WEIGHTS, CONFIG):
            if not (args.head / name).is_file():
                raise UsageError(f"{args.head} holds no {name}")
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    randomise(args.head, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
