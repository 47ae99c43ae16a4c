"""What ``train_sotu_gpt.py`` is made of: the corpus, the models, the control, and the report."""
