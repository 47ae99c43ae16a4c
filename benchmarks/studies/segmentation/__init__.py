"""Text segmentation from context similarity, against embeddings and TextTiling."""
