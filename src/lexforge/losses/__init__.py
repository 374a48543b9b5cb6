"""Plug-in losses: one idea a file, the pure function on tensors and under it the module."""

from lexforge.losses.neural_sparse import NeuralSparseLoss

__all__ = ["NeuralSparseLoss"]
