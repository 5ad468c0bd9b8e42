"""The figures of a training in MLflow: ``callbacks: [{use: mlflow, with: {experiment: agents}}]``."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lgov_core import hookimpl
from lgov_core.train.loop.run_files import flat


@dataclass
class MlflowCallback:
    experiment: str
    tracking_uri: str | None = None

    @cached_property
    def client(self) -> Any:
        import mlflow

        if self.tracking_uri is not None:
            mlflow.set_tracking_uri(self.tracking_uri)
        mlflow.set_experiment(self.experiment)
        mlflow.start_run()
        return mlflow

    def __call__(self, line: dict[str, Any]) -> None:
        figures = {f"{line['phase']}/{name}": value for name, value in flat(line)}
        self.client.log_metrics(figures, step=line["step"])


@hookimpl
def lgov_training() -> dict[str, dict[str, Any]]:
    return {"callback": {"mlflow": MlflowCallback}}
