"""A sentence encoder extended from 512 to 4,096 tokens: what it keeps and what it gains."""
