#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include "runtime/kernels/cuda/source/Cuda.h"
#include <algorithm>

namespace recast::cuda {

// One table a file of source/.
std::span<const emulation::Kernel> copyKernels();
std::span<const emulation::Kernel> indexingKernels();
std::span<const emulation::Kernel> scalingKernels();
std::span<const emulation::Kernel> fp8Kernels();
std::span<const emulation::Kernel> anyReduceKernels();
std::span<const emulation::Kernel> roundingKernels();
std::span<const emulation::Kernel> lossKernels();
std::span<const emulation::Kernel> windowKernels();
std::span<const emulation::Kernel> orderKernels();
std::span<const emulation::Kernel> arithmeticKernels();

namespace emulation {

std::span<const Kernel> kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> all;
    for (std::span<const Kernel> family :
         {copyKernels(), indexingKernels(), scalingKernels(), fp8Kernels(), lossKernels(), windowKernels(),
          orderKernels(), anyReduceKernels(), roundingKernels(), arithmeticKernels()})
      all.insert(all.end(), family.begin(), family.end());
    std::ranges::sort(all, {}, &Kernel::name);
    return all;
  }();
  return all;
}

const Kernel *find(std::string_view name) {
  auto found = std::ranges::lower_bound(kernels(), name, {}, &Kernel::name);
  return found != kernels().end() && found->name == name ? &*found : nullptr;
}

Result<BoundLaunch> bind(const Launch &launch, const std::function<Place(const Operand &)> &placeOf) {
  BoundLaunch bound{find(launch.kernel), launch.blocks, launch.threads, launch.args, {}};
  if (!bound.kernel)
    return Status::error("there is no kernel " + launch.kernel);
  for (const Pointer &pointer : launch.pointers) {
    const Operand &operand = pointer.operand;
    Place place = placeOf(operand);
    if (operand.offset + operand.bytes > place.bytes)
      return Status::error("kernel " + launch.kernel + ": " + place.name + " has " + std::to_string(place.bytes) +
                           " bytes, the launch wants " + std::to_string(operand.offset + operand.bytes));
    auto *data = static_cast<std::byte *>(place.data) + operand.offset;
    std::memcpy(bound.args.data() + pointer.place, &data, sizeof(data));
    size_t bytes = operand.bytes ? operand.bytes : place.bytes - operand.offset;
    bound.ranges.push_back({std::move(place.name), data, bytes,
                            (static_cast<int>(pointer.use) & static_cast<int>(Use::Write)) != 0,
                            (static_cast<int>(pointer.use) & static_cast<int>(Use::Read)) != 0});
  }
  return bound;
}

namespace {

class EmulatedKernel final : public recast::Kernel {
public:
  EmulatedKernel(const StepSpec &spec, Program compiled, Run run)
      : name(spec.name), op(spec.op), program(std::move(compiled)), runLaunch(std::move(run)) {
    if (!program.plain.empty()) // There are no libraries here.
      program.launches = std::move(program.plain);
  }
  size_t workspaceBytes() const override { return program.workspaceBytes; }
  std::vector<InPlace> inPlace() const override { return program.inPlace; }
  bool mayFail() const override { return program.mayFail; }

  Status run(const KernelArgs &args) override {
    Fault fault{~uint64_t(0)};
    for (const Launch &launch : program.launches) {
      Result<BoundLaunch> bound = bind(launch, [&](const Operand &operand) { return place(operand, args, fault); });
      if (!bound)
        return bound.status();
      reversed = !reversed;
      Status status = runLaunch(*bound, reversed);
      if (!status.ok())
        return Status::error("node '" + name + "' (" + op + "): " + status.message());
    }
    if (fault.position != ~uint64_t(0))
      return Status::error("node '" + name + "' (" + op + "): the value at position " + std::to_string(fault.position) +
                           " is out of range");
    return Status::success();
  }

private:
  static Place place(const Operand &operand, const KernelArgs &args, Fault &fault) {
    if (operand.kind == Operand::Workspace)
      return {"the workspace", args.workspace.data(), args.workspace.size()};
    if (operand.kind == Operand::Fault)
      return {"the fault", &fault, sizeof(fault)};
    bool isInput = operand.kind == Operand::Input;
    const TensorRef &tensor = (isInput ? args.inputs : args.outputs)[operand.index];
    return {(isInput ? "input " : "output ") + std::to_string(operand.index), tensor.data, tensor.bytes()};
  }

  std::string name, op;
  Program program;
  Run runLaunch;
  bool reversed = true; ///< Blocks and threads run in both orders in turn: results must not depend on it.
};

} // namespace

Status runBound(const BoundLaunch &bound, bool reversed) {
  return launch(*bound.kernel, bound.blocks, bound.threads, bound.args, bound.ranges, reversed);
}

std::unique_ptr<recast::Kernel> create(const StepSpec &spec, std::string &refusal, Run run) {
  Program program;
  if (!compile(spec, program, refusal))
    return nullptr;
  return std::make_unique<EmulatedKernel>(spec, std::move(program), std::move(run));
}

} // namespace emulation
} // namespace recast::cuda
