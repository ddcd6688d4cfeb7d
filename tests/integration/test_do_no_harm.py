"""What a script does under legroom is what it does without, on scripts of many kinds."""

import hashlib
import json
import os
import subprocess
import sys
import warnings

import pytest

from legroom.capture import Script
from legroom.engine import fit_script
from legroom.plan import PlanOptions

HEAD = """
import json, sys
import torch
from torch import nn
torch.manual_seed(0)

def done(*models):
    values = [value.sum().item() for model in models for value in model.state_dict().values()]
    with open("done.json", "w") as file:
        json.dump([values, torch.rand(1).item()], file)
"""
LOOP = """
net = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16))
optimizer = torch.optim.AdamW(net.parameters())
for number in range({steps}):
    data = torch.randn(512, 16)
    loss = nn.functional.mse_loss(net(data), data)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""


def command(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "legroom", *map(str, arguments)],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )  # fmt: skip


def files_in(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# plan --------------------------------------------------------------------------------------------


WRITES = """
import atexit, os, pathlib, shutil
torch.save({"weights": 1}, "best.pt")
pathlib.Path("kept.txt").write_text("kept")
log = open("log.txt", "a"); log.write("begins\\n"); log.flush()
atexit.register(lambda: pathlib.Path("atexit.txt").write_text("ran"))
class Guard:
    def __enter__(self): return self
    def __exit__(self, *error): pathlib.Path("exit.txt").write_text("ran")
net = nn.Linear(64, 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
try:
    with Guard():
        for number in range(6):
            loss = net(torch.randn(32, 64)).square().mean()
            log.write(f"{loss.item()}\\n"); log.flush()
            open("kept.txt", "r+").write("changed"); open("kept.txt", "w").write("written over")
            assert open("kept.txt").read() == "written over"
            open("losses.csv", "a").write(f"{loss.item()}\\n")
            os.makedirs("checkpoints", exist_ok=True)
            torch.save(net.state_dict(), "best.pt")
            shutil.copy("kept.txt", "copied.txt")
            os.remove("kept.txt") if os.path.exists("kept.txt") else None
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print("step", number)
except BaseException:
    pathlib.Path("except.txt").write_text("ran")
finally:
    pathlib.Path("finally.txt").write_text("ran")
"""


def test_planning_writes_nothing_from_the_border_on(tmp_path):
    (tmp_path / "train.py").write_text(HEAD + WRITES)
    run = command(tmp_path, "plan", "--points", "0", "train.py")
    assert run.returncode == 0, run.stderr
    assert "1 piece" in run.stdout
    assert "step 0" not in run.stdout
    found = files_in(tmp_path)
    assert set(found) == {"train.py", "best.pt", "kept.txt", "log.txt"}
    assert (tmp_path / "log.txt").read_text() == "begins\n"
    assert (tmp_path / "kept.txt").read_text() == "kept"
    import torch

    assert torch.load(tmp_path / "best.pt", weights_only=False) == {"weights": 1}


DRAWN = """
data = torch.randint(0, 65, (20000,))
net = nn.Sequential(nn.Embedding(65, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 65))
optimizer = torch.optim.AdamW(net.parameters())
for number in range(4):
    optimizer.zero_grad()
    for micro in range(3):
        places = torch.randint(len(data) - 129, (16,))
        x = torch.stack([data[i:i + 128] for i in places])
        y = torch.stack([data[i + 1:i + 129] for i in places])
        nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten()).backward()
    optimizer.step()
"""
CLOSURE = """
net = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 1))
optimizer = torch.optim.LBFGS(net.parameters(), max_iter=5)
data = torch.randn(2048, 32)
def closure():
    optimizer.zero_grad()
    loss = net(data).square().mean()
    loss.backward()
    return loss
for number in range(4):
    optimizer.step(closure)
"""
LATE = """
import copy
net = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16))
optimizer = torch.optim.AdamW(net.parameters())
net.to(torch.device("cpu")).double().float()
average = copy.deepcopy(net)
for number in range(4):
    net.train()
    data = torch.randn(1024, 16)
    data = (data - data.mean(0)) / data.std(0)
    assert 0.9 < data.numpy().std() < 1.1
    out = net(data)
    loss = nn.functional.mse_loss(out, data)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    net.eval()
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), net.parameters()):
            mine.mul_(0.9).add_(theirs, alpha=0.1)
        score = float(net(data[:8]).argmax(1).numpy().mean())
        assert 0 <= score <= 15, score
    torch.save(net.state_dict(), "checkpoint.pt")
"""


LOADED = """
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, number):
        row = torch.rand(1 + 64 * (number % 3), 16).mean(0)
        deviation = torch.as_tensor([0.25], dtype=row.dtype)
        if (deviation == 0).any():
            raise ValueError("deviation evaluated to zero")
        return row.clone().div_(deviation), number % 7
def pick(samples):
    return torch.stack([row for row, _ in samples for _ in range(32)])
if __name__ == "__main__":
    net = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16))
    optimizer = torch.optim.AdamW(net.parameters())
    for data in DataLoader(Rows(), 16, shuffle=True, num_workers={workers}, collate_fn=pick):
        loss = nn.functional.mse_loss(net(data), data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
STEPS = {
    "drawn": DRAWN,
    "closure": CLOSURE,
    "late": LATE,
    "loaded": LOADED.replace("{workers}", "0"),
    "loaded by workers": LOADED.replace("{workers}", "2"),
}


@pytest.mark.parametrize("body", STEPS.values(), ids=STEPS)
def test_plan_and_profile_agree_on_the_plain_peak(tmp_path, body):
    (tmp_path / "train.py").write_text(HEAD + body)
    planned = command(tmp_path, "plan", "--points", "0", "--json", "plan.json", "train.py")
    assert planned.returncode == 0, planned.stderr
    profiled = command(tmp_path, "profile", "--json", "profile.json", "train.py")
    assert profiled.returncode == 0, profiled.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    profile = json.loads((tmp_path / "profile.json").read_text())
    one_batch = 512 * 16 * 4  # workers may have sent one more or less by then
    assert plan["plain_peak_bytes"] == pytest.approx(profile["peak_bytes"], rel=0.01, abs=one_batch)


# run ---------------------------------------------------------------------------------------------


def trained(folder, body, *, budget=None, **options):
    """What the script has left behind, and what legroom said."""
    (folder / "train.py").write_text(HEAD + body)
    (folder / "done.json").unlink(missing_ok=True)
    said = []
    if budget is None and not options:
        subprocess.run(
            [sys.executable, "train.py"], cwd=folder, check=True, capture_output=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script's own are no errors
            run = fit_script(
                Script("train.py"),
                PlanOptions(budget=budget, num_points=0, **options),
                on_event=lambda event: said.append(event.text),
            )
        assert run.error is None, run.error
    return json.loads((folder / "done.json").read_text()), " ".join(said)


STRANGERS = {
    "scheduler in a hook of the optimizer": """
net = nn.Linear(32, 32)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
rates = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
optimizer.register_step_post_hook(lambda *args: rates.step())
for number in range(5):
    optimizer.zero_grad(); net(torch.randn(64, 32)).square().mean().backward(); optimizer.step()
net.register_buffer("rate", torch.tensor(optimizer.param_groups[0]["lr"]))
done(net)
""",
    "counter, branch on a value, forward in __init__, NumPy": """
import numpy
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(8, 64), nn.ReLU())
        self.head = nn.Linear(self.features(torch.zeros(1, 8)).shape[1], 1)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        hidden = self.features(torch.as_tensor(x))
        if hidden.mean().item() > 0.3:
            hidden = hidden * 2
        return self.head(hidden)
net = Net()
optimizer = torch.optim.Adam(net.parameters())
for number in range(5):
    x = numpy.random.RandomState(number).randn(256, 8).astype("float32")
    optimizer.zero_grad(); net(x).square().mean().backward(); optimizer.step()
net.register_buffer("count", torch.tensor(net.calls))
done(net)
""",
    "sparse matrix": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 4)
    def forward(self, x, graph):
        return self.b(torch.relu(torch.spmm(graph, self.a(x))))
net, graph = Net(), torch.eye(64).to_sparse()
optimizer = torch.optim.Adam(net.parameters())
for number in range(4):
    optimizer.zero_grad(); net(torch.randn(64, 16), graph).square().mean().backward()
    optimizer.step()
done(net)
""",
    "gradient penalty": """
net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(net.parameters())
for number in range(4):
    x = torch.randn(64, 16, requires_grad=True)
    y = net(x)
    gradient, = torch.autograd.grad(y.sum(), x, create_graph=True)
    optimizer.zero_grad(); (y.mean() + gradient.square().sum()).backward(); optimizer.step()
done(net)
""",
    "updates by hand, forward called directly": """
net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
for number in range(5):
    net.forward(torch.randn(64, 16)).square().mean().backward()
    with torch.no_grad():
        for param in net.parameters():
            param -= 0.1 * param.grad
            param.grad = None
done(net)
""",
    "full backward hook, custom function": """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x
    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return 2 * gradient + 0 * x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 64), nn.Linear(64, 1)
    def forward(self, x):
        return self.b(torch.tanh(Double.apply(self.a(x))))
net, seen = Net(), []
net.a.register_full_backward_hook(lambda module, given, made: seen.append(made[0].sum().item()))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(4):
    optimizer.zero_grad(); net(torch.randn(64, 16)).square().mean().backward(); optimizer.step()
net.register_buffer("seen", torch.tensor([len(seen), *seen]))
done(net)
""",
    "checkpointed blocks, frozen and thawed": """
from torch.utils.checkpoint import checkpoint
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 1)
    def forward(self, x):
        return self.c(checkpoint(lambda h: torch.tanh(self.b(h)), self.a(x), use_reentrant=False))
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(6):
    net.a.requires_grad_(number >= 3)
    optimizer.zero_grad(); net(torch.randn(64, 16)).square().mean().backward(); optimizer.step()
done(net)
""",
    "ever new shapes and modules": """
net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        return self.inner(x) * 2
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for number in range(8):
    optimizer.zero_grad()
    Around(net)(torch.randn(32 + 8 * number, 16)).square().mean().backward()
    optimizer.step()
done(net)
""",
}


@pytest.mark.parametrize("name", STRANGERS)
def test_run_trains_what_plain_python_trains(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    plain, _ = trained(tmp_path, STRANGERS[name])
    fitted, _ = trained(tmp_path, STRANGERS[name], budget="60%")
    assert fitted == plain


def test_new_shapes_beyond_what_planning_may_take_run_as_they_are(tmp_path, monkeypatch):
    from legroom.engine import _planning_time, _probation

    monkeypatch.chdir(tmp_path)
    # Another script of this file says create_graph=True.
    monkeypatch.setattr(_probation, "may_differentiate_twice", lambda: False)
    monkeypatch.setattr(_planning_time, "_ALLOWED_S", 0.0)
    name = "ever new shapes and modules"
    plain, _ = trained(tmp_path, STRANGERS[name])
    fitted, said = trained(tmp_path, STRANGERS[name], budget="60%")
    assert fitted == plain
    assert "planning has taken what it may" in said


def test_what_runs_as_it_is_is_said_with_line_and_reason(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, said = trained(tmp_path, STRANGERS["sparse matrix"], budget="60%")
    assert "sparse tensor (sparse_coo)" in said
    assert "train.py:" in said
    assert said.count("without a plan") == 1


def test_what_cannot_be_planned_is_an_error_where_that_is_wanted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(HEAD + STRANGERS["sparse matrix"])
    options = PlanOptions(budget="60%", num_points=0, on_unplannable="error")
    run = fit_script(Script("train.py"), options)
    assert "cannot be planned: a sparse tensor" in str(run.error)


def test_a_mistake_of_the_users_comes_first_and_alone(tmp_path):
    body = LOOP.format(steps=3, after="net(torch.randn(4, 17)).sum().backward()")
    (tmp_path / "train.py").write_text(HEAD + body)
    run = command(tmp_path, "run", "--budget", "80%", "train.py")
    assert run.returncode == 1
    traceback = run.stderr[run.stderr.index("Traceback") :]
    assert "mat1 and mat2 shapes cannot be multiplied" in traceback
    assert "data_ptr" not in run.stderr
    assert "FakeTensor" not in run.stderr
    assert len(traceback.splitlines()) < 30


@pytest.mark.parametrize(
    ("ending", "code"),
    [("raise ValueError('mine')", 1), ("sys.exit(3)", 3), ("exit()", 0)],
)
def test_scripts_end_as_without_legroom(tmp_path, ending, code):
    body = LOOP.format(steps=6, after=f"if number == 3: {ending}")
    (tmp_path / "train.py").write_text(HEAD + body)
    run = command(tmp_path, "run", "--budget", "80%", "train.py")
    assert run.returncode == code, run.stderr
