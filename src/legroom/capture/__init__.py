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
    next_sequence_number,
    nodes_behind,
    observe_backward,
    saved_tensors,
)
from legroom.capture._border import Border
from legroom.capture._compiled import compiled_models_pass_calls_on
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
    without_traces,
)
from legroom.capture._failures import failure_of, is_out_of_memory
from legroom.capture._fake_rules import fake_rules
from legroom.capture._fork import (
    Receiver,
    Sender,
    can_fork,
    end_with_parent,
    in_copy,
    read_message,
    split,
)
from legroom.capture._fused import in_memory_order
from legroom.capture._graph import Graph, NotCaptured, OperationInfo, TensorInfo
from legroom.capture._heap import Heap, nested_tensors, scan_heap, shape_and_dtype
from legroom.capture._in_place import write_in_place
from legroom.capture._joint import PieceCode, read_joint_graph, unread_places
from legroom.capture._kernels import kernel_compiler
from legroom.capture._kinds import STATE, Kind, Phase
from legroom.capture._libraries import same_answers_as_eager
from legroom.capture._loaders import samples_remembered
from legroom.capture._modules import FunctionShell, ModulePaths, saving_is_hooked
from legroom.capture._nodes import is_tangent
from legroom.capture._observed import Holding, ObservedRun, ObservedStep, Stretch
from legroom.capture._operations import FUNCTIONAL, LIBRARY
from legroom.capture._pieces import SourceInfo
from legroom.capture._real import real_tensors
from legroom.capture._rnn import lstm_workspace_read, rnn_forwards, rnn_operations
from legroom.capture._script import Script, ScriptOutcome, StopScript, run_script
from legroom.capture._signature import (
    arguments_of,
    call_with,
    signature_of,
    tensors_of,
    without_sizes,
)
from legroom.capture._sites import (
    Site,
    SiteTable,
    is_model_code,
    is_user_code,
    line_of_caller,
    short_name,
)
from legroom.capture._step_capture import (
    Capture,
    CapturedForm,
    CaptureStep,
    FormedStep,
    PlainStep,
    StepCapture,
    capture_here,
    capture_of,
    capture_step,
    capture_step_and,
)
from legroom.capture._steps import AbstractTrainingObserver, StepFinder, kept_out_of_the_script
from legroom.capture._update import make_state, update_alone, updating_optimizers
from legroom.capture._without_effects import leave_no_effects

__all__ = [
    "FUNCTIONAL",
    "LIBRARY",
    "STATE",
    "AbstractTrainingObserver",
    "BackwardCall",
    "Border",
    "Capture",
    "CaptureStep",
    "CapturedForm",
    "FormedStep",
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
    "PlainStep",
    "Receiver",
    "Rewrite",
    "SavedTensor",
    "Script",
    "ScriptOutcome",
    "Sender",
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
    "can_fork",
    "capture_here",
    "capture_of",
    "capture_step",
    "capture_step_and",
    "captured",
    "compiled_models_pass_calls_on",
    "dynamo_settings",
    "end_with_parent",
    "failure_of",
    "fake_rules",
    "graph_of",
    "in_copy",
    "in_memory_order",
    "is_in_backward",
    "is_in_transform",
    "is_model_code",
    "is_out_of_memory",
    "is_tangent",
    "is_user_code",
    "kept_out_of_the_script",
    "kernel_compiler",
    "leave_no_effects",
    "line_of_caller",
    "lstm_workspace_read",
    "make_state",
    "nested_tensors",
    "next_sequence_number",
    "nodes_behind",
    "observe_backward",
    "own_call",
    "prepared",
    "read_joint_graph",
    "read_message",
    "real_tensors",
    "rnn_forwards",
    "rnn_operations",
    "run_script",
    "same_answers_as_eager",
    "samples_remembered",
    "saved_tensors",
    "saving_is_hooked",
    "scan_heap",
    "set_call",
    "shape_and_dtype",
    "short_name",
    "signature_of",
    "source_key",
    "split",
    "tensors_of",
    "trace_joint",
    "unread_places",
    "untraced",
    "update_alone",
    "updating_optimizers",
    "without_sizes",
    "without_traces",
    "write_in_place",
]
