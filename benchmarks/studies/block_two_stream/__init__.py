"""Block two-stream fine-tuning of decoders, compared with next-token training."""
