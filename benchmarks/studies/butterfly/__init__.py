"""Encoders trained from scratch with butterfly attention, compared with masked language modelling."""
