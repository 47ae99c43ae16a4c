"""Which layers keep softmax: the suggestion of the probe against every other choice."""
