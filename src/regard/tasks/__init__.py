"""Tasks: the data, model, loss and metrics of what models are trained for, one folder each."""
