"""Pretraining with a loop of one's own around the compiled step.

    python examples/pretrain_custom_loop.py bert-mini w/own --set 'corpus.sources=["my-text/*.txt"]' --stop-after 1000

The corpus, the tokenizer and the dataset are prepared first, and kept in the work folder: the second time training begins at
once. The loop itself begins at step 0 and saves nothing; `tpulm run` is the loop that does, and that goes on where it was.
"""

from __future__ import annotations

import argparse

import jax

import tpulm


def main() -> None:
    given = arguments()
    config = tpulm.load_config(given.run, given.set)
    for step, state, metrics in tpulm.training_steps(config, given.workdir, progress=tpulm.PrintedProgress()):
        if step == 1:
            print(f"{sum(leaf.size for leaf in jax.tree.leaves(state.params)):,} parameters on {jax.device_count()} devices")
        if step % config.train.log_every_steps == 0 or step == given.stop_after:
            # Only looking at the metrics waits for the devices. They are means over all of them, since the last multiple.
            print(f"step {step}: " + ", ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        if step == given.stop_after:
            break


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="a run file, or the name of a recipe")
    parser.add_argument("workdir", metavar="W", help="the work folder, on disk or gs://")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="one setting of the run, repeatable")
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="default: all steps of the run")
    return parser.parse_args()


# Preparing the data starts worker processes, which import this file: they must not begin a run of their own.
if __name__ == "__main__":
    main()
