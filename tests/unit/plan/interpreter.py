"""The oracle of the simulator: executes a step under a choice, instruction by instruction.

First the step is written out as a programme, with what is given back in its place; then the
programme runs with a table of what is alive, and after each instruction everything is dropped that
nothing further down asks for. Nothing is precomputed and nothing is shared with the simulator but
the list of candidates and their options. See Note [Giving back] in `plan/_simulate.py`.
"""

from dataclasses import dataclass

from legroom import variants
from legroom.capture import Phase


@dataclass
class Instruction:
    """Something that runs: an operation in its place, one again, or a tensor that is fetched."""

    position: int
    reads: tuple
    makes: tuple
    workspace_bytes: int = 0
    time_ms: float = 0.0
    runs_again: int | None = None
    is_own: bool = False


@dataclass
class Told:
    """What the interpreter saw."""

    peak_bytes: int
    added_ms: float
    profile: list
    runs_again: list
    needed: set


class NoChoiceError(Exception):
    """Rule 5: the choice cannot be carried out."""


def interpret(problem, choice):
    """Execute the step; fails where something is read that is not alive.

    Raises:
        NoChoiceError: Something is made from what serves its readers only.
    """
    return _Interpreter(problem, choice).run()


class _Interpreter:
    def __init__(self, problem, choice):
        self.graph, self.problem = problem.graph, problem
        self.variant = dict(choice.variants)
        self.saving = {
            candidate.tensor: candidate.options[index].saving
            for candidate, index in zip(problem.candidates, choice.options, strict=True)
        }
        self.programme, self.back = [], set()
        self.alive, self.added_ms = {}, 0.0

    # -- writing the programme -------------------------------------------------------------------

    def write_programme(self):
        for op in self.graph.operations:
            reads = self.reads_of(op)
            if op.phase is Phase.BACKWARD:
                for tensor in reads:
                    self.make_sure_of(tensor, op.index)
            self.programme.append(
                Instruction(op.index, reads, op.writes, op.workspace_bytes, is_own=True)
            )

    def reads_of(self, op):
        names = self.problem.variant_names.get(op.index)
        name = names[self.variant.get(op.index, 0)] if names else ""
        return variants.variant(name).reads(op, self.graph) if name else op.reads

    def make_sure_of(self, tensor, position):
        """Rule 2: what is not there is given back, first what that takes."""
        if tensor not in self.saving or position <= self.first_end(tensor):
            return
        saving = self.saving[tensor]
        if saving.keeps_whole or tensor in self.back:
            return
        if not saving.runs_producer:
            self.programme.append(
                Instruction(position, (), (tensor,), saving.get_bytes, time_ms=saving.get_ms)
            )
            self.back.add(tensor)
            return
        producer = self.graph.operations[self.graph.tensors[tensor].producer]
        for need in producer.needs_to_remake:
            self.make_sure_of(need, position)
            is_late = need in self.saving and position > self.first_end(need)
            if is_late and self.saving[need].readers_only:
                raise NoChoiceError(f"{tensor} would be made from a stand-in for {need}")
        self.programme.append(
            Instruction(
                position,
                producer.needs_to_remake,
                producer.writes,
                producer.workspace_bytes,
                producer.time_ms,
                runs_again=producer.index,
            )
        )
        self.back.update(producer.writes)

    def first_end(self, index):
        """The last position of a candidate's first life."""
        tensor = self.graph.tensors[index]
        ends = [tensor.producer]
        for op in self.graph.operations:
            if op.phase is not Phase.BACKWARD and index in op.reads:
                ends.append(op.index)
        if not tensor.is_planned:
            ends.append(tensor.released_after)
        return max(ends)

    # -- running it ------------------------------------------------------------------------------

    def run(self):
        self.write_programme()
        for tensor in self.graph.tensors:
            if tensor.producer < 0:
                self.alive[tensor.index, "first"] = tensor.num_bytes
        profile = [0] * len(self.graph.operations)
        for number, instruction in enumerate(self.programme):
            for tensor in instruction.reads:
                assert self.is_there(tensor), f"{tensor} is read at {instruction} but is not there"
            during = sum(self.alive.values()) + instruction.workspace_bytes
            during += sum(self.graph.tensors[tensor].num_bytes for tensor in instruction.makes)
            profile[instruction.position] = max(profile[instruction.position], during)
            self.added_ms += instruction.time_ms
            if instruction.is_own:
                for tensor in instruction.makes:
                    self.alive[tensor, "first"] = self.graph.tensors[tensor].num_bytes
            else:
                self.keep_given_back(instruction, number)
            self.drop(instruction, number)
            for during in self.put_away_what_is_due(instruction, number):
                profile[instruction.position] = max(profile[instruction.position], during)
        reruns = [each.runs_again for each in self.programme if each.runs_again is not None]
        needed = {
            self.problem.candidate_of[tensor]
            for each in self.programme
            for tensor in each.reads
            if tensor in self.saving and self.is_late(each)
        }
        return Told(max(profile, default=0), self.added_ms, profile, reruns, needed)

    def is_there(self, tensor):
        return (tensor, "first") in self.alive or (tensor, "whole") in self.alive

    def is_late(self, instruction):
        phase = self.graph.operations[instruction.position].phase
        return not instruction.is_own or phase is Phase.BACKWARD

    def is_read_after(self, tensor, number):
        return any(tensor in each.reads for each in self.programme[number + 1 :])

    def keep_given_back(self, instruction, number):
        """Rules 3 and 4."""
        for tensor in instruction.makes:
            if tensor not in self.saving or self.saving[tensor].keeps_whole:
                continue
            if self.is_read_after(tensor, number):
                self.alive[tensor, "whole"] = self.graph.tensors[tensor].num_bytes
                self.alive.pop((tensor, "other form"), None)

    def drop(self, instruction, number):
        for index, form in list(self.alive):
            tensor = self.graph.tensors[index]
            if form == "whole":
                if not self.is_read_after(index, number):
                    del self.alive[index, form]
            elif form == "first" and instruction.is_own:
                if index in self.saving:
                    if instruction.position >= self.first_end(index):
                        del self.alive[index, form]
                        if (index, "whole") not in self.alive and self.is_read_after(index, number):
                            self.alive[index, "due"] = tensor.num_bytes
                elif self.is_over(tensor, instruction.position):
                    del self.alive[index, form]

    def put_away_what_is_due(self, instruction, number):
        """First lives are over: rules 1 and 4, or nothing stays at all; bytes meanwhile."""
        due = sorted(index for index, form in self.alive if form == "due")
        encoded = []
        for index in due:
            saving = self.saving[index]
            self.added_ms += saving.put_ms
            if saving.keeps_whole or saving.runs_producer:
                del self.alive[index, "due"]
                held = self.graph.tensors[index].num_bytes
                if not saving.keeps_whole:
                    held = saving.held_bytes
                if held:
                    form = "whole" if saving.keeps_whole else "other form"
                    self.alive[index, form] = held
            else:
                encoded.append(index)
        for index in encoded:
            saving = self.saving[index]
            yield sum(self.alive.values()) + saving.held_bytes + saving.put_bytes
            del self.alive[index, "due"]
            self.alive[index, "other form"] = saving.held_bytes

    def is_over(self, tensor, position):
        """Note [Graph], rule 3, for what there is no choice for."""
        if not tensor.is_planned:
            return tensor.released_after is not None and position >= tensor.released_after
        return not any(
            tensor.index in (*op.reads, *op.updates) for op in self.graph.operations[position + 1 :]
        )
