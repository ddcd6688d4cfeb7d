import sys
import types

import torch
from torch import nn

import legroom


def profile_of_something():
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        net(torch.randn(64, 8)).sum().backward()
        optimizer.step()

    return legroom.profile(step)


def test_a_notebook_gets_the_page_in_a_frame(monkeypatch, capsys):
    shown = []

    class ZMQInteractiveShell:
        pass

    notebook = types.ModuleType("IPython")
    notebook.get_ipython = ZMQInteractiveShell
    display = types.ModuleType("IPython.display")
    display.HTML = lambda text: text
    display.display = shown.append
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    legroom.show(profile_of_something(), height_px=500)
    (frame,) = shown
    assert frame.startswith('<iframe srcdoc="')
    assert "height:500px" in frame
    assert "legroom-data" in frame
    assert capsys.readouterr().out == ""


def test_what_came_of_a_run_is_shown_too(capsys):
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    fitted = legroom.fit(net, activations="90%")  # whatever else is alive beside so small a net
    for _ in range(4):
        net(torch.randn(256, 64)).sum().backward()
        net.zero_grad()
    legroom.show(fitted.report())
    fitted.undo()
    assert "the plain step peaks at" in capsys.readouterr().out
