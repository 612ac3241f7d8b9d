"""A decoder-only transformer over packed rows and paged KV.

Built from a config and a checkpoint's tensors by whoever serves or drafts with the model; its
`forward` is one step of any mixture of prefill chunks, decoding rows and verification windows.

A row's hidden state and logits are a function of its sequence up to it alone, to the last bit:
see `kernels.attention` and `linear` for how. One layer covers all families; what differs between
them is in `family` and `config`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ..kernels.activation import soft_cap
from ..kernels.layer_kv import LayerKv
from ..kernels.sampler import PLAIN, Sampler
from .batch import Batch
from .config import ModelConfig
from .layer import Loader
from .layout import check_tensors
from .linear import Linear
from .rope import RopeTable


class Decoder:
    """The model on one device in one dtype. Weights are read-only; the caches are the caller's.

    Attributes: config, device, dtype, weight_bytes (what the weights occupy), exact (whether a
    row's numbers were found to be the same in any company; never claimed of a GPU), sampler (what
    chooses from its logits).
    """

    sampler: Sampler = PLAIN

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, Tensor],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        """tensors: the checkpoint by Hugging Face names. The dictionary is emptied on the way, so
        that the weights never exist twice. Raises ModelError naming tensors that do not fit."""
        check_tensors(config, tensors)
        self.config = config
        self.device = torch.device(device)
        self.dtype = dtype
        loader = Loader(config, tensors, self.device, dtype)
        self._embedding = loader.take("model.embed_tokens.weight")
        # as the family's models know it: rounded to the dtype of its embeddings
        scale = torch.tensor(config.hidden_size**0.5 if config.family.gemma else 1.0, dtype=dtype)
        self._embedding_scale = float(scale)
        self._norm = loader.norm("model.norm")
        self._layers = [
            loader.layer(f"model.layers.{i}.", window) for i, window in enumerate(config.windows)
        ]
        self._head = self._output(loader)
        kinds = list(dict.fromkeys(config.ropes))
        self._ropes = [RopeTable(it, config.max_position, self.device, dtype) for it in kinds]
        self._rope_of = [kinds.index(rope) for rope in config.ropes]
        self.weight_bytes = loader.nbytes
        self.exact = loader.exact and self._head.exact and self.device.type == "cpu"
        tensors.clear()

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings [T, H] of token ids [T]."""
        found = self._embedding.index_select(0, tokens)
        return found if self._embedding_scale == 1.0 else found.mul_(self._embedding_scale)

    def forward(self, batch: Batch, caches: Sequence[LayerKv]) -> Tensor:
        """Hidden states [T, H] of the batch's rows after the final norm.

        caches: the storage of every layer, in which the batch's rows are kept.
        """
        return self.forward_tapped(batch, caches, ())[0]

    def forward_tapped(
        self, batch: Batch, caches: Sequence[LayerKv], taps: Collection[int]
    ) -> tuple[Tensor, Tensor]:
        """`forward`, and the residual stream as it was after each of `taps` layers (0: the
        embedding), in ascending order and side by side [T, len(taps) * H]."""
        ropes = [table(batch.positions) for table in self._ropes]
        hidden = self.embed(batch.tokens)
        taken = [hidden.clone()] if 0 in taps else []
        layers = zip(self._layers, self._rope_of, caches, strict=True)
        for done, (layer, rope, cache) in enumerate(layers, start=1):
            layer.add_to(hidden, ropes[rope], batch, cache)
            if done in taps:
                taken.append(hidden.clone())
        states = torch.cat(taken, 1) if taken else hidden[:, :0]
        return self._norm(hidden), states

    def logits(self, hidden: Tensor) -> Tensor:
        """[S, H] states that `forward` returned → [S, vocabulary], in the decoder's dtype."""
        logits = self._head(hidden)
        cap = self.config.logit_cap
        return logits if cap is None else soft_cap(logits, cap)

    def _output(self, loader: Loader) -> Linear:
        if not self.config.tie_head:
            return loader.linear("", "lm_head", bias=False)
        head = Linear(self._embedding)
        loader.nbytes += head.nbytes if head.packed else 0
        return head
