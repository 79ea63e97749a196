#include "runtime/plan/CheckPlan.h"
#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <set>

namespace recast {

namespace {

/// 2^48 bytes: what a process can address.
constexpr int64_t kMostBytes = int64_t(1) << 48;

class Checker {
public:
  /// `around` is the step whose body the plan is.
  Checker(const Plan &plan, const Step *around) : plan(plan), around(around) {}
  Status check();

private:
  bool isBuffer(int index) const { return index >= 0 && static_cast<size_t>(index) < plan.buffers.size(); }
  bool fitsArena(size_t offset, size_t bytes) const {
    return offset <= plan.arenaBytes && bytes <= plan.arenaBytes - offset;
  }
  bool fitsHost(size_t offset, size_t bytes) const {
    return offset <= plan.hostBytes && bytes <= plan.hostBytes - offset;
  }
  bool isOnHost(int index) const { return index >= 0 && plan.buffers[static_cast<size_t>(index)].place == Place::Host; }
  bool isBufferOrAbsent(int index) const { return index == -1 || isBuffer(index); }
  Status checkBuffer(size_t index) const;
  Status checkStep(const Step &step) const;
  Status checkOperands(const Step &step, const std::vector<int> &buffers, const std::vector<TensorType> &types) const;
  Status checkBodies(const Step &step) const;
  Status checkEnds() const;

  const Plan &plan;
  const Step *around;
};

Status Checker::check() {
  if (plan.arenaBytes > static_cast<size_t>(kMostBytes) || (around && plan.arenaBytes > around->workspaceBytes))
    return Status::error("its arena is larger than there can be");
  if (plan.hostBytes > static_cast<size_t>(kMostBytes) || (around && plan.hostBytes > around->hostBytes))
    return Status::error("its memory on the host is larger than there can be");
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (Status status = checkBuffer(i); !status.ok())
      return status;
  for (const auto &[buffer, data] : plan.data)
    if (!isBuffer(buffer) || !data.bytes)
      return Status::error("there is data for a buffer that it has not");
  for (const Step &step : plan.steps)
    if (Status status = checkStep(step); !status.ok())
      return status;
  return checkEnds();
}

Status Checker::checkBuffer(size_t index) const {
  const Buffer &buffer = plan.buffers[index];
  if (Status status = checkType(buffer); !status.ok())
    return status;
  std::string name = "the buffer '" + buffer.name + "'";
  if (buffer.place > Place::Host)
    return Status::error(name + " is in an unknown place");
  if (buffer.place != Place::Absent && !buffer.type.present())
    return Status::error(name + " has no type");
  if (buffer.place == Place::Arena && !fitsArena(buffer.offset, buffer.type.bytes()))
    return Status::error(name + " ends beyond the arena");
  if (buffer.place == Place::Host && !fitsHost(buffer.offset, buffer.type.bytes()))
    return Status::error(name + " ends beyond the memory on the host");
  if (buffer.place == Place::State && around)
    return Status::error(name + " is state within a body");
  if (buffer.place == Place::View &&
      (buffer.offset >= plan.buffers.size() || plan.buffers[buffer.offset].place == Place::View ||
       plan.buffers[buffer.offset].place == Place::Host || checkType(plan.buffers[buffer.offset]).ok() == false ||
       plan.buffers[buffer.offset].type.bytes() != buffer.type.bytes()))
    return Status::error(name + " is no view of its buffer");
  if (buffer.place == Place::Outer && (!around || buffer.offset >= around->inputs.size()))
    return Status::error(name + " is none of the plan around it");
  return Status::success();
}

Status Checker::checkOperands(const Step &step, const std::vector<int> &buffers,
                              const std::vector<TensorType> &types) const {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!isBufferOrAbsent(buffers[i]))
      return Status::error("step '" + step.spec.name + "' has an operand that is no buffer");
    const TensorType &type = buffers[i] < 0 ? TensorType() : plan.buffers[static_cast<size_t>(buffers[i])].type;
    if (i < types.size() && type != types[i])
      return Status::error("step '" + step.spec.name + "' expects " + toString(types[i]) + " where there is " +
                           toString(type));
  }
  return Status::success();
}

Status Checker::checkStep(const Step &step) const {
  // Values that bodies capture follow the node's own operands.
  bool matches = step.bodies.empty() ? step.inputs.size() == step.spec.inputs.size()
                                     : step.inputs.size() >= step.spec.inputs.size();
  if (!matches || step.outputs.size() != step.spec.outputs.size())
    return Status::error("step '" + step.spec.name + "' has another number of operands than its node");
  if (Status status = checkOperands(step, step.inputs, step.spec.inputs); !status.ok())
    return status;
  if (Status status = checkOperands(step, step.outputs, step.spec.outputs); !status.ok())
    return status;
  if (!fitsArena(step.workspaceOffset, step.workspaceBytes))
    return Status::error("the workspace of step '" + step.spec.name + "' ends beyond the arena");
  if (!fitsHost(step.hostOffset, step.hostBytes))
    return Status::error("what step '" + step.spec.name + "' has on the host ends beyond the memory there");
  for (bool isRead : {true, false})
    for (int operand : isRead ? step.inputs : step.outputs)
      if (isOnHost(operand) && !(isTransfer(step.spec) && step.spec.op == (isRead ? "fetch" : "offload")))
        return Status::error("step '" + step.spec.name + "' computes on the host's memory");
  for (InPlace pair : step.inPlace)
    if (pair.output >= step.outputs.size() || pair.input >= step.inputs.size())
      return Status::error("step '" + step.spec.name + "' works in the place of an operand that it has not");
  return checkBodies(step);
}

/// Operands, results and bodies of control flow agree in number, as ONNX asks.
Status Checker::checkBodies(const Step &step) const {
  if (step.bodies.empty())
    return Status::success();
  const StepSpec &spec = step.spec;
  size_t inputs = spec.inputs.size(), bodies = 1, bodyInputs = inputs, bodyOutputs = spec.outputs.size();
  bool fits = true;
  if (spec.op == "If") {
    bodies = 2, bodyInputs = 0;
    fits = inputs == 1 && spec.inputs[0].dtype == DType::Bool && spec.inputs[0].elems() == 1;
  } else if (spec.op == "Loop") {
    bodyOutputs += 1; // The condition.
    fits = inputs >= 2 && inputs - 2 <= spec.outputs.size();
  } else if (spec.op == "Scan") {
    int64_t slices = spec.attrs.getInt("num_scan_inputs", 0);
    fits = slices >= 1 && static_cast<uint64_t>(slices) <= inputs;
    fits = fits && inputs - static_cast<size_t>(slices) <= spec.outputs.size();
    for (size_t i = inputs - (fits ? static_cast<size_t>(slices) : 0); i < inputs; ++i)
      fits &= !spec.inputs[i].dims.empty() && spec.inputs[i].dims[0] == spec.inputs[inputs - 1].dims[0];
  } else {
    fits = false;
  }
  fits = fits && step.bodies.size() == bodies;
  for (const Plan &body : step.bodies)
    fits = fits && body.inputs.size() == bodyInputs && body.outputs.size() == bodyOutputs;
  if (!fits)
    return Status::error("the bodies of step '" + spec.name + "' are none of " + spec.op);
  for (const Plan &body : step.bodies)
    if (Status status = Checker(body, &step).check(); !status.ok())
      return status;
  return Status::success();
}

Status Checker::checkEnds() const {
  for (int input : plan.inputs)
    if (!(around ? isBufferOrAbsent(input) : isBuffer(input)))
      return Status::error("one of its inputs is no buffer");
  for (const Output &output : plan.outputs) {
    if (!isBuffer(output.buffer) || !isBufferOrAbsent(output.updates))
      return Status::error("the output '" + output.name + "' is no buffer");
    if (isOnHost(output.buffer))
      return Status::error("the output '" + output.name + "' is in the host's memory");
    if (output.updates >= 0 && plan.buffers[static_cast<size_t>(output.updates)].place != Place::State)
      return Status::error("the output '" + output.name + "' updates what is no state");
  }
  return Status::success();
}

} // namespace

Status checkType(const Buffer &buffer) {
  const TensorType &type = buffer.type;
  bool fits = !type.present() || byteSize(type.dtype) != 0;
  int64_t bytes = std::max<int64_t>(static_cast<int64_t>(byteSize(type.dtype)), 1);
  for (int64_t dim : type.dims) // An empty tensor has sizes that can be multiplied, too.
    fits = fits && dim >= 0 && !__builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes) && bytes <= kMostBytes;
  return fits ? Status::success() : Status::error("the buffer '" + buffer.name + "' has no possible type");
}

Status checkPlan(const Plan &plan) { return Checker(plan, nullptr).check(); }

Status checkTarget(std::string_view target) {
  bool isKnown = target == "x86-64-v3" || target == "x86-64-v4", fits = false;
#if defined(__x86_64__)
  __builtin_cpu_init();
  fits = target == "x86-64-v4" ? __builtin_cpu_supports("x86-64-v4") != 0
                               : target == "x86-64-v3" && __builtin_cpu_supports("x86-64-v3") != 0;
#endif
  if (fits)
    return Status::success();
  return Status::error("its code is for " + std::string(isKnown ? "processors of the level " : "") + "'" +
                       std::string(target) + "', which this machine is not: compile the model here");
}

} // namespace recast
