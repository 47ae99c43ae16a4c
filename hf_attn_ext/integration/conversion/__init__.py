"""Convert, revert, fold, save and load models; their classes and model types; PEFT.

Imports ``integration.linear`` and the rooms below it.
"""
