"""The model card of a sparse retriever, whose example tells queries from documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers.base.model_card import BaseModelCardData
from sentence_transformers.sparse_encoder.model_card import SparseEncoderModelCardData

_EXAMPLE = """```python
from sentence_transformers import SparseEncoder

# Download from the 🤗 Hub
model = SparseEncoder("{name}")
# Run inference
queries = [
    {query!r},
]
documents = [
    {documents},
]
query_embeddings = model.encode_query(queries)
document_embeddings = model.encode_document(documents)
print(query_embeddings.shape, document_embeddings.shape)
# {shapes}

# Get the similarity scores for the embeddings
similarities = model.similarity(query_embeddings, document_embeddings)
print(similarities)
{similarities}
```"""


@dataclass
class RetrieverCard(SparseEncoderModelCardData):
    """The model card of sentence-transformers, with `encode_query` and `encode_document` in its example.

    The stock card of a sparse encoder shows `encode`, which sends queries through the route of the documents
    where the model has two routes, and without the prompt of the queries where it has prompts.
    """

    def run_usage_snippet(self) -> None:
        """Take a query and three documents, and compute the output that the example shows."""
        BaseModelCardData.run_usage_snippet(self)  # chooses texts if training has left none
        query, *documents = self._texts()
        model: Any = self.model
        options = {"show_progress_bar": False, "convert_to_sparse_tensor": False}  # four rows may be dense
        vectors = [model.encode_query([query], **options), model.encode_document(documents, **options)]
        self._shapes = " ".join(str(rows.shape) for rows in vectors)
        with torch._tensor_str.printoptions(precision=4, sci_mode=False):
            lines = str(model.similarity(*vectors).cpu()).splitlines()
        self.similarities = "\n".join(f"# {line}" for line in lines)

    def generate_usage_snippet(self) -> str:
        """Return the example as a block of Python."""
        query, *documents = self._texts()
        return _EXAMPLE.format(
            name=self.model_id or "sparse_encoder_model_id",
            query=query,
            documents=",\n    ".join(map(repr, documents)),
            shapes=self._shapes,
            similarities=self.similarities,
        )

    def _texts(self) -> list[str]:
        """The query of the example and its documents, at most three."""
        texts: Any = self.usage_examples
        return [str(text) for text in texts[:4]]
