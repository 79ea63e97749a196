#include "runtime/device/DeviceExecutor.h"
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/table/Collective.h"
#include "runtime/kernels/cuda/table/Convolution.h"
#include <algorithm>
#include <cstring>

namespace recast::device {
namespace {

std::string describe(const StepSpec &spec) { return "node '" + spec.name + "' (" + spec.op + ")"; }

/// Steps that report faults, those of bodies once.
size_t countSteps(const Plan &plan) {
  size_t count = plan.steps.size();
  for (const Step &step : plan.steps)
    for (const Plan &body : step.bodies)
      count += countSteps(body);
  return count;
}

} // namespace

Result<std::unique_ptr<DeviceExecutor>> DeviceExecutor::create(const Plan &plan, Device &device,
                                                               const DeviceOptions &options) {
  std::unique_ptr<DeviceExecutor> executor(new DeviceExecutor(plan, device, options));
  if (Status status = executor->prepare(); !status.ok())
    return status;
  return std::move(executor);
}

Status DeviceExecutor::prepare() {
  if (source.device != "cuda")
    return Status::error("the plan is compiled for " + source.device + ", and not for CUDA");
  if (Status status = device.load(source.code); !status.ok())
    return status;
  if (options.ranks)
    if (Status status = device.join(*options.ranks); !status.ok())
      return status;
  Result<std::byte *> arena = device.allocate(source.arenaBytes, "the arena");
  if (!arena)
    return arena.status();
  std::byte *host = nullptr;
  if (source.hostBytes) {
    Result<std::byte *> memory = device.allocateHost(source.hostBytes, "what is offloaded");
    if (!memory)
      return memory.status();
    host = *memory;
  }
  Result<std::byte *> words = device.allocate(countSteps(source) * sizeof(uint64_t), "what kernels report");
  if (!words)
    return words.status();
  faults = *words;
  top.resize(source.buffers.size());
  if (Status status = placeInputs(); !status.ok())
    return status;
  if (Status status = uploadConstants(source); !status.ok())
    return status;
  Scope scope{source, *arena, host, top};
  if (Status status = locate(scope); !status.ok())
    return status;
  top = scope.at;
  size_t faultBytes = countSteps(source) * sizeof(uint64_t);
  work.push_back({"the beginning of the step",
                  std::string(kFill),
                  1,
                  1,
                  bytesOf(FillBytesArgs{faults, static_cast<int64_t>(faultBytes), 0xff}),
                  {{"what kernels report", faults, faultBytes, false, true, faults}}});
  if (Status status = flatten(scope); !status.ok())
    return status;
  top = scope.at;
  if (Status status = addUpdates(); !status.ok())
    return status;
  for (const Output &output : source.outputs)
    names[output.name] = output.buffer;
  for (size_t i = 0; i < source.buffers.size(); ++i)
    if (source.buffers[i].place == Place::Input || source.buffers[i].place == Place::State)
      names[source.buffers[i].name] = static_cast<int>(i);
  scheduled = schedule(std::move(work), options.streams);
  if (Status status = placeBatches(); !status.ok())
    return status;
  return device.synchronise();
}

Status DeviceExecutor::placeInputs() {
  for (size_t i = 0; i < source.buffers.size(); ++i) {
    const Buffer &buffer = source.buffers[i];
    if (buffer.place != Place::Input && buffer.place != Place::State)
      continue;
    auto data = source.data.find(static_cast<int>(i));
    if (buffer.place == Place::State && data == source.data.end())
      return Status::error("state input '" + buffer.name + "' has no initial value: give it an initializer");
    Result<std::byte *> memory = device.allocate(buffer.type.bytes(), "'" + buffer.name + "'");
    if (!memory)
      return memory.status();
    top[i] = {*memory, &buffer};
    std::vector<std::byte> zero(data == source.data.end() ? buffer.type.bytes() : 0);
    const void *initial = data == source.data.end() ? zero.data() : data->second.bytes;
    if (Status status = write(static_cast<int>(i), initial); !status.ok())
      return status;
    if (Status status = device.synchronise(); !status.ok()) // `zero` ends here.
      return status;
  }
  return Status::success();
}

Status DeviceExecutor::uploadConstants(const Plan &plan) {
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer &buffer = plan.buffers[i];
    if (buffer.place != Place::Constant)
      continue;
    auto data = plan.data.find(static_cast<int>(i));
    if (data == plan.data.end())
      return Status::error("the plan is damaged: constant '" + buffer.name + "' has no data");
    Result<std::byte *> memory = device.allocate(buffer.type.bytes(), "'" + buffer.name + "'");
    if (!memory)
      return memory.status();
    constants[{&plan, static_cast<int>(i)}] = {*memory, &buffer};
    MemoryUse to{"'" + buffer.name + "'", *memory, buffer.type.bytes(), false, true, &buffer};
    if (Status status = device.copyIn(to, data->second.bytes, 0); !status.ok())
      return status;
  }
  for (const Step &step : plan.steps)
    for (const Plan &body : step.bodies)
      if (Status status = uploadConstants(body); !status.ok())
        return status;
  return Status::success();
}

/// Places in the arena, constants and views; inputs, state and what lies outside of a body are there already.
Status DeviceExecutor::locate(Scope &scope) const {
  const std::vector<Buffer> &buffers = scope.plan.buffers;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].place == Place::Arena) {
      if (buffers[i].offset > scope.plan.arenaBytes ||
          buffers[i].type.bytes() > scope.plan.arenaBytes - buffers[i].offset)
        return Status::error("the plan is damaged: buffer '" + buffers[i].name + "' ends beyond the arena");
      scope.at[i] = {scope.arena + buffers[i].offset, &buffers[i]};
    } else if (buffers[i].place == Place::Host) {
      if (buffers[i].offset > scope.plan.hostBytes ||
          buffers[i].type.bytes() > scope.plan.hostBytes - buffers[i].offset)
        return Status::error("the plan is damaged: buffer '" + buffers[i].name +
                             "' ends beyond the memory on the host");
      scope.at[i] = {scope.host + buffers[i].offset, &buffers[i]};
    } else if (buffers[i].place == Place::Constant) {
      scope.at[i] = constants.at({&scope.plan, static_cast<int>(i)});
    }
  }
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].place == Place::View)
      scope.at[i] = scope.at[buffers[i].offset];
  return Status::success();
}

MemoryUse DeviceExecutor::use(const Scope &scope, int buffer, bool isRead, bool isWritten) const {
  auto index = static_cast<size_t>(buffer);
  const Location &at = scope.at[index];
  const Buffer &b = scope.plan.buffers[index];
  return {"'" + b.name + "'", at.data, b.type.bytes(), isRead, isWritten, at.value};
}

Status DeviceExecutor::flatten(Scope &scope) {
  for (const Step &step : scope.plan.steps) {
    if (isTransfer(step.spec)) {
      addTransfer(step, scope);
      continue;
    }
    Status status = !step.bodies.empty()                             ? addScan(step, scope)
                    : step.library == "generated"                    ? addGenerated(step, scope)
                    : options.ranks && cuda::isCollective(step.spec) ? addCollective(step, scope)
                                                                     : addStep(step, scope);
    if (!status.ok())
      return status;
  }
  return Status::success();
}

Status DeviceExecutor::addStep(const Step &step, Scope &scope) {
  cuda::Program program;
  std::string refusal;
  if (!cuda::compile(step.spec, program, refusal))
    return Status::error("no CUDA kernel runs " + describe(step.spec) + ": " + refusal);
  if (cuda::libraryOf(program) != step.library)
    return Status::error("the plan has " + step.library + " for " + describe(step.spec) +
                         ", but this program would take " + std::string(cuda::libraryOf(program)) +
                         ": compile the model with it");
  if (program.workspaceBytes > step.workspaceBytes)
    return Status::error("the plan has too little workspace for " + describe(step.spec) +
                         ": compile the model with the same kernels");
  if (program.mayFail)
    faultSteps.push_back(describe(step.spec));
  MemoryUse workspace{"its workspace", scope.arena + step.workspaceOffset, step.workspaceBytes, false, false, &step};
  if (!program.plain.empty())
    chooseLibrary(step, scope, program, workspace);
  addLaunches(step, scope, program, workspace);
  return Status::success();
}

void DeviceExecutor::chooseLibrary(const Step &step, const Scope &scope, cuda::Program &program,
                                   const MemoryUse &workspace) {
  for (const cuda::Launch &launch : program.launches) {
    if (launch.kernel != cuda::kConvolution)
      continue;
    Result<std::string> choice = device.prepare(bind(step, scope, launch, workspace));
    if (options.onChoice)
      options.onChoice(describe(step.spec), choice);
    if (!choice) {
      program.launches = std::move(program.plain);
      return;
    }
  }
}

Work DeviceExecutor::bind(const Step &step, const Scope &scope, const cuda::Launch &launch,
                          const MemoryUse &workspace) const {
  Work item{describe(step.spec), launch.kernel, launch.blocks, launch.threads, launch.args, {}};
  item.source = &step;
  for (const cuda::Pointer &pointer : launch.pointers) {
    const cuda::Operand &operand = pointer.operand;
    bool isRead = (static_cast<int>(pointer.use) & static_cast<int>(cuda::Use::Read)) != 0;
    bool isWritten = (static_cast<int>(pointer.use) & static_cast<int>(cuda::Use::Write)) != 0;
    MemoryUse place;
    if (operand.kind == cuda::Operand::Workspace) {
      place = {workspace.name, workspace.data, workspace.bytes, isRead, isWritten, workspace.value};
    } else if (operand.kind == cuda::Operand::Fault) {
      std::byte *word = faults + (faultSteps.size() - 1) * sizeof(uint64_t);
      place = {"what it reports", word, sizeof(uint64_t), isRead, isWritten, faults};
    } else {
      place = use(scope, (operand.kind == cuda::Operand::Input ? step.inputs : step.outputs)[operand.index], isRead,
                  isWritten);
    }
    place.data += operand.offset;
    place.bytes = operand.bytes ? operand.bytes : place.bytes - operand.offset;
    std::memcpy(item.args.data() + pointer.place, &place.data, sizeof(place.data));
    item.uses.push_back(std::move(place));
  }
  return item;
}

void DeviceExecutor::addLaunches(const Step &step, Scope &scope, const cuda::Program &program,
                                 const MemoryUse &workspace) {
  for (const cuda::Launch &launch : program.launches) {
    Work item = bind(step, scope, launch, workspace);
    bool isCopyInPlace = item.kernel == "copy_bytes" && item.uses[0].data == item.uses[1].data;
    if (!isCopyInPlace)
      work.push_back(std::move(item));
    else // The output is the input's memory, and holds its value.
      for (size_t k = 0; k < step.outputs.size(); ++k)
        if (step.outputs[k] >= 0 && scope.at[static_cast<size_t>(step.outputs[k])].data == item.uses[1].data)
          scope.at[static_cast<size_t>(step.outputs[k])].value = item.uses[0].value;
  }
}

/// One launch a phase of the region; its arguments are addresses: of inputs, outputs and workspace.
Status DeviceExecutor::addGenerated(const Step &step, Scope &scope) {
  std::vector<std::string> entries = step.spec.attrs.getStrings("entries");
  std::vector<int64_t> blocks = step.spec.attrs.getInts("blocks"), threads = step.spec.attrs.getInts("threads");
  // For each entry, how many operands it touches, and which.
  std::vector<int64_t> operands = step.spec.attrs.getInts("operands");
  size_t next = 0;
  if (entries.empty())
    return Status::error("the plan is damaged: " + describe(step.spec) + " has no launches");
  for (size_t i = 0; i < entries.size(); ++i) {
    size_t count = next < operands.size() ? static_cast<size_t>(operands[next]) : operands.size();
    if (i >= blocks.size() || i >= threads.size() || count >= operands.size() - next)
      return Status::error("the plan is damaged: " + describe(step.spec) + " has no launches");
    std::span<const int64_t> touched = std::span(operands).subspan(next + 1, count);
    next += 1 + count;
    Work item{describe(step.spec), entries[i], blocks[i], static_cast<int>(threads[i]), {}, {}};
    item.source = &step;
    int64_t number = 0;
    auto add = [&](MemoryUse place, bool isUsed) {
      item.args.resize(item.args.size() + sizeof(place.data));
      std::memcpy(item.args.data() + item.args.size() - sizeof(place.data), &place.data, sizeof(place.data));
      if (isUsed && place.bytes)
        item.uses.push_back(std::move(place));
    };
    for (bool isInput : {true, false})
      for (int buffer : isInput ? step.inputs : step.outputs) {
        bool isUsed = std::ranges::find(touched, number++) != touched.end();
        add(buffer < 0 ? MemoryUse() : use(scope, buffer, isInput, !isInput), isUsed);
      }
    add({"its workspace", scope.arena + step.workspaceOffset, step.workspaceBytes, false, true, &step, true}, true);
    work.push_back(std::move(item));
  }
  return Status::success();
}

Work DeviceExecutor::copyWork(const std::string &step, const std::string &name, Location from, Location to,
                              size_t bytes) {
  return {step,
          std::string(kCopy),
          1,
          1,
          bytesOf(cuda::CopyArgs{from.data, to.data, static_cast<int64_t>(bytes)}),
          {{name, from.data, bytes, true, false, from.value}, {name, to.data, bytes, false, true, to.value}}};
}

void DeviceExecutor::addCopy(const std::string &step, const std::string &name, Location from, Location to,
                             size_t bytes) {
  if (from.data != to.data && bytes != 0)
    work.push_back(copyWork(step, name, from, to, bytes));
}

/// Where the result of offload lies in the arena, as a plan may have it, both are copies on the device.
void DeviceExecutor::addTransfer(const Step &step, Scope &scope) {
  MemoryUse from = use(scope, step.inputs[0], true, false), to = use(scope, step.outputs[0], false, true);
  if (from.bytes == 0)
    return;
  Work item{describe(step.spec),
            std::string(kCopy),
            1,
            1,
            bytesOf(cuda::CopyArgs{from.data, to.data, static_cast<int64_t>(from.bytes)}),
            {from, to}};
  auto isOnHost = [&](int buffer) { return scope.plan.buffers[static_cast<size_t>(buffer)].place == Place::Host; };
  item.isTransfer = isOnHost(step.inputs[0]) || isOnHost(step.outputs[0]);
  work.push_back(std::move(item));
}

/// Every iteration is work of its own: the number is known. As the CPU's Scan, states live in the step's outputs.
Status DeviceExecutor::addScan(const Step &step, Scope &scope) {
  if (step.spec.op != "Scan")
    return Status::error(describe(step.spec) + ": control flow that depends on data does not run on a device");
  const Plan &body = step.bodies.front();
  size_t slices = static_cast<size_t>(step.spec.attrs.getInt("num_scan_inputs", 0));
  size_t numStates = step.spec.inputs.size() - slices;
  int64_t length = step.spec.inputs[numStates].dims[0];
  auto isReversed = [&](std::string_view attribute, size_t i) {
    std::span<const int64_t> directions = step.spec.attrs.intsView(attribute);
    return i < directions.size() && directions[i] == 1;
  };
  auto location = [&](int buffer) -> Location & { return scope.at[static_cast<size_t>(buffer)]; };
  auto bytesOf = [&](int buffer) { return scope.plan.buffers[static_cast<size_t>(buffer)].type.bytes(); };
  for (size_t i = 0; i < numStates; ++i) {
    Location &to = location(step.outputs[i]);
    const Location &from = location(step.inputs[i]);
    if (from.data == to.data)
      to.value = from.value;
    addCopy(describe(step.spec), "'" + scope.plan.buffers[static_cast<size_t>(step.outputs[i])].name + "'", from, to,
            bytesOf(step.outputs[i]));
  }
  size_t firstFault = faultSteps.size();
  for (int64_t iteration = 0; iteration < length; ++iteration) {
    faultSteps.resize(firstFault); // Iterations report into the same words.
    Scope inner{body, scope.arena + step.workspaceOffset, scope.host + step.hostOffset,
                std::vector<Location>(body.buffers.size())};
    for (size_t i = 0; i < body.buffers.size(); ++i)
      if (body.buffers[i].place == Place::Outer)
        inner.at[i] = location(step.inputs[body.buffers[i].offset]);
    auto slice = [&](int buffer, bool reversed) {
      Location whole = location(buffer);
      size_t bytes = bytesOf(buffer) / static_cast<size_t>(length);
      whole.data += static_cast<size_t>(reversed ? length - 1 - iteration : iteration) * bytes;
      return whole;
    };
    for (size_t i = 0; i < body.inputs.size(); ++i)
      if (body.inputs[i] >= 0)
        inner.at[static_cast<size_t>(body.inputs[i])] =
            i < numStates ? location(step.outputs[i])
                          : slice(step.inputs[i], isReversed("scan_input_directions", i - numStates));
    if (Status status = locate(inner); !status.ok())
      return status;
    if (Status status = flatten(inner); !status.ok())
      return status;
    auto copyOut = [&](size_t i, Location to) {
      int from = body.outputs[i].buffer;
      addCopy(describe(step.spec), "'" + body.outputs[i].name + "'", inner.at[static_cast<size_t>(from)], to,
              body.buffers[static_cast<size_t>(from)].type.bytes());
    };
    for (size_t i = numStates; i < step.outputs.size(); ++i)
      if (step.outputs[i] >= 0)
        copyOut(i, slice(step.outputs[i], isReversed("scan_output_directions", i - numStates)));
    for (size_t i = 0; i < numStates; ++i)
      copyOut(i, location(step.outputs[i]));
  }
  return Status::success();
}

/// New state that lies elsewhere is copied at the end. States that update each other are all read before one is
/// written.
Status DeviceExecutor::addUpdates() {
  struct Update {
    std::string name;
    Location from, to;
    size_t bytes;
  };
  std::vector<Update> last;
  for (const Output &output : source.outputs) {
    if (output.updates < 0 || source.rootOf(output.buffer) == output.updates)
      continue;
    const Buffer &from = source.buffers[static_cast<size_t>(output.buffer)];
    Update update{"'" + output.name + "'", top[static_cast<size_t>(output.buffer)],
                  top[static_cast<size_t>(output.updates)], from.type.bytes()};
    if (source.buffers[static_cast<size_t>(source.rootOf(output.buffer))].place == Place::State) {
      Result<std::byte *> memory = device.allocate(update.bytes, "the new value of " + update.name);
      if (!memory)
        return memory.status();
      Location staging{*memory, &output};
      addCopy("the end of the step", update.name, update.from, staging, update.bytes);
      update.from = staging;
    }
    last.push_back(std::move(update));
  }
  for (const Update &update : last)
    addCopy("the end of the step", update.name, update.from, update.to, update.bytes);
  return Status::success();
}

} // namespace recast::device
