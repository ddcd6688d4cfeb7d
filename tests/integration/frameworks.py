"""The same training under several frameworks, plain or fitted: its parameters after every update.

Each loop is called with what to do to a model that is not prepared yet and to one that is.
"""

import hashlib
import sys
import warnings

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

WIDTH, BATCH, NUM_STEPS = 64, 512, 5


def nothing(model):
    """Leave the model as it is."""


def net():
    layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(WIDTH, 1))


def batches(num=NUM_STEPS):
    return [(torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)) for _ in range(num)]


def hashes_of(train, before=nothing, after=nothing):
    """A hash of all parameters for each update of the training."""
    found = []

    def updated(optimizer, *_):
        digest = hashlib.sha256()
        for group in optimizer.param_groups:
            for param in group["params"]:
                digest.update(param.detach().numpy().tobytes())
        found.append(digest.hexdigest())

    torch.manual_seed(0)
    handle = register_optimizer_step_post_hook(updated)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # strangers' own
            train(before, after)
    finally:
        handle.remove()
    assert found, "nothing was trained"
    return found


def with_accelerate(before, after, *, accumulate=1):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = net()
    before(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    after(model)
    for x, y in batches(NUM_STEPS * accumulate):
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


def with_accumulation(before, after):
    with_accelerate(before, after, accumulate=2)


def with_fabric(before, after):
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = net()
    before(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = fabric.setup(model, optimizer)
    after(model)
    for x, y in batches():
        loss = nn.functional.mse_loss(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def with_trainer(before, after, *, accumulate=1, folder="unused"):
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=97, n_positions=32, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    before(model)
    tokens = torch.randint(97, (8 * accumulate * NUM_STEPS, 32))
    data = [{"input_ids": row, "labels": row} for row in tokens]

    class Begins(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            after(model)

    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=8, gradient_accumulation_steps=accumulate,
        max_steps=NUM_STEPS, use_cpu=True, report_to=[], save_strategy="no", logging_steps=2,
        disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Begins()]).train()


def with_trainer_accumulating(before, after):
    with_trainer(before, after, accumulate=2)


def _lightning(module, before, after):
    import pytorch_lightning as lightning

    class Begins(lightning.Callback):
        def on_train_start(self, trainer, module):
            after(module.net)

    before(module.net)
    loader = torch.utils.data.DataLoader(batches(), batch_size=None)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Begins()],
    )  # fmt: skip
    trainer.fit(module, loader)


def with_lightning(before, after):
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            x, y = batch
            return nn.functional.mse_loss(self.net(x), y)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    _lightning(Module(), before, after)


def with_manual_lightning(before, after):
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = net()

        def training_step(self, batch, index):
            x, y = batch
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(nn.functional.mse_loss(self.net(x), y))
            optimizer.step()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    _lightning(Module(), before, after)


LOOPS = {
    "accelerate": with_accelerate,
    "accelerate, accumulating": with_accumulation,
    "Fabric": with_fabric,
    "Trainer": with_trainer,
    "Trainer, accumulating": with_trainer_accumulating,
    "Lightning": with_lightning,
    "Lightning, manual": with_manual_lightning,
}


if __name__ == "__main__":
    for digest in hashes_of(LOOPS[sys.argv[1]]):
        print(digest)
