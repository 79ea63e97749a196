#include "runtime/device/CommandList.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include <algorithm>
#include <cstring>
#include <optional>

namespace recast {

namespace {

constexpr size_t kFaultBytes = 8;

/// Every launch of the plan that may fail has a place of its own.
size_t countFaults(const Plan &plan) {
  size_t count = plan.steps.size();
  for (const Step &step : plan.steps)
    for (const Plan &body : step.bodies) {
      int64_t turns = step.spec.op == "Scan" && !step.spec.inputs.empty() ? step.spec.inputs.back().dims[0] : 1;
      count += countFaults(body) * static_cast<size_t>(std::max<int64_t>(turns, 1));
    }
  return count;
}

/// A plan or a body in its memory.
struct Placed {
  const Plan &plan;
  std::byte *arena;
  std::vector<Access> buffers; ///< One a buffer.
};

class Lister {
public:
  explicit Lister(const DeviceMemory &memory) : memory(memory) {}
  Status run(const Plan &plan);
  CommandList list;

private:
  Placed place(const Plan &plan, std::byte *arena);
  /// Views follow what they are views of.
  static void bind(Placed &placed, int buffer, const Access &to);
  Status addSteps(Placed &placed);
  Status addStep(Placed &placed, const Step &step);
  Status addGenerated(Placed &placed, const Step &step);
  Status addFromTable(Placed &placed, const Step &step);
  Status addProduct(Placed &placed, const Step &step);
  Status addScan(Placed &placed, const Step &step);
  void addUpdates(Placed &placed);
  void addCopy(const std::string &step, Access from, Access to);
  void fillFaults();

  static std::string describe(const Step &step) { return "'" + step.spec.name + "' (" + step.spec.op + ")"; }
  static Access at(const Placed &placed, int buffer, bool isWritten) {
    Access access = buffer < 0 ? Access() : placed.buffers[static_cast<size_t>(buffer)];
    access.isRead = !isWritten;
    access.isWritten = isWritten;
    return access;
  }
  Access workspaceOf(const Placed &placed, const Step &step) {
    return {placed.arena + step.workspaceOffset, step.workspaceBytes, true, true, owners++};
  }
  const DeviceMemory &memory;
  int owners = 0;
};

Placed Lister::place(const Plan &plan, std::byte *arena) {
  Placed placed{plan, arena, std::vector<Access>(plan.buffers.size())};
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer &buffer = plan.buffers[i];
    Access &access = placed.buffers[i];
    access.bytes = buffer.type.present() ? buffer.type.bytes() : 0;
    access.owner = owners++;
    if (buffer.place == Place::Arena)
      access.data = arena + buffer.offset;
    else if (auto known = memory.fixed.find({&plan, static_cast<int>(i)}); known != memory.fixed.end())
      access.data = known->second;
  }
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].place == Place::View) {
      const Access &root = placed.buffers[plan.buffers[i].offset];
      placed.buffers[i].data = root.data;
      placed.buffers[i].owner = root.owner;
    }
  return placed;
}

void Lister::bind(Placed &placed, int buffer, const Access &to) {
  for (size_t i = 0; i < placed.buffers.size(); ++i)
    if (static_cast<int>(i) == buffer || (placed.plan.buffers[i].place == Place::View &&
                                          placed.plan.buffers[i].offset == static_cast<size_t>(buffer))) {
      placed.buffers[i].data = to.data;
      placed.buffers[i].owner = to.owner;
    }
}

Status Lister::run(const Plan &plan) {
  Placed placed = place(plan, memory.arena);
  fillFaults();
  if (Status status = addSteps(placed); !status.ok())
    return status;
  addUpdates(placed);
  list.commands.front().accesses[0].bytes = std::max<size_t>(list.faults.size(), 1) * kFaultBytes;
  list.buffers = std::move(placed.buffers);
  return Status::success();
}

/// ~0 everywhere: nothing is wrong yet.
void Lister::fillFaults() {
  Command fill{.kind = Command::Fill, .step = "the faults"};
  fill.accesses = {{memory.faults, kFaultBytes, false, true, owners++}};
  fill.byte = 0xff;
  list.commands.push_back(std::move(fill));
}

Status Lister::addSteps(Placed &placed) {
  for (const Step &step : placed.plan.steps)
    if (Status status = addStep(placed, step); !status.ok())
      return status;
  return Status::success();
}

Status Lister::addStep(Placed &placed, const Step &step) {
  if (!step.bodies.empty())
    return addScan(placed, step);
  if (step.library == "generated")
    return addGenerated(placed, step);
  if (step.library == "cublaslt")
    return addProduct(placed, step);
  return addFromTable(placed, step);
}

/// One launch a phase; its arguments are addresses alone.
Status Lister::addGenerated(Placed &placed, const Step &step) {
  std::vector<std::string> entries = step.spec.attrs.getStrings("entries");
  std::vector<int64_t> blocks = step.spec.attrs.getInts("blocks"), threads = step.spec.attrs.getInts("threads");
  // For each entry, how many operands it touches, and which.
  std::vector<int64_t> operands = step.spec.attrs.getInts("operands");
  size_t next = 0;
  if (entries.size() != blocks.size() || entries.size() != threads.size())
    return Status::error("the plan is damaged: " + describe(step) + " has no launches");
  Access workspace = workspaceOf(placed, step);
  for (size_t i = 0; i < entries.size(); ++i) {
    Command command{.kind = Command::Kernel, .step = describe(step)};
    command.kernel = entries[i];
    command.blocks = blocks[i];
    command.threads = static_cast<int>(threads[i]);
    std::span<const int64_t> touched;
    if (next < operands.size()) {
      auto count = static_cast<size_t>(operands[next]);
      if (count >= operands.size() - next)
        return Status::error("the plan is damaged: " + describe(step) + " has no operands");
      touched = std::span(operands).subspan(next + 1, count);
      next += 1 + count;
    }
    int64_t number = 0;
    auto add = [&](const Access &access, bool isWorkspace = false) {
      const std::byte *data = access.data;
      command.args.resize(command.args.size() + sizeof(data));
      std::memcpy(command.args.data() + command.args.size() - sizeof(data), &data, sizeof(data));
      if (access.bytes && (isWorkspace || std::ranges::find(touched, number) != touched.end()))
        command.accesses.push_back(access);
      ++number;
    };
    for (int buffer : step.inputs)
      add(at(placed, buffer, false));
    for (int buffer : step.outputs)
      add(at(placed, buffer, true));
    add(workspace, true);
    list.commands.push_back(std::move(command));
  }
  return Status::success();
}

Status Lister::addFromTable(Placed &placed, const Step &step) {
  cuda::Program program;
  std::string refusal;
  // Axes, shapes and the like are constants of the plan.
  StepSpec spec = step.spec;
  spec.constants.clear();
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    TensorRef constant{spec.inputs[i].dtype, spec.inputs[i].dims, nullptr};
    if (auto data = placed.plan.data.find(step.inputs[i]); data != placed.plan.data.end())
      if (placed.plan.buffers[static_cast<size_t>(step.inputs[i])].place == Place::Constant)
        constant.data = const_cast<void *>(data->second.bytes);
    spec.constants.push_back(constant);
  }
  if (!cuda::compile(spec, program, refusal))
    return Status::error("no CUDA kernel runs " + describe(step) + ": " + refusal);
  if (program.workspaceBytes > step.workspaceBytes)
    return Status::error("the plan has too little workspace for " + describe(step) + ": compile the model again");
  Access workspace = workspaceOf(placed, step);
  std::optional<size_t> ownFault;
  auto fault = [&] {
    if (!ownFault) {
      ownFault = list.faults.size() * kFaultBytes;
      list.faults.push_back({describe(step), *ownFault});
    }
    int owner = list.commands.front().accesses[0].owner;
    return Access{memory.faults + *ownFault, kFaultBytes, true, true, owner};
  };
  for (const cuda::Launch &launch : program.launches) {
    Command command{.kind = Command::Kernel, .step = describe(step)};
    command.kernel = launch.kernel;
    command.blocks = launch.blocks;
    command.threads = launch.threads;
    command.args = launch.args;
    for (const cuda::Pointer &pointer : launch.pointers) {
      Access access;
      switch (pointer.operand.kind) {
      case cuda::Operand::Input:
        access = at(placed, step.inputs[pointer.operand.index], false);
        break;
      case cuda::Operand::Output:
        access = at(placed, step.outputs[pointer.operand.index], true);
        break;
      case cuda::Operand::Workspace:
        access = workspace;
        break;
      case cuda::Operand::Fault:
        access = fault();
        break;
      }
      access.data += pointer.operand.offset;
      access.bytes = pointer.operand.bytes ? pointer.operand.bytes : access.bytes - pointer.operand.offset;
      auto use = static_cast<int>(pointer.use);
      access.isRead = use & static_cast<int>(cuda::Use::Read);
      access.isWritten = use & static_cast<int>(cuda::Use::Write);
      const std::byte *data = access.data;
      std::memcpy(command.args.data() + pointer.place, &data, sizeof(data));
      if (access.bytes)
        command.accesses.push_back(access);
    }
    list.commands.push_back(std::move(command));
  }
  return Status::success();
}

/// MatMul and Gemm without a third operand. A row-major product is the column-major one of its transposes, in the other
/// order.
Status Lister::addProduct(Placed &placed, const Step &step) {
  const StepSpec &spec = step.spec;
  const TensorType &a = spec.inputs[0], &b = spec.inputs[1], &c = spec.outputs[0];
  if (!c.elems())
    return Status::success();
  bool isGemm = spec.op == "Gemm";
  bool transA = isGemm && spec.attrs.getInt("transA", 0), transB = isGemm && spec.attrs.getInt("transB", 0);
  auto dim = [](const TensorType &type, int64_t fromEnd) {
    return type.rank() >= fromEnd ? type.dims[static_cast<size_t>(type.rank() - fromEnd)] : 1;
  };
  int64_t rows = a.rank() == 1 ? 1 : dim(a, transA ? 1 : 2), inner = dim(a, transA ? 2 : 1);
  int64_t columns = b.rank() == 1 ? 1 : dim(b, transB ? 2 : 1);
  MatMul product{.m = columns, .n = rows, .k = inner};
  product.type = a.dtype;
  product.transposeA = transB;
  product.transposeB = transA;
  product.leadingA = transB ? inner : columns;
  product.leadingB = transA ? rows : inner;
  product.leadingC = columns;
  product.alpha = isGemm ? spec.attrs.getFloat("alpha", 1) : 1;
  product.strideA = inner * columns;
  product.strideB = rows * inner;
  product.strideC = rows * columns;
  Access from[2] = {at(placed, step.inputs[0], false), at(placed, step.inputs[1], false)};
  Access to = at(placed, step.outputs[0], true), workspace = workspaceOf(placed, step);
  product.workspace = workspace.data;
  product.workspaceBytes = workspace.bytes;
  // Batches: of both operands, of one, or broadcast against each other, which takes several calls.
  auto batchDims = [](const TensorType &type) {
    return std::vector<int64_t>(type.dims.begin(), type.dims.end() - std::min<int64_t>(2, type.rank()));
  };
  std::vector<int64_t> outer = batchDims(c), outerA = batchDims(a), outerB = batchDims(b);
  if (a.rank() == 1 || b.rank() == 1) // A vector takes one dimension off the result.
    outer = a.rank() == 1 ? outerB : outerA;
  int64_t batches = elementCount(outer);
  std::vector<std::pair<int64_t, int64_t>> numbers; // Of the matrices of each batch.
  auto numberOf = [&](const std::vector<int64_t> &dims, int64_t batch) {
    int64_t number = 0, stride = 1;
    for (size_t d = 0; d < outer.size(); ++d) {
      int64_t size = outer[outer.size() - 1 - d], index = batch % size;
      batch /= size;
      if (d >= dims.size())
        continue;
      int64_t own = dims[dims.size() - 1 - d];
      number += own == 1 ? 0 : index * stride;
      stride *= own;
    }
    return number;
  };
  for (int64_t batch = 0; batch < batches; ++batch)
    numbers.push_back({numberOf(outerA, batch), numberOf(outerB, batch)});
  size_t elem = byteSize(a.dtype);
  for (size_t begin = 0; begin < numbers.size();) {
    // As many as go on in equal steps.
    size_t end = begin + 1;
    int64_t stepA = end < numbers.size() ? numbers[end].first - numbers[begin].first : 0;
    int64_t stepB = end < numbers.size() ? numbers[end].second - numbers[begin].second : 0;
    while (end < numbers.size() && stepA >= 0 && stepB >= 0 && numbers[end].first - numbers[end - 1].first == stepA &&
           numbers[end].second - numbers[end - 1].second == stepB)
      ++end;
    MatMul part = product;
    part.batches = static_cast<int64_t>(end - begin);
    part.strideA = stepB * inner * columns;
    part.strideB = stepA * rows * inner;
    Command command{.kind = Command::Product, .step = describe(step)};
    part.a = from[1].data + static_cast<size_t>(numbers[begin].second * inner * columns) * elem;
    part.b = from[0].data + static_cast<size_t>(numbers[begin].first * rows * inner) * elem;
    part.c = to.data + begin * static_cast<size_t>(rows * columns) * elem;
    // One right matrix for all: the rows of all batches are those of one product.
    if (part.batches > 1 && part.strideA == 0 && part.strideB == rows * inner && !transA) {
      part.n *= part.batches;
      part.batches = 1;
    }
    command.product = part;
    command.accesses = {from[1], from[0], to};
    if (workspace.bytes)
      command.accesses.push_back(workspace);
    list.commands.push_back(std::move(command));
    begin = end;
  }
  return Status::success();
}

void Lister::addCopy(const std::string &step, Access from, Access to) {
  if (from.data == to.data || !from.bytes)
    return;
  from.isRead = to.isWritten = true;
  from.isWritten = to.isRead = false;
  Command command{.kind = Command::Copy, .step = step};
  command.accesses = {from, to};
  list.commands.push_back(std::move(command));
}

/// Every turn's commands, one after the other: how many there are is known.
Status Lister::addScan(Placed &placed, const Step &step) {
  const StepSpec &spec = step.spec;
  if (spec.op != "Scan")
    return Status::error("CUDA runs no " + spec.op + " yet: " + describe(step) + " needs --device=cpu");
  const Plan &plan = step.bodies.front();
  auto slices = static_cast<size_t>(spec.attrs.getInt("num_scan_inputs", 0));
  size_t numStates = spec.inputs.size() - slices;
  int64_t length = spec.inputs[numStates].dims[0];
  Placed body = place(plan, placed.arena + step.workspaceOffset);
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].place == Place::Outer)
      bind(body, static_cast<int>(i), at(placed, step.inputs[plan.buffers[i].offset], false));
  auto isReversed = [&](std::string_view name, size_t i) {
    std::span<const int64_t> directions = spec.attrs.intsView(name);
    return i < directions.size() && directions[i] == 1;
  };
  auto slice = [&](Access whole, size_t bytes, int64_t index) {
    whole.data += static_cast<size_t>(index) * bytes;
    whole.bytes = bytes;
    return whole;
  };
  for (size_t i = 0; i < numStates; ++i) {
    Access state = at(placed, step.outputs[i], true);
    addCopy(describe(step), at(placed, step.inputs[i], false), state);
    if (plan.inputs[i] >= 0)
      bind(body, plan.inputs[i], state);
  }
  for (int64_t turn = 0; turn < length; ++turn) {
    for (size_t i = 0; i < slices; ++i) {
      Access whole = at(placed, step.inputs[numStates + i], false);
      int64_t index = isReversed("scan_input_directions", i) ? length - 1 - turn : turn;
      if (plan.inputs[numStates + i] >= 0)
        bind(body, plan.inputs[numStates + i], slice(whole, whole.bytes / static_cast<size_t>(length), index));
    }
    if (Status status = addSteps(body); !status.ok())
      return status;
    for (size_t i = numStates; i < step.outputs.size(); ++i) {
      Access whole = at(placed, step.outputs[i], true), part = at(body, plan.outputs[i].buffer, false);
      int64_t index = isReversed("scan_output_directions", i - numStates) ? length - 1 - turn : turn;
      if (whole.data)
        addCopy(describe(step), part, slice(whole, part.bytes, index));
    }
    for (size_t i = 0; i < numStates; ++i)
      addCopy(describe(step), at(body, plan.outputs[i].buffer, false), at(placed, step.outputs[i], true));
  }
  return Status::success();
}

/// New state that lies elsewhere. A state that becomes another state is a copy already (copyStateOutputs).
void Lister::addUpdates(Placed &placed) {
  for (const Output &output : placed.plan.outputs)
    if (output.updates >= 0 && placed.plan.rootOf(output.buffer) != output.updates)
      addCopy("the new value of '" + placed.plan.buffers[static_cast<size_t>(output.updates)].name + "'",
              at(placed, output.buffer, false), at(placed, output.updates, true));
}

} // namespace

size_t faultBytes(const Plan &plan) { return std::max<size_t>(countFaults(plan), 1) * kFaultBytes; }

Result<CommandList> listCommands(const Plan &plan, const DeviceMemory &memory) {
  Lister lister(memory);
  if (Status status = lister.run(plan); !status.ok())
    return status;
  return std::move(lister.list);
}

} // namespace recast
