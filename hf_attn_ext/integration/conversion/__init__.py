"""Convert, revert, fold, save and load models; the classes of converted models and their registration; PEFT.

A module belongs here if it changes a model's class or reads or writes its folder; it imports ``integration.linear`` and
the rooms below it.
"""
