from legroom.meter._origins import NO_SITE, find_origins
from legroom.meter._scopes import Tag
from tests.unit.meter.test_ledger import Script


def forward_call(script, site, name, sequence):
    script.begin("site", tag=Tag.SITE, number=site)
    script.begin(name, sequence=sequence)
    script.end()
    script.end()


def node(script, name, sequence, inside="aten::mm", inner_sequence=-1):
    script.begin("evaluate", node=name, sequence=sequence)
    script.begin(name, sequence=sequence)
    script.begin(inside, sequence=inner_sequence)
    script.end()
    script.end()
    script.end()


def origin_of(script, name):
    index = next(op.index for op in script.stream.operations if op.name == name)
    return find_origins(script.stream)[index]


def test_backward_belongs_to_the_line_that_caused_it():
    script = Script()
    forward_call(script, 5, "aten::gelu", 11)
    forward_call(script, 6, "aten::linear", 12)
    script.begin("backward", tag=Tag.BACKWARD, number=9)
    node(script, "GeluBackward0", 11, inside="aten::gelu_backward")
    script.end()
    origin = origin_of(script, "aten::gelu_backward")
    assert (origin.site, origin.label, origin.is_backward) == (5, "aten::gelu", True)


def test_the_last_operation_with_a_number_made_the_node():
    script = Script()
    script.begin("site", tag=Tag.SITE, number=1)
    script.begin("aten::empty_like", sequence=7)
    script.end()
    script.end()
    forward_call(script, 2, "aten::mul", 7)
    script.begin("backward", tag=Tag.BACKWARD, number=9)
    node(script, "MulBackward0", 7)
    script.end()
    assert origin_of(script, "MulBackward0").site == 2


def test_double_backward_leads_on_to_the_first_line():
    script = Script()
    forward_call(script, 5, "aten::pow", 11)
    script.begin("backward", tag=Tag.BACKWARD, number=9)
    node(script, "PowBackward0", 11, inside="aten::mul", inner_sequence=30)
    script.end()
    script.begin("backward", tag=Tag.BACKWARD, number=10)
    node(script, "MulBackward0", 30, inside="aten::add")
    script.end()
    assert origin_of(script, "aten::add").site == 5


def test_accumulating_belongs_to_the_node_before():
    script = Script()
    forward_call(script, 5, "aten::linear", 11)
    script.begin("backward", tag=Tag.BACKWARD, number=9)
    node(script, "AddmmBackward0", 11)
    node(script, "torch::autograd::AccumulateGrad", -1, inside="aten::add_")
    script.end()
    assert origin_of(script, "aten::add_").site == 5


def test_legrooms_own_work_has_no_line():
    script = Script()
    script.begin("overhead", tag=Tag.OVERHEAD)
    script.begin("aten::detach")
    script.end()
    script.end()
    origin = origin_of(script, "aten::detach")
    assert origin.site == NO_SITE
    assert origin.is_overhead
