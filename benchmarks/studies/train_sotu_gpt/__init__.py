"""A small GPT trained from scratch with softmax and with every kernel."""
