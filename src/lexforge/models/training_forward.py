"""How the transformer of an encoder runs while it is trained on a CPU: a fast format, and no wasted work.

Texts are encoded without their padding, the products may be bfloat16, and attention and dropout are those of
`lexforge.kernels.encoder`.

The module gets another `forward` on the instance, as the fused head does: its class, parameters and names
stay as they are, and so does what is saved. Outside training it runs as before.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from sentence_transformers.base.modules import Transformer
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.overrides import TorchFunctionMode

from lexforge.kernels.encoder import attention, draw_seed, dropout
from lexforge.models.structure import learned_positions

# Measured on one Zen 3 core with MiniLM: 4,096 tokens in 16 pieces instead of 4 took 0.35 s of 3.4 s longer.
TOKENS_OF_A_PIECE = 32
_TEXTS, _TOKENS, _TURNS = 4, 64, 3  # of the batch that is timed; the first turn prepares

Features = dict[str, Any]
Module = TypeVar("Module", bound=nn.Module)


class FastOperators(TorchFunctionMode):
    """Within it, dropout and attention on a CPU are those of `lexforge.kernels.encoder`, where they can be.

    Other calls of PyTorch, other devices and formats, and what those two do not offer, such as a mask that is
    no bool, are left as they are. Under autocast, linear layers that read one tensor, such as those of
    queries, keys and values, share its cast.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read: tuple[Tensor, int] | None = None  # the last input of a linear layer, and its version
        self._cast: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the fast operator or the function itself."""
        kwargs = kwargs or {}
        fast: Any = None
        if func is F.dropout:
            fast = _dropout(*args, **kwargs)
        elif func is F.scaled_dot_product_attention:
            fast = _attention(*args, **kwargs)
        elif func is F.linear and args and torch.is_autocast_enabled("cpu"):
            args = (self._cast_once(args[0]), *args[1:])
        return func(*args, **kwargs) if fast is None else fast

    def _cast_once(self, x: Tensor) -> Tensor:
        """The input of a linear layer in the format of autocast, which the layers that read it share."""
        if x.dtype != torch.float32 or x.device.type != "cpu":
            return x
        if self._read is None or self._read[0] is not x or self._read[1] != x._version:
            self._read, self._cast = (x, x._version), x.to(torch.get_autocast_dtype("cpu"))
        assert self._cast is not None
        return self._cast


class TrainingForward:
    """The forward of a `Transformer` whose texts are encoded in pieces of like length, while it is trained.

    Args:
        transformer: The module whose forward is replaced.

    Attributes:
        dtype: The format of its products, torch.bfloat16 by autocast or torch.float32; the states that it
            returns are float32 in either case.
    """

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer
        self.dtype = torch.float32

    def __call__(self, features: Features, **kwargs: Any) -> Features:
        transformer, mask = self.transformer, features.get("attention_mask")
        plain = type(transformer).forward
        if not transformer.training or not isinstance(mask, Tensor) or mask.device.type != "cpu":
            return plain(transformer, features, **kwargs)
        if self.dtype == torch.float32:
            with self._operators():
                return self._in_pieces(features, mask, **kwargs)
        with torch.autocast("cpu", self.dtype), self._operators():
            features = self._in_pieces(features, mask, **kwargs)
        name = transformer.module_output_name
        features[name] = features[name].float()  # in place, as the transformer writes it
        return features

    def _operators(self) -> AbstractContextManager[Any]:
        # Checkpointing encodes a layer again in the backward pass, where this context has ended. transformers
        # gives such layers this function, and keeps it while their memory is measured without checkpoints.
        modules = self.transformer.modules()
        checkpoints = any(hasattr(module, "_gradient_checkpointing_func") for module in modules)
        return nullcontext() if checkpoints or not _runs_eagerly() else FastOperators()

    def _in_pieces(self, features: Features, mask: Tensor, **kwargs: Any) -> Features:
        plain = type(self.transformer).forward
        if not self._may_be_cut() or not _are_rows(features, mask):  # first: a graph cannot branch on a mask
            return plain(self.transformer, features, **kwargs)
        real = mask != 0  # [B, L]
        right = bool(real[:, 0].all())  # the side of the padding
        one_side = right or bool(real[:, -1].all())
        # Behind padding on the left the positions of a part would begin elsewhere.
        moved = not right and "position_ids" not in features and learned_positions(self.transformer)
        if not one_side or moved:
            return plain(self.transformer, features, **kwargs)
        place = torch.arange(1, mask.shape[1] + 1)  # [L], counted from the side of the text
        lengths, order = (real * (place if right else place.flip(0))).amax(dim=1).sort(stable=True)  # [B]
        pieces = cut(lengths.numpy(), TOKENS_OF_A_PIECE)
        if len(pieces) < 2:
            return plain(self.transformer, features, **kwargs)
        states = []
        for first, end, width in pieces:
            kept = slice(width) if right else slice(-width, None)
            part = _rows_of(features, order[first:end], kept)
            encoded = plain(self.transformer, part, **kwargs)["token_embeddings"]  # [n, width, D]
            padding = mask.shape[1] - width
            states.append(F.pad(encoded, (0, 0, 0, padding) if right else (0, 0, padding, 0)))
        features["token_embeddings"] = torch.cat(states).index_select(0, order.argsort())  # [B, L, D]
        return features

    def _may_be_cut(self) -> bool:
        transformer = self.transformer
        return (
            _runs_eagerly()
            and transformer.module_output_name == "token_embeddings"
            and not getattr(transformer.model.config, "output_hidden_states", False)
            # The ranks gather a layer's parts in each forward, and would not have equally many pieces.
            and not any(isinstance(module, FSDPModule) for module in transformer.modules())
        )


def fuse_encoder(model: Module) -> Module:
    """Let the transformers of an encoder train in less time and memory on a CPU, in place, with any trainer.

    Texts are encoded without their padding, and dropout and attention are those of
    `lexforge.kernels.encoder`. Weights, saved files and everything outside training stay as they are; the
    trainers of lexforge do this themselves.

    Args:
        model: A `SparseEncoder` or a `SentenceTransformer`.

    Returns:
        The same model.
    """
    training_forwards(model)
    return model


def training_forwards(model: nn.Module) -> list[TrainingForward]:
    """Give the transformers of an encoder a `TrainingForward`, in place, and return those of all of them.

    In training on a CPU a batch is cut into pieces of texts of like length, and each piece is as wide as its
    longest text. The states of the tokens are those of the padded batch up to rounding, unless a transformer
    lets padding reach them, as ConvBERT, FNet and Nystromformer do; those of padding are 0. Evaluation,
    sharded models and graphs that are compiled or exported run as before, and so does training on other
    devices: on a GPU the flash attention of sentence-transformers skips padding.

    Args:
        model: Any encoder, wrapped or not.

    Returns:
        One for each `Transformer`; those of an earlier call where there are any.
    """
    found = []
    for module in model.modules():
        if isinstance(module, Transformer):
            held = vars(module).setdefault("forward", TrainingForward(module))
            if isinstance(held, TrainingForward):  # nothing else has replaced the forward
                found.append(held)
    return found


def cut(lengths: np.ndarray, tokens_of_a_piece: int) -> list[tuple[int, int, int]]:
    """Cut texts into pieces that take the least work, where each piece is as wide as its longest text.

    Args:
        lengths: `[B]` ascending integers, the tokens of each text.
        tokens_of_a_piece: What one more piece costs, in tokens.

    Returns:
        The first text, the end and the width of each piece, in order.
    """
    widths, firsts = np.unique(lengths, return_index=True)  # texts of one length stay together
    ends = np.append(firsts[1:], len(lengths))
    cost = np.zeros(len(widths) + 1)  # cost[k]: the least work for the k smallest widths
    begin = np.zeros(len(widths), dtype=int)  # where the last of those pieces begins
    for last in range(len(widths)):
        work = cost[: last + 1] + (ends[last] - firsts[: last + 1]) * widths[last] + tokens_of_a_piece
        begin[last] = work.argmin()
        cost[last + 1] = work[begin[last]]
    pieces = []
    last = len(widths) - 1
    while last >= 0:
        pieces.append((int(firsts[begin[last]]), int(ends[last]), int(widths[last])))
        last = int(begin[last]) - 1
    return pieces[::-1]


def encoder_name(transformer: Transformer) -> str:
    """Describe what the speed of a transformer depends on.

    Args:
        transformer: The module.

    Returns:
        Its type, the number of its weights and of those that are trained, their format, and its dropout.
    """
    model: Any = transformer.model
    parameters = list(model.parameters())
    weights = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    formats = ", ".join(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters}))
    dropout = max((module.p for module in model.modules() if isinstance(module, nn.Dropout)), default=0.0)
    return (
        f"training of {model.config.model_type} with {weights} weights in {formats}, {trained} of them "
        f"trained, and dropout {dropout:g}"
    )


def multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16, which are slow to emulate."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def seconds_of_formats(transformer: Transformer) -> dict[str, float]:
    """Time the forward and backward pass of a transformer in float32 and in bfloat16.

    Args:
        transformer: On a CPU; its weights, gradients, mode and the random state stay as they are.

    Returns:
        "float32" and "bfloat16" -> seconds of the fastest turn, of random tokens. Empty where there is no
        choice: the processor has no instructions for bfloat16, whose emulation may take a hundred times as
        long; the weights are not in float32; or none of them is trained.
    """
    weights = list(transformer.parameters())
    trained = any(weight.requires_grad for weight in weights)
    if not multiplies_bfloat16() or not trained or any(weight.dtype != torch.float32 for weight in weights):
        return {}
    turns: dict[torch.dtype, list[float]] = {torch.float32: [], torch.bfloat16: []}
    model: Any = transformer.model
    terms = model.get_input_embeddings().num_embeddings
    tokens = min(_TOKENS, transformer.max_seq_length or _TOKENS)
    ids = torch.randint(terms, (_TEXTS, tokens), generator=torch.Generator().manual_seed(0))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    forward = TrainingForward(transformer)
    resting = [module for module in transformer.modules() if not module.training]
    transformer.train()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for _ in range(_TURNS):
            for forward.dtype, seconds in turns.items():
                start = time.perf_counter()
                features = forward({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
                states = features[transformer.module_output_name]
                torch.autograd.grad(states.sum(), parameters, allow_unused=True)
                seconds.append(time.perf_counter() - start)
    for module in resting:
        module.training = False
    return {str(dtype).removeprefix("torch."): min(seconds) for dtype, seconds in turns.items()}


def _runs_eagerly() -> bool:
    return not torch.jit.is_tracing() and not torch.compiler.is_compiling()


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor | None:
    """`F.dropout`, or None where the fast one does not apply."""
    if not training or inplace or not 0 < p < 1 or not _is_fast(input):
        return None
    return dropout(input, p, draw_seed())


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """`F.scaled_dot_product_attention`, or None where the fast one does not apply."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    if is_causal or query.dim() != 4 or not query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return None
    if not query.dtype == key.dtype == value.dtype or not _is_fast(query) or not dropout_p < 1:
        return None
    if attn_mask is not None and (attn_mask.dtype != torch.bool or not _is_of_texts(attn_mask, query, key)):
        return None
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return attention(query, key, value, attn_mask, factor, dropout_p, draw_seed())


def _is_fast(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.bfloat16)


def _is_of_texts(mask: Tensor, query: Tensor, key: Tensor) -> bool:
    """Whether a mask says of each text, or of all, which keys count for each query, or for all."""
    wanted = (query.shape[0], 1, query.shape[2], key.shape[2])
    return mask.dim() == 4 and all(
        size in (1, most) if place < 3 else size == most
        for place, (size, most) in enumerate(zip(mask.shape, wanted, strict=True))
    )


def _are_rows(features: Features, mask: Tensor) -> bool:
    """Whether every tensor has one row a text, and of these each with more dimensions one place a token."""
    tensors = [value for value in features.values() if isinstance(value, Tensor) and value.dim() > 0]
    return all(value.shape[:2] == mask.shape[: value.dim()] for value in tensors)


def _rows_of(features: Features, texts: Tensor, places: slice) -> Features:
    """The features of some texts, with some of their places."""
    chosen = dict(features)
    for key, value in features.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            chosen[key] = value[texts] if value.dim() == 1 else value[texts][:, places]
    return chosen
