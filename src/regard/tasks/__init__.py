"""Tasks: data, model, loss and metric of what people train models for."""
