"""Training under a mask with the Trainer of Transformers, from a YAML file."""
