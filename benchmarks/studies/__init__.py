"""Studies: the commands behind the tables of the documentation, one package or module per study."""
