"""The figures of a training in Weights & Biases: ``callbacks: [{use: wandb, with: {project: agents}}]``."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lgov_core import hookimpl
from lgov_core.train.loop.run_files import flat


@dataclass
class WandbCallback:
    project: str
    name: str | None = None

    @cached_property
    def run(self) -> Any:
        import wandb

        return wandb.init(project=self.project, name=self.name)

    def __call__(self, line: dict[str, Any]) -> None:
        self.run.log({f"{line['phase']}/{name}": value for name, value in flat(line)}, step=line["step"])


@hookimpl
def lgov_training() -> dict[str, dict[str, Any]]:
    return {"callback": {"wandb": WandbCallback}}
