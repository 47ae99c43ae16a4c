"""What ``block_two_stream.py`` and ``butterfly.py`` share: texts, what is predicted, training, and the report."""
