"""Measuring tools: fair timing, peak memory in a process of its own, growth and crossover, facts about the machine."""
