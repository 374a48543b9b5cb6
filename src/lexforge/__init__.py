"""Train neural sparse (SPLADE) and dense retrievers on sentence-transformers.

Importing this package has no effect and does not import torch. The parts are imported by name:
`lexforge.losses`, `lexforge.models`, `lexforge.training`, `lexforge.retrieval`, `lexforge.evaluation`, `lexforge.data`.
"""

__version__ = "0.1.0"
