"""Train neural sparse (SPLADE) and dense retrievers on sentence-transformers.

Importing this package has no effect and does not import torch. Its parts are imported by name:
`lexforge.losses`, `lexforge.models`, `lexforge.data`, `lexforge.training`, `lexforge.retrieval` and
`lexforge.evaluation`.
"""

__version__ = "0.1.0"
