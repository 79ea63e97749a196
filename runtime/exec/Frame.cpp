#include "runtime/exec/Frame.h"
#include "runtime/exec/AlignedBuffer.h"
#include "runtime/exec/ControlFlow.h"
#include "runtime/kernels/Parallel.h"
#include <algorithm>

namespace recast {

void FrameContext::touch(const std::byte *begin, size_t bytes) {
  size_t end = static_cast<size_t>(begin - arena) + bytes;
  highWater = std::max(highWater, alignedBytes(end));
}

void FrameContext::touchHost(const std::byte *begin, size_t bytes) {
  size_t end = static_cast<size_t>(begin - host) + bytes;
  hostHighWater = std::max(hostHighWater, alignedBytes(end));
}

Result<std::unique_ptr<Frame>> Frame::create(const Plan &plan, std::byte *arena, std::byte *host,
                                             FrameContext &context) {
  std::unique_ptr<Frame> frame(new Frame(plan, context));
  if (Status status = frame->placeBuffers(arena, host); !status.ok())
    return status;
  if (Status status = frame->prepareSteps(arena, host); !status.ok())
    return status;
  return std::move(frame);
}

void Frame::bind(int buffer, void *data) {
  auto index = static_cast<size_t>(buffer);
  tensors[index].data = data;
  for (size_t operand : readers[index])
    operands[operand].data = data;
  for (int view : views[index])
    bind(view, data);
}

Status Frame::run() {
  const auto &observer = *context.observer;
  for (size_t i = 0; i < steps.size(); ++i) {
    Prepared &step = steps[i];
    if (observer)
      observer({source, i, true, step.args.inputs, step.args.outputs});
    Status status = step.kernel->run(step.args);
    if (observer)
      observer({source, i, false, step.args.inputs, step.args.outputs});
    if (!status.ok())
      return status;
    for (auto [reduction, bucket] : step.begins)
      steps[reduction].reduction->begin(bucket, steps[reduction].args);
  }
  return Status::success();
}

Status Frame::placeBuffers(std::byte *arena, std::byte *host) {
  readers.resize(source.buffers.size());
  views.resize(source.buffers.size());
  for (size_t i = 0; i < source.buffers.size(); ++i) {
    const Buffer &buffer = source.buffers[i];
    TensorRef &tensor = tensors.emplace_back(buffer.type.dtype, buffer.type.dims);
    size_t bytes = tensor.bytes();
    if (buffer.place == Place::Absent) {
      tensor = TensorRef();
    } else if (buffer.place == Place::Arena) {
      if (buffer.offset > source.arenaBytes || bytes > source.arenaBytes - buffer.offset)
        return Status::error("the plan is damaged: buffer '" + buffer.name + "' ends beyond the arena");
      tensor.data = arena + buffer.offset;
      context.touch(arena + buffer.offset, bytes);
    } else if (buffer.place == Place::Host) {
      if (buffer.offset > source.hostBytes || bytes > source.hostBytes - buffer.offset)
        return Status::error("the plan is damaged: buffer '" + buffer.name + "' ends beyond the memory on the host");
      tensor.data = host + buffer.offset;
      context.touchHost(host + buffer.offset, bytes);
    } else if (buffer.place == Place::Constant) {
      auto data = source.data.find(static_cast<int>(i));
      if (data == source.data.end())
        return Status::error("the plan is damaged: constant '" + buffer.name + "' has no data");
      tensor.data = const_cast<void *>(data->second.bytes);
    }
  }
  for (size_t i = 0; i < source.buffers.size(); ++i)
    if (source.buffers[i].place == Place::View)
      if (Status status = placeView(i); !status.ok())
        return status;
  return Status::success();
}

Status Frame::placeView(size_t index) {
  const Buffer &view = source.buffers[index];
  if (view.offset >= source.buffers.size() || source.buffers[view.offset].place == Place::View ||
      source.buffers[view.offset].type.bytes() != view.type.bytes())
    return Status::error("the plan is damaged: '" + view.name + "' is no view of its buffer");
  views[view.offset].push_back(static_cast<int>(index));
  tensors[index].data = tensors[view.offset].data;
  return Status::success();
}

/// Outputs lie in the memory of inputs only where the kernel works in place.
Status Frame::checkOverlaps(const Step &step, const Kernel &kernel) const {
  std::vector<InPlace> allowed = kernel.inPlace();
  for (size_t k = 0; k < step.outputs.size(); ++k)
    for (size_t j = 0; j < step.inputs.size(); ++j) {
      if (!source.overlap(step.outputs[k], step.inputs[j]))
        continue;
      auto isPair = [&](InPlace pair) { return pair.output == k && pair.input == j; };
      if (std::ranges::none_of(allowed, isPair))
        return Status::error("the plan has '" + source.buffers[static_cast<size_t>(step.outputs[k])].name +
                             "' where '" + source.buffers[static_cast<size_t>(step.inputs[j])].name +
                             "' lies, and the kernel of '" + step.spec.name + "' (" + step.spec.op +
                             ") does not work in place" + compileAgain());
    }
  return Status::success();
}

/// How an error ends that another machine, or another number of threads, would not have.
std::string Frame::compileAgain() const {
  std::string text = ": compile the model here";
  if (source.threads && source.threads != threadCount())
    text += ", or run it with --threads=" + std::to_string(source.threads) +
            ", for which it was compiled (now: " + std::to_string(threadCount()) + ")";
  return text;
}

Status Frame::prepareSteps(std::byte *arena, std::byte *host) {
  size_t count = 0;
  for (const Step &step : source.steps)
    count += step.inputs.size() + step.outputs.size();
  operands.reserve(count); // The args' spans point into it.
  auto view = [this](const std::vector<int> &indices) {
    size_t first = operands.size();
    for (int index : indices) {
      if (index >= 0)
        readers[static_cast<size_t>(index)].push_back(operands.size());
      operands.push_back(index < 0 ? TensorRef() : tensors[static_cast<size_t>(index)]);
    }
    return std::span<const TensorRef>(operands).subspan(first);
  };
  for (const Step &step : source.steps) {
    Prepared prepared;
    if (step.workspaceOffset > source.arenaBytes || step.workspaceBytes > source.arenaBytes - step.workspaceOffset)
      return Status::error("the plan is damaged: the workspace of '" + step.spec.name + "' (" + step.spec.op +
                           ") ends beyond the arena");
    if (Status status = prepare(step, prepared, arena, host); !status.ok())
      return status;
    if (Status status = checkOverlaps(step, *prepared.kernel); !status.ok())
      return status;
    prepared.args.inputs = view(step.inputs);
    prepared.args.outputs = view(step.outputs);
    prepared.args.workspace = {arena + step.workspaceOffset, step.workspaceBytes};
    steps.push_back(std::move(prepared));
    if (AllReduce *reduction = steps.back().reduction) {
      std::vector<size_t> early = reduction->early();
      for (size_t bucket = 0; bucket < early.size(); ++bucket)
        steps[std::max<size_t>(early[bucket], 1) - 1].begins.emplace_back(steps.size() - 1, bucket);
    }
  }
  return Status::success();
}

/// A step that makes more than one element that is no operand belongs to the backward; others cast and weigh.
KnownAfter Frame::knownAfter(const Step &reduction) const {
  KnownAfter known;
  known.steps.resize(reduction.inputs.size());
  auto number = static_cast<size_t>(&reduction - source.steps.data());
  for (size_t i = 0; i < number; ++i)
    for (int output : source.steps[i].outputs) {
      if (output < 0)
        continue;
      bool isOperand = false;
      for (size_t operand = 0; operand < reduction.inputs.size(); ++operand)
        if (source.rootOf(reduction.inputs[operand]) == source.rootOf(output)) {
          known.steps[operand] = i + 1;
          isOperand = true;
        }
      if (!isOperand && source.buffers[static_cast<size_t>(output)].type.elems() > 1)
        known.backward = i + 1;
    }
  return known;
}

Status Frame::prepareCollective(const Step &step, Prepared &prepared) {
  prepared.kernel = createRank(step, *context.communicator);
  if (prepared.kernel || step.spec.op != "all_reduce")
    return Status::success();
  Result<std::unique_ptr<AllReduce>> kernel =
      createAllReduce(step, *context.communicator, context.reductions, knownAfter(step), context.bucketBytes);
  if (!kernel)
    return kernel.status();
  prepared.reduction = kernel->get();
  prepared.kernel = std::move(*kernel);
  return Status::success();
}

Status Frame::prepare(const Step &step, Prepared &prepared, std::byte *arena, std::byte *host) {
  if (!step.bodies.empty()) {
    if (step.hostOffset > source.hostBytes || step.hostBytes > source.hostBytes - step.hostOffset)
      return Status::error("the plan is damaged: what '" + step.spec.name + "' has on the host ends beyond it");
    Result<std::unique_ptr<Kernel>> kernel =
        createControlFlow(step, arena + step.workspaceOffset, host + step.hostOffset, context);
    if (!kernel)
      return kernel.status();
    prepared.kernel = std::move(*kernel);
    return Status::success();
  }
  if (context.communicator) {
    Status status = prepareCollective(step, prepared);
    if (!status.ok() || prepared.kernel)
      return status;
  }
  if (step.library == kGeneratedLibrary) {
    if (context.referenceOnly)
      return Status::error("the plan has generated code for '" + step.spec.name +
                           "': compile the model for the reference evaluator");
    Result<std::unique_ptr<Kernel>> kernel = createGenerated(step.spec, *context.code);
    if (!kernel)
      return kernel.status();
    prepared.kernel = std::move(*kernel);
    if (prepared.kernel->workspaceBytes() > step.workspaceBytes)
      return Status::error("the plan is damaged: '" + step.spec.name + "' has too little workspace");
    if (step.workspaceBytes)
      context.touch(arena + step.workspaceOffset, step.workspaceBytes);
    return Status::success();
  }
  KernelChoice choice = chooseCpuKernel(step.spec, context.referenceOnly || step.library == "reference");
  std::string name = "'" + step.spec.name + "' (" + step.spec.op + ")";
  if (!choice.kernel) {
    std::string reasons;
    for (const std::string &refusal : choice.refusals)
      reasons += (reasons.empty() ? ": " : "; ") + refusal;
    return Status::error("no kernel runs " + name + reasons);
  }
  if (choice.library != step.library && !context.referenceOnly)
    return Status::error("the plan has " + step.library + " for " + name + ", but this machine would take " +
                         choice.library + compileAgain());
  if (choice.kernel->workspaceBytes() > step.workspaceBytes)
    return Status::error("the plan has " + std::to_string(step.workspaceBytes) + " bytes of workspace for " + name +
                         ", which needs " + std::to_string(choice.kernel->workspaceBytes()) + compileAgain());
  prepared.kernel = std::move(choice.kernel);
  if (step.workspaceBytes)
    context.touch(arena + step.workspaceOffset, step.workspaceBytes);
  return Status::success();
}

} // namespace recast
