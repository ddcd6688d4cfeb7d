import itertools

from legroom.capture import Phase
from legroom.meter._phases import find_phases
from legroom.meter._scopes import Tag
from tests.unit.meter.test_ledger import Script


def phases(script):
    return [i.phase.value for i in find_phases(script.stream, 0, script.now).intervals]


def scope(script, tag, inside=lambda: None):
    script.begin("scope", tag=tag)
    inside()
    script.end()


def scope_of_node(script, sequence):
    script.begin("evaluate", node="MmBackward0", sequence=sequence)
    script.end()


def test_a_usual_step_has_its_four_phases():
    script = Script()
    for tag in (Tag.ROOT, Tag.BACKWARD, Tag.OPTIMIZER):
        scope(script, tag)
    assert phases(script) == ["other", "forward", "loss", "backward", "optimizer"]


def test_a_loss_inside_the_model_is_cut_out_of_forward():
    script = Script()
    scope(script, Tag.ROOT, lambda: scope(script, Tag.LOSS))
    scope(script, Tag.BACKWARD)
    assert phases(script) == ["other", "forward", "loss", "forward", "loss", "backward"]


def test_between_two_models_it_is_still_forward():
    script = Script()
    for tag in (Tag.ROOT, Tag.ROOT, Tag.BACKWARD):
        scope(script, tag)
    assert phases(script) == ["other", "forward", "loss", "backward"]


def test_modules_that_run_in_backward_belong_to_it():
    script = Script()
    scope(script, Tag.ROOT)
    scope(script, Tag.BACKWARD, lambda: scope(script, Tag.ROOT))
    assert phases(script) == ["other", "forward", "loss", "backward"]


def test_what_runs_in_a_closure_keeps_its_own_phase():
    script = Script()

    def closure():
        scope(script, Tag.ROOT)
        scope(script, Tag.BACKWARD)

    scope(script, Tag.OPTIMIZER, closure)
    assert phases(script) == ["other", "forward", "loss", "backward", "optimizer"]


def test_without_modules_forward_begins_with_the_graph():
    script = Script()
    script.begin("aten::randn")
    script.end()
    for sequence in (3, 4):  # the first bears the number that the second's node gets
        script.begin("aten::mm", sequence=sequence)
        script.end()
    scope(script, Tag.BACKWARD, lambda: scope_of_node(script, 4))
    found = find_phases(script.stream, 0, script.now)
    assert [i.phase.value for i in found.intervals] == ["other", "forward", "backward"]
    assert found.intervals[1].start_ns == script.stream.operations[2].start_ns


def test_what_precedes_the_first_module_is_forward_if_backward_returns_to_it():
    script = Script()
    for name, sequence in (("aten::randn", 3), ("aten::tanh", 3)):
        script.begin(name, sequence=sequence)
        script.end()
    scope(script, Tag.ROOT)
    scope(script, Tag.BACKWARD, lambda: scope_of_node(script, 3))
    found = find_phases(script.stream, 0, script.now)
    assert found.intervals[0].end_ns == script.stream.operations[1].start_ns
    assert phases(script) == ["other", "forward", "loss", "backward"]


def test_a_step_cut_short_after_forward_was_at_its_loss():
    script = Script()
    scope(script, Tag.ROOT)
    script.now += 100
    assert phases(script) == ["other", "forward", "loss"]


def test_every_moment_has_exactly_one_phase():
    script = Script()
    for tag in (Tag.ROOT, Tag.BACKWARD, Tag.ROOT, Tag.BACKWARD, Tag.OPTIMIZER):
        scope(script, tag)
    found = find_phases(script.stream, 0, script.now)
    edges = [(i.start_ns, i.end_ns) for i in found.intervals]
    assert edges[0][0] == 0
    assert edges[-1][1] == script.now
    assert all(a[1] == b[0] for a, b in itertools.pairwise(edges))
    assert found.at(10**12) is Phase.OTHER
