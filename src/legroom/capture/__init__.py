"""A model, a step or a whole script, observed while it trains and otherwise left alone.

In comes a path to a script or a running loop; out come the moments that matter (a step ends, a
backward pass begins) and the source line and module that each operation belongs to.
"""

from legroom.capture._autocast import autocast_settings, backward_habit
from legroom.capture._autograd import (
    BackwardCall,
    SavedTensor,
    graph_of,
    is_in_backward,
    is_in_transform,
    nodes_behind,
    observe_backward,
    saved_tensors,
)
from legroom.capture._dynamo import (
    Rewrite,
    call_that_is_set,
    captured,
    dynamo_settings,
    own_call,
    prepared,
    set_call,
    source_key,
    trace_joint,
    untraced,
)
from legroom.capture._failures import failure_of, is_out_of_memory
from legroom.capture._fake_rules import fake_rules
from legroom.capture._fused import in_memory_order
from legroom.capture._graph import Graph, NotCaptured, OperationInfo, TensorInfo
from legroom.capture._heap import Heap, nested_tensors, scan_heap, shape_and_dtype
from legroom.capture._in_place import write_in_place
from legroom.capture._joint import PieceCode, read_joint_graph, unread_places
from legroom.capture._kernels import kernel_compiler
from legroom.capture._kinds import STATE, Kind, Phase
from legroom.capture._modules import FunctionShell, ModulePaths, saving_is_hooked
from legroom.capture._nodes import is_tangent
from legroom.capture._observed import Holding, ObservedRun, ObservedStep, Stretch
from legroom.capture._operations import FUNCTIONAL, LIBRARY
from legroom.capture._pieces import SourceInfo
from legroom.capture._real import real_tensors
from legroom.capture._rnn import lstm_workspace_read, rnn_operations
from legroom.capture._script import Script, ScriptOutcome, StopScript, run_script
from legroom.capture._signature import (
    arguments_of,
    call_with,
    signature_of,
    tensors_of,
    without_sizes,
)
from legroom.capture._sites import Site, SiteTable, is_model_code, is_user_code, short_name
from legroom.capture._step_capture import Capture, StepCapture, capture_step
from legroom.capture._steps import AbstractTrainingObserver, StepFinder, kept_out_of_the_script

__all__ = [
    "FUNCTIONAL",
    "LIBRARY",
    "STATE",
    "AbstractTrainingObserver",
    "BackwardCall",
    "Capture",
    "FunctionShell",
    "Graph",
    "Heap",
    "Holding",
    "Kind",
    "ModulePaths",
    "NotCaptured",
    "ObservedRun",
    "ObservedStep",
    "OperationInfo",
    "Phase",
    "PieceCode",
    "Rewrite",
    "SavedTensor",
    "Script",
    "ScriptOutcome",
    "Site",
    "SiteTable",
    "SourceInfo",
    "StepCapture",
    "StepFinder",
    "StopScript",
    "Stretch",
    "TensorInfo",
    "arguments_of",
    "autocast_settings",
    "backward_habit",
    "call_that_is_set",
    "call_with",
    "capture_step",
    "captured",
    "dynamo_settings",
    "failure_of",
    "fake_rules",
    "graph_of",
    "in_memory_order",
    "is_in_backward",
    "is_in_transform",
    "is_model_code",
    "is_out_of_memory",
    "is_tangent",
    "is_user_code",
    "kept_out_of_the_script",
    "kernel_compiler",
    "lstm_workspace_read",
    "nested_tensors",
    "nodes_behind",
    "observe_backward",
    "own_call",
    "prepared",
    "read_joint_graph",
    "real_tensors",
    "rnn_operations",
    "run_script",
    "saved_tensors",
    "saving_is_hooked",
    "scan_heap",
    "set_call",
    "shape_and_dtype",
    "short_name",
    "signature_of",
    "source_key",
    "tensors_of",
    "trace_joint",
    "unread_places",
    "untraced",
    "without_sizes",
    "write_in_place",
]
