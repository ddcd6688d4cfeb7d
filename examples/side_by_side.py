"""Train a small GPT-2 plain and fitted into half its memory, side by side.

    python examples/side_by_side.py --steps 6 --budget 50%

Prints loss, peak and time of both for every step; the losses are equal in every digit.
"""

import argparse
import time

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from transformers import GPT2Config, GPT2LMHeadModel

import legroom

BATCH, LENGTH, VOCABULARY = 8, 256, 4096


def build():
    """A model, its optimizer, and batches: the same every time."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=6, n_embd=256, n_head=4, n_positions=LENGTH, vocab_size=VOCABULARY,
        bos_token_id=0, eos_token_id=0, use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).train()
    model.loss_type = "ForCausalLM"
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    batches = [torch.randint(VOCABULARY, (BATCH, LENGTH)) for _ in range(4)]
    return model, optimizer, batches


def train(num_steps, budget=None, on_step=lambda: None):
    """Losses and milliseconds of each step, and the handle of the fitted model."""
    model, optimizer, batches = build()
    fitted = None if budget is None else legroom.fit(model, budget=budget, optimizer=optimizer)
    losses, times = [], []
    for number in range(num_steps):
        started = time.perf_counter()
        tokens = batches[number % len(batches)]
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        times.append(1000 * (time.perf_counter() - started))
        on_step()
    return losses, times, fitted


def main():
    """Train both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--budget", default="50%")
    options = parser.parse_args()
    with Progress(transient=True) as progress:
        task = progress.add_task("plain", total=2 * options.steps)
        plain_losses, plain_ms, _ = train(options.steps, on_step=lambda: progress.advance(task))
        progress.update(task, description="fitted (planned at the first step)")
        losses, fitted_ms, fitted = train(
            options.steps, options.budget, on_step=lambda: progress.advance(task)
        )
    table = Table("step", "loss, plain", "loss, fitted", "same", "plain ms", "fitted ms")
    rows = zip(plain_losses, losses, plain_ms, fitted_ms, strict=True)
    for number, (plain, mine, plain_time, mine_time) in enumerate(rows, start=1):
        table.add_row(
            str(number), f"{plain:.6f}", f"{mine:.6f}", "yes" if plain == mine else "NO",
            f"{plain_time:.0f}", f"{mine_time:.0f}",
        )  # fmt: skip
    console = Console()
    console.print(table)
    report = fitted.report()
    mib = 2**20
    console.print(
        f"peak {report.plain_peak_bytes / mib:.0f} MiB plain, "
        f"{report.measured_peak_bytes / mib:.0f} MiB fitted and measured "
        f"({report.predicted_peak_bytes / mib:.0f} predicted, budget "
        f"{report.budget_bytes / mib:.0f}); planned in {report.planning_s:.0f} s. The first steps "
        "of the fitted run plan, compile and are measured."
    )
    if losses != plain_losses:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
