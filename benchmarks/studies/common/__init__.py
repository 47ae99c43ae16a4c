"""What several studies share: options, run folders, texts, tables, figures, training."""
