"""Plug-in losses: each file holds one idea, its pure function on tensors and below it the module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lexforge.common.lazy import load_when_used

if TYPE_CHECKING:
    from lexforge.losses import functional
    from lexforge.losses.base import EmbeddingLoss, load_loss_tensors, loss_parameters, loss_tensors
    from lexforge.losses.cosent import CoSENTLoss
    from lexforge.losses.dense_and_sparse import DenseAndSparseLoss
    from lexforge.losses.flops import penalty_weights
    from lexforge.losses.hcl import HCLLoss
    from lexforge.losses.infonce import InfoNCELoss
    from lexforge.losses.moco import MoCoLoss
    from lexforge.losses.neural_sparse import NeuralSparseLoss
    from lexforge.losses.nws import NWSLoss
    from lexforge.losses.own_activation import word_weights

__all__ = [
    "CoSENTLoss",
    "DenseAndSparseLoss",
    "EmbeddingLoss",
    "HCLLoss",
    "InfoNCELoss",
    "MoCoLoss",
    "NWSLoss",
    "NeuralSparseLoss",
    "functional",
    "load_loss_tensors",
    "loss_parameters",
    "loss_tensors",
    "penalty_weights",
    "word_weights",
]

__getattr__, __dir__ = load_when_used(__name__)
