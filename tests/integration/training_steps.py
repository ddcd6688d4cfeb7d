"""Small training steps with all the habits that real ones have, by name.

Each entry builds its model and optimizer when called and returns a function that does one step.
"""

import gc
import threading
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def block():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))


def usual_step(net, x, optimizer=None, loss=lambda y: y.pow(2).mean()):
    optimizer = optimizer or torch.optim.Adam(net.parameters())

    def step():
        optimizer.zero_grad()
        loss(net(x)).backward()
        optimizer.step()

    return step


def plain():
    return usual_step(block(), torch.randn(512, 64))


def checkpointed(reentrant=False):
    blocks = nn.ModuleList(block() for _ in range(4))
    x = torch.randn(512, 64, requires_grad=reentrant)

    def net(h):
        for each in blocks:
            h = checkpoint(each, h, use_reentrant=reentrant)
        return h

    return usual_step(net, x, torch.optim.SGD(blocks.parameters(), lr=0.1))


def checkpointed_reentrant():
    return checkpointed(reentrant=True)


def closure():
    net, x = block(), torch.randn(512, 64)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3, history_size=2)

    def again():
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(again)


def functional():
    weight = torch.randn(64, 64, requires_grad=True)
    x = torch.randn(512, 64)
    return usual_step(lambda x: (x @ weight).relu(), x, torch.optim.Adam([weight]))


def double_backward():
    net, data = block(), torch.randn(512, 64)
    optimizer = torch.optim.Adam(net.parameters())

    def step():
        optimizer.zero_grad()
        x = data.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        (gradient.norm(dim=1) - 1).pow(2).mean().backward()
        optimizer.step()

    return step


def autocast():
    net = block()

    def run(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return net(x).float()

    return usual_step(run, torch.randn(512, 64), torch.optim.Adam(net.parameters()))


def lstm():
    return usual_step(nn.LSTM(64, 128, 2), torch.randn(20, 32, 64), loss=lambda y: y[0].mean())


def gru():
    return usual_step(nn.GRU(64, 128), torch.randn(20, 32, 64), loss=lambda y: y[0].mean())


def scripted():
    return usual_step(torch.jit.script(block()), torch.randn(512, 64))


def sparse_embedding():
    net = nn.Embedding(5000, 32, sparse=True)
    ids = torch.arange(512)
    return usual_step(net, ids, torch.optim.SparseAdam(net.parameters()))


def numpy_inputs():
    array = np.random.default_rng(0).standard_normal((512, 64)).astype("float32")
    return usual_step(block(), torch.from_numpy(array))


def custom_function():
    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    net = block()
    return usual_step(
        lambda x: Exp.apply(net(x)), torch.randn(512, 64), torch.optim.Adam(net.parameters())
    )


def accumulation():
    net, x = block(), torch.randn(512, 64)
    optimizer = torch.optim.Adam(net.parameters())

    def step():
        optimizer.zero_grad()
        for part in x.chunk(4):
            (net(part).pow(2).mean() / 4).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return step


def kept_graph():
    net, x = block(), torch.randn(512, 64)
    optimizer = torch.optim.Adam(net.parameters())
    losses = []

    def step():
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
        del losses[:-3]

    return step


def transformer_encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return usual_step(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(8, 32, 64)
    )


def offloaded():
    net = block()

    def run(x):
        with torch.autograd.graph.save_on_cpu():
            return net(x)

    return usual_step(run, torch.randn(512, 64), torch.optim.Adam(net.parameters()))


def under_a_device():
    net = block()
    inner = usual_step(net, torch.randn(512, 64))

    def step():
        with torch.device("cpu"):
            inner()

    return step


def in_place_convolutions():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3), nn.ReLU(inplace=True),
    )  # fmt: skip
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return usual_step(net, torch.randn(8, 3, 32, 32), sgd)


def tied_weights():
    embedding, head = nn.Embedding(500, 64), nn.Linear(64, 500, bias=False)
    head.weight = embedding.weight
    net = nn.Sequential(embedding, block(), head)
    return usual_step(net, torch.randint(0, 500, (4, 32)))


def frozen_half():
    net = nn.Sequential(block(), block())
    net[0].requires_grad_(False)
    return usual_step(net, torch.randn(512, 64))


def compiled():
    net = block()
    return usual_step(
        torch.compile(net, backend="aot_eager"),
        torch.randn(512, 64),
        torch.optim.Adam(net.parameters()),
    )


def update_in_backward():
    net, x = block(), torch.randn(512, 64)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    return lambda: net(x).pow(2).mean().backward()


def per_sample_gradients():
    net, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), torch.randn(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parameters = dict(net.named_parameters())

    def loss(weights, sample):
        return torch.func.functional_call(net, weights, (sample,)).pow(2).mean()

    def step():
        optimizer.zero_grad()
        weights = {name: value.detach() for name, value in parameters.items()}
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
        for name, value in parameters.items():
            value.grad = each[name].mean(0)
        net(x).pow(2).mean().backward()
        optimizer.step()

    return step


def stale_views():
    net, x = nn.Linear(64, 64), torch.randn(512, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    held = []

    def step():
        optimizer.zero_grad()
        hidden = net(x)
        held[:] = hidden.chunk(2, 1)
        hidden.mul_(2)
        hidden.sum().backward()
        optimizer.step()

    return step


def nested_tensor_alive():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)])
    inner = plain()

    def step():
        assert nested.is_nested
        inner()

    return step


def exported_to_numpy():
    net, x = block(), torch.randn(512, 64)
    inner = usual_step(net, x)

    def step():
        inner()
        net[0].weight.detach().numpy().mean()

    return step


def frozen_heap():
    inner = plain()

    def step():
        inner()
        gc.freeze()

    return step


def graph_before_the_first_module():
    weight, net = nn.Parameter(torch.randn(64, 64)), block()
    optimizer = torch.optim.SGD([weight, *net.parameters()], lr=0.1)
    return usual_step(lambda x: net(torch.tanh(x @ weight)), torch.randn(512, 64), optimizer)


def modules_on_another_thread():
    inner = plain()
    other = nn.Sequential(nn.Tanh(), nn.Sequential(nn.ReLU(), nn.Sigmoid()))

    def step():
        worker = threading.Thread(target=lambda: [other(torch.ones(1)) for _ in range(200)])
        worker.start()
        inner()
        worker.join()

    return step


def foreach_optimizer():
    net = block()
    return usual_step(net, torch.randn(8, 64), torch.optim.AdamW(net.parameters(), foreach=True))


STEPS = {
    build.__name__: build
    for build in (
        plain, checkpointed, checkpointed_reentrant, closure, functional, double_backward,
        autocast, lstm, gru, scripted, sparse_embedding, numpy_inputs, custom_function,
        accumulation, kept_graph, transformer_encoder, offloaded, under_a_device,
        in_place_convolutions, tied_weights, frozen_half, update_in_backward,
        foreach_optimizer, per_sample_gradients, stale_views, nested_tensor_alive,
        exported_to_numpy, graph_before_the_first_module, modules_on_another_thread, frozen_heap,
        compiled,  # compiled last: from then on there are no lines
    )
}  # fmt: skip
