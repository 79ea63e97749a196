#include "runtime/exec/ControlFlow.h"
#include <cstring>

namespace recast {

namespace {

/// Copies between tensors of one type; nothing where they are the same memory.
void copy(const TensorRef &to, const TensorRef &from) {
  if (to.data != from.data && from.bytes())
    std::memcpy(to.data, from.data, from.bytes());
}

void *at(const TensorRef &tensor, int64_t index, size_t sliceBytes) {
  return static_cast<std::byte *>(tensor.data) + static_cast<size_t>(index) * sliceBytes;
}

class ControlFlow : public Kernel {
protected:
  explicit ControlFlow(std::vector<std::unique_ptr<Frame>> bodies) : bodies(std::move(bodies)) {}

  /// Values that a body reads from outside may have moved since the last run: they may be slices themselves.
  static void bindOuter(Frame &body, const KernelArgs &args) {
    const std::vector<Buffer> &buffers = body.plan().buffers;
    for (size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].place == Place::Outer)
        body.bind(static_cast<int>(i), args.inputs[buffers[i].offset].data);
  }
  static TensorRef output(const Frame &body, size_t i) { return body.tensor(body.plan().outputs[i].buffer); }
  static int input(const Frame &body, size_t i) { return body.plan().inputs[i]; }
  /// Inputs that the body does not read have no buffer.
  static void bindInput(Frame &body, size_t i, void *data) {
    if (input(body, i) >= 0)
      body.bind(input(body, i), data);
  }

  /// States are copied from input `firstInput` + i to output i, where they do not lie there already.
  static std::vector<InPlace> carriedInPlace(size_t numStates, size_t firstInput) {
    std::vector<InPlace> pairs;
    for (size_t i = 0; i < numStates; ++i)
      pairs.push_back({i, firstInput + i});
    return pairs;
  }

  std::vector<std::unique_ptr<Frame>> bodies;
};

class If final : public ControlFlow {
public:
  explicit If(std::vector<std::unique_ptr<Frame>> bodies) : ControlFlow(std::move(bodies)) {}

  Status run(const KernelArgs &args) override {
    Frame &body = *bodies[*args.inputs[0].as<bool>() ? 0 : 1];
    bindOuter(body, args);
    if (Status status = body.run(); !status.ok())
      return status;
    for (size_t i = 0; i < args.outputs.size(); ++i)
      if (args.outputs[i].present())
        copy(args.outputs[i], output(body, i));
    return Status::success();
  }
};

/// States that are carried live in the outputs of the step: the body reads them there, and its new values are copied
/// over them at the end of each iteration, unless they are computed there.
class Scan final : public ControlFlow {
public:
  Scan(std::vector<std::unique_ptr<Frame>> bodies, const Step &step) : ControlFlow(std::move(bodies)) {
    size_t slices = static_cast<size_t>(step.spec.attrs.getInt("num_scan_inputs", 0));
    numStates = step.spec.inputs.size() - slices;
    auto reversed = [&](std::string_view name, size_t i) {
      std::span<const int64_t> directions = step.spec.attrs.intsView(name);
      return i < directions.size() && directions[i] == 1;
    };
    for (size_t i = 0; i < slices; ++i)
      isInputReversed.push_back(reversed("scan_input_directions", i));
    for (size_t i = 0; i + numStates < step.outputs.size(); ++i)
      isOutputReversed.push_back(reversed("scan_output_directions", i));
    length = step.spec.inputs[numStates].dims[0];
  }

  std::vector<InPlace> inPlace() const override { return carriedInPlace(numStates, 0); }
  Status run(const KernelArgs &args) override {
    Frame &body = *bodies.front();
    bindOuter(body, args);
    for (size_t i = 0; i < numStates; ++i) {
      copy(args.outputs[i], args.inputs[i]);
      bindInput(body, i, args.outputs[i].data);
    }
    for (int64_t iteration = 0; iteration < length; ++iteration) {
      auto place = [&](bool isReversed) { return isReversed ? length - 1 - iteration : iteration; };
      for (size_t i = 0; i < isInputReversed.size(); ++i)
        if (const TensorRef &whole = args.inputs[numStates + i]; whole.bytes())
          bindInput(body, numStates + i,
                    at(whole, place(isInputReversed[i]), whole.bytes() / static_cast<size_t>(length)));
      if (Status status = body.run(); !status.ok())
        return status;
      for (size_t i = 0; i < isOutputReversed.size(); ++i) {
        TensorRef slice = output(body, numStates + i);
        if (const TensorRef &whole = args.outputs[numStates + i]; whole.present() && slice.bytes())
          std::memcpy(at(whole, place(isOutputReversed[i]), slice.bytes()), slice.data, slice.bytes());
      }
      for (size_t i = 0; i < numStates; ++i)
        copy(args.outputs[i], output(body, i));
    }
    return Status::success();
  }

private:
  size_t numStates;
  std::vector<bool> isInputReversed, isOutputReversed;
  int64_t length;
};

class Loop final : public ControlFlow {
public:
  Loop(std::vector<std::unique_ptr<Frame>> bodies, const Step &step)
      : ControlFlow(std::move(bodies)), numStates(step.spec.inputs.size() - 2), name(step.spec.name) {}

  std::vector<InPlace> inPlace() const override { return carriedInPlace(numStates, 2); }
  Status run(const KernelArgs &args) override {
    Frame &body = *bodies.front();
    bindOuter(body, args);
    bindInput(body, 0, &iteration);
    bindInput(body, 1, &condition);
    for (size_t i = 0; i < numStates; ++i) {
      copy(args.outputs[i], args.inputs[i + 2]);
      bindInput(body, i + 2, args.outputs[i].data);
    }
    int64_t most = args.inputs[0].present() ? *args.inputs[0].as<int64_t>() : std::numeric_limits<int64_t>::max();
    condition = args.inputs[1].present() ? *args.inputs[1].as<bool>() : true;
    for (iteration = 0; iteration < most && condition; ++iteration) {
      if (Status status = body.run(); !status.ok())
        return status;
      condition = *output(body, 0).as<bool>();
      for (size_t i = numStates; i < args.outputs.size(); ++i) {
        TensorRef slice = output(body, i + 1);
        if (const TensorRef &whole = args.outputs[i]; whole.present() && slice.bytes()) {
          if (iteration >= whole.dims[0])
            return tooShort(whole.dims[0]);
          std::memcpy(at(whole, iteration, slice.bytes()), slice.data, slice.bytes());
        }
      }
      for (size_t i = 0; i < numStates; ++i)
        copy(args.outputs[i], output(body, i + 1));
    }
    for (size_t i = numStates; i < args.outputs.size(); ++i)
      if (args.outputs[i].present() && args.outputs[i].dims[0] != iteration)
        return tooShort(args.outputs[i].dims[0]);
    return Status::success();
  }

private:
  Status tooShort(int64_t planned) const {
    return Status::error("'" + name + "' (Loop): its outputs are planned for " + std::to_string(planned) +
                         " iterations, and the condition ends it at another number");
  }

  size_t numStates;
  std::string name;
  int64_t iteration = 0;
  bool condition = true;
};

} // namespace

Result<std::unique_ptr<Kernel>> createControlFlow(const Step &step, std::byte *workspace, std::byte *host,
                                                  FrameContext &context) {
  std::vector<std::unique_ptr<Frame>> bodies;
  for (const Plan &plan : step.bodies) {
    if (plan.arenaBytes > step.workspaceBytes || plan.hostBytes > step.hostBytes)
      return Status::error("the plan is damaged: a body of '" + step.spec.name + "' does not fit into its memory");
    Result<std::unique_ptr<Frame>> body = Frame::create(plan, workspace, host, context);
    if (!body)
      return body.status();
    bodies.push_back(std::move(*body));
  }
  if (step.spec.op == "If")
    return std::unique_ptr<Kernel>(new If(std::move(bodies)));
  if (step.spec.op == "Loop")
    return std::unique_ptr<Kernel>(new Loop(std::move(bodies), step));
  return std::unique_ptr<Kernel>(new Scan(std::move(bodies), step));
}

} // namespace recast
