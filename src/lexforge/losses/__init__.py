"""Plug-in losses: one idea a file, the pure function on tensors and under it the module."""

from lexforge.losses.base import EmbeddingLoss, load_loss_tensors, loss_parameters, loss_tensors
from lexforge.losses.cosent import CoSENTLoss
from lexforge.losses.hcl import HCLLoss
from lexforge.losses.infonce import InfoNCELoss
from lexforge.losses.moco import MoCoLoss
from lexforge.losses.neural_sparse import NeuralSparseLoss
from lexforge.losses.nws import NWSLoss

__all__ = [
    "CoSENTLoss",
    "EmbeddingLoss",
    "HCLLoss",
    "InfoNCELoss",
    "MoCoLoss",
    "NWSLoss",
    "NeuralSparseLoss",
    "load_loss_tensors",
    "loss_parameters",
    "loss_tensors",
]
