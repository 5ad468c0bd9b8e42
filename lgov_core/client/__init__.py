"""The client of the training pair: runs an existing agent on tasks, next to a server that trains its model.

`Client` uploads tasks and runs agents for a server (``python -m lgov_core.server``); `read_tasks` checks a task file.
"""

from lgov_core.client.client import Client, TrainResult
from lgov_core.client.tasks import Resource, Task, read_tasks

__all__ = ["Client", "Resource", "Task", "TrainResult", "read_tasks"]
