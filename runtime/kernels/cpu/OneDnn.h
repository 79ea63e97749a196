// What the oneDNN kernels share: the engine, errors as text, and kernels as short programs of primitives.
#pragma once
#include "runtime/kernels/Kernel.h"
#include <dnnl.hpp>

namespace recast::onednn {

/// The process's CPU engine, created on first use.
const dnnl::engine &engine();

/// A reason to refuse, thrown while a kernel is made and caught by create().
struct Refusal {
  std::string reason;
};

/// f32, bf16 or f16; throws a Refusal for other types.
dnnl::memory::data_type dataType(DType type);

/// The element type of the step's output; throws a Refusal if an input has another one.
DType commonType(const StepSpec &spec);

/// make(type): a kernel that computes in the step's own type, or in f32 between conversions where that is refused and
/// the type has 16 bits. Sums are in f32 either way.
template <typename Make> std::unique_ptr<Kernel> preferOwnType(const StepSpec &spec, Make &&make) {
  DType type = commonType(spec);
  if (type != DType::F16 && type != DType::BF16)
    return make(type);
  try {
    return make(type);
  } catch (const Refusal &) {
  } catch (const dnnl::error &) {
  }
  return make(DType::F32);
}

/// A dense row-major descriptor.
dnnl::memory::desc plain(std::span<const int64_t> dims, DType type);
/// oneDNN may choose the layout.
dnnl::memory::desc anyLayout(std::span<const int64_t> dims, DType type);

/// The scratchpad comes from the workspace; products are summed in f32 and inputs are never rounded down.
dnnl::primitive_attr attributes();

/// Throws a Refusal if the implementation is oneDNN's own unoptimised one: the reference evaluator is no slower.
void requireOptimised(const dnnl::primitive_desc &descriptor);

/// Where a tensor of a program lies.
struct Slot {
  enum Kind { Input, Output, Workspace, Scratch } kind = Input;
  size_t index = 0; ///< Of the input or output; in the workspace the offset in bytes.
};
inline Slot input(size_t i) { return {Slot::Input, i}; }
inline Slot output(size_t i) { return {Slot::Output, i}; }

/// A tensor of a program: a place and a layout.
struct Operand {
  Slot slot;
  dnnl::memory::desc desc;
};

/// Whether one thread does the step before others have woken up. Primitives are then made for one thread and run on it:
/// oneDNN itself asks for all threads, however little there is to do.
bool isSmall(const StepSpec &spec);

/// A kernel that is made of oneDNN primitives and small loops, executed in order.
class Program : public Kernel {
public:
  explicit Program(const StepSpec &spec)
      : name(spec.name), op(spec.op), type(spec.outputs[0].dtype), onOneThread(isSmall(spec)) {}

  size_t workspaceBytes() const override { return reservedBytes + scratchBytes; }
  std::vector<InPlace> inPlace() const override { return pairs; }
  /// Creating the primitives has checked their arguments, and their memory is the workspace.
  bool mayFail() const override { return false; }
  Status run(const KernelArgs &args) override;

  // While the program is made; all may throw dnnl::error.
  Operand temporary(const dnnl::memory::desc &desc);
  /// Adds a primitive with its arguments (DNNL_ARG_SRC, ...).
  void add(const dnnl::primitive &primitive, std::vector<std::pair<int, Operand>> arguments);
  /// `from` in the layout and type of `desc`: itself where it is so already, else a temporary and a reorder.
  Operand inLayout(const Operand &from, const dnnl::memory::desc &desc);
  /// Adds a reorder, unless both are the same place.
  void copy(const Operand &from, const Operand &to);
  /// Input `i` row-major as `dims`, in `type`: a temporary and a conversion where it is not of that type.
  Operand load(size_t i, std::span<const int64_t> dims, DType type);
  /// Where to compute output 0 in the layout and type of `desc`; store() brings it to the output. `dims` are those of
  /// the output as `desc` sees it.
  Operand target(const dnnl::memory::desc &desc, std::span<const int64_t> dims);
  /// After the last primitive: reorders and converts `from` to output 0. `bias`, where it is present, is an input of
  /// the step that is added along dimension 1.
  void store(const Operand &from, std::span<const int64_t> dims, int bias = -1);
  /// Adds a loop; it may not allocate.
  void add(std::function<void(const KernelArgs &)> loop);

  /// Lets output 0 take over the memory of input `i`.
  void allowInPlace(size_t i) { pairs.push_back({0, i}); }

  /// The address of a slot in one execution.
  void *address(const KernelArgs &args, const Slot &slot) const;

private:
  struct Argument {
    Slot slot;
    dnnl::memory memory;
  };
  struct Action {
    dnnl::primitive primitive;
    std::vector<Argument> arguments;
    std::vector<dnnl_exec_arg_t> handles; ///< The same memories in the form of the C interface.
    std::function<void(const KernelArgs &)> loop;
  };
  std::string name, op;
  DType type; ///< Of the step's tensors.
  bool onOneThread;
  std::vector<Action> actions;
  std::vector<InPlace> pairs;
  size_t reservedBytes = 0, scratchBytes = 0;
};

// Makers; each may throw Refusal or dnnl::error.
std::unique_ptr<Kernel> makeMatMul(const StepSpec &spec);
std::unique_ptr<Kernel> makeGemm(const StepSpec &spec);
std::unique_ptr<Kernel> makeConv(const StepSpec &spec);
std::unique_ptr<Kernel> makeConvTranspose(const StepSpec &spec);
std::unique_ptr<Kernel> makeConvGradInput(const StepSpec &spec);
std::unique_ptr<Kernel> makeConvGradWeight(const StepSpec &spec);
std::unique_ptr<Kernel> makeMaxPool(const StepSpec &spec);
std::unique_ptr<Kernel> makeAveragePool(const StepSpec &spec);
std::unique_ptr<Kernel> makeMaxPoolGrad(const StepSpec &spec);
std::unique_ptr<Kernel> makeAveragePoolGrad(const StepSpec &spec);

/// For KernelEntry.
std::unique_ptr<Kernel> create(const StepSpec &spec, std::string &refusal);

} // namespace recast::onednn
