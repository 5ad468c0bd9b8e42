"""What float32 and bfloat16 cost: sampling by the embedded engine and an update, and how far the two are apart.

The settings are those of ``lgov train``, so ``--dtype auto`` shows what it chooses. Rollouts of two turns are sampled, and the
update is made of them. Seconds are those of the processor, on one thread: what else the machine does changes them little. The
drift is the mean difference between a log-probability that the engine recorded and the one that the trainer computes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.engine import Load, make_model, rollouts

LOADS = {
    "tiny": Load("tiny", 4, 8, 2, 60, 20, 24, 12, 1),
    "smollm2": Load("smollm2", 1, 8, 2, 60, 20, 24, 12, 1),
}


def rows_of(completions: list[Any]) -> list[Any]:
    """One row a call, every second one to be made likelier and the others less likely."""
    from lgov_core.train.layout.rows import TrainRow

    rows: list[TrainRow] = []
    for number, one in enumerate(completions):
        prompt, reply = len(one.prompt_ids), len(one.response_ids)
        blank = (0.0,) * prompt
        rows.append(
            TrainRow(
                (*one.prompt_ids, *one.response_ids),
                (0,) * prompt + (1,) * reply,
                (*blank, *one.logprobs),
                (*blank, *[1.0 if number % 2 else -1.0] * reply),
                (*blank, *[1.0 / reply / len(completions)] * reply),
                1.0,
            )
        )
    return rows


def measure(model: Path | str, load: Load, dtype: str) -> str:
    """A line with tokens a second of sampling and of an update, drift, and what was chosen for ``auto``."""
    import torch

    from lgov_core.server.recipe import algorithm_for, open_engine, with_exact_model
    from lgov_core.server.recipe import load as load_settings_model
    from lgov_core.train.settings import load_train_settings

    torch.set_num_threads(load.threads)
    flags = {("model", "name"): str(model), ("model", "dtype"): dtype, ("model", "max_new_tokens"): load.reply}
    settings = with_exact_model(load_train_settings(flags=flags, environ={}), "cpu")
    language = load_settings_model(settings, "cpu")
    with contextlib.ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        sampling = open_engine(settings, language, Path(folder), opened)
        learner = sampling.learner(algorithm_for(settings).update)

        async def sampled() -> tuple[float, list[Any]]:
            await sampling.engine.start()
            await rollouts(sampling.engine, Load(load.model, 1, 2, 1, 5, 5, 4, 4, 1), at_once=True)
            cpu = time.process_time()
            found = await rollouts(sampling.engine, load, at_once=True)
            cpu = time.process_time() - cpu
            await sampling.engine.close()
            return cpu, found

        sampling_s, completions = asyncio.run(sampled())
        rows = rows_of(completions)
        cpu = time.process_time()
        made: Any = learner.update(rows)
        update_s = time.process_time() - cpu
    written = sum(one.completion_tokens for one in completions)
    return (
        f"  {settings.model.dtype:<9} sampling {written / sampling_s:8.1f} tokens/s   "
        f"update {made.tokens_run / update_s:8.1f} tokens/s   drift {made.logprob_drift:.1e}"
    )


def main() -> None:
    """Prints two lines a model, and what ``auto`` chooses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=[*LOADS], action="append")
    parser.add_argument("--runs", type=int, default=2, help="how often; all are printed")
    given = parser.parse_args()
    for name in given.model or LOADS:
        with tempfile.TemporaryDirectory() as folder:
            model: Path | str = name
            if name == "tiny":
                model = Path(folder, "tiny")
                make_model(LOADS[name]).save(model)
            from lgov_core.models.load import dtype_for

            print(f"{name}, one thread; auto is {dtype_for(model, 'auto', 'cpu')} here", flush=True)
            for _ in range(given.runs):
                for dtype in ("float32", "bfloat16"):
                    print(measure(model, LOADS[name], dtype), flush=True)


if __name__ == "__main__":
    main()
