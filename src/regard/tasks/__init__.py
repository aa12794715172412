"""Tasks: the data, model, loss and metrics of what models are trained for, one folder each."""

from regard.tasks.registry import TASKS, get_task, task_of_run

__all__ = ["TASKS", "get_task", "task_of_run"]
