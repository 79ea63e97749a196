// Which CUDA kernels run a step: one table row an operator and range of versions, one file a family. A step becomes a
// Program, launches whose grids and arguments follow from shapes and constants alone; the executor fills in addresses.
#pragma once
#include "runtime/kernels/Kernel.h"
#include <cstring>
#include <span>

namespace recast::cuda {

/// Memory of a step that a launch is given.
struct Operand {
  enum Kind : uint8_t {
    Input,     ///< Input `index` of the step.
    Output,    ///< Output `index` of the step.
    Workspace, ///< The step's workspace.
    Fault,     ///< The step's source/Cuda.h Fault.
  } kind = Workspace;
  size_t index = 0;
  size_t offset = 0; ///< Bytes after its start.
  size_t bytes = 0;  ///< That the launch may touch; 0: up to its end.
};
inline Operand input(size_t i) { return {Operand::Input, i}; }
inline Operand output(size_t i) { return {Operand::Output, i}; }
inline Operand workspace(size_t offset, size_t bytes) { return {Operand::Workspace, 0, offset, bytes}; }

enum class Use : uint8_t { Read = 1, Write = 2, ReadWrite = 3 };

/// A pointer among the bytes of a launch's arguments.
struct Pointer {
  size_t place = 0; ///< Where in the arguments.
  Operand operand;
  Use use = Use::Read;
};

struct Launch {
  std::string kernel;
  int64_t blocks = 1;
  int threads = 256;
  std::vector<std::byte> args; ///< The kernel's argument struct; pointers are not filled in.
  std::vector<Pointer> pointers;
};

/// A step, ready to be launched in order.
struct Program {
  std::vector<Launch> launches;
  size_t workspaceBytes = 0;
  std::vector<InPlace> inPlace; ///< As Kernel::inPlace.
  bool mayFail = false;         ///< As Kernel::mayFail: some launch has a Fault.
  /// Instead of `launches` where a device cannot run a library's call among them; empty where all devices can.
  std::vector<Launch> plain;
  std::vector<std::string> refusals; ///< As Step::refusals: of libraries that would come first.

  /// Reserves workspace, aligned to 64 bytes.
  Operand reserve(size_t bytes) {
    size_t offset = (workspaceBytes + 63) / 64 * 64;
    workspaceBytes = offset + bytes;
    return workspace(offset, bytes);
  }
};

/// Threads of a block, unless a kernel says otherwise.
inline constexpr int kBlockThreads = 256;
/// Blocks that go over `items` in a loop of the grid, one thread an item. More than fill any device add nothing.
inline int64_t blocksFor(int64_t items, int threads = kBlockThreads) {
  int64_t blocks = (items + threads - 1) / threads;
  return blocks < 1 ? 1 : blocks > 8192 ? 8192 : blocks;
}

/// Threads of a block that reduces `items` together: as many as have some work each.
inline int threadsToReduce(int64_t items) {
  int64_t threads = (items / 32 + 31) / 32 * 32;
  return static_cast<int>(threads < 32 ? 32 : threads > kBlockThreads ? kBlockThreads : threads);
}

/// One launch under construction: `LaunchOf<FillArgs>("fill_zero", {.bytes = n}).write(&FillArgs::dst, output(0))`.
template <typename Args> class LaunchOf {
public:
  LaunchOf(std::string kernel, const Args &args) : args(args) { launch.kernel = std::move(kernel); }

  template <typename P> LaunchOf &read(P Args::*member, Operand operand) {
    return pointer(placeOf(member), operand, Use::Read);
  }
  template <typename P> LaunchOf &write(P Args::*member, Operand operand) {
    return pointer(placeOf(member), operand, Use::Write);
  }
  template <typename P> LaunchOf &update(P Args::*member, Operand operand) {
    return pointer(placeOf(member), operand, Use::ReadWrite);
  }
  /// Where the pointer lies in an array of the arguments.
  LaunchOf &pointer(size_t place, Operand operand, Use use) {
    launch.pointers.push_back({place, operand, use});
    return *this;
  }
  LaunchOf &grid(int64_t blocks, int threads = kBlockThreads) {
    launch.blocks = blocks;
    launch.threads = threads;
    return *this;
  }
  Args &arguments() { return args; }
  void into(Program &program) {
    launch.args.resize(sizeof(Args));
    std::memcpy(launch.args.data(), &args, sizeof(Args));
    for (const Pointer &pointer : launch.pointers)
      program.mayFail |= pointer.operand.kind == Operand::Fault;
    program.launches.push_back(std::move(launch));
  }

private:
  template <typename P> size_t placeOf(P Args::*member) const {
    return static_cast<size_t>(reinterpret_cast<const std::byte *>(&(args.*member)) -
                               reinterpret_cast<const std::byte *>(&args));
  }
  Args args;
  Launch launch;
};

/// One operator in a range of versions. `compile` returns why it cannot take the step, or "".
struct Row {
  std::string_view domain, op;
  int64_t sinceFirst, sinceLast; ///< Inclusive range of since_version.
  std::string (*compile)(const StepSpec &spec, Program &program);
};

// One table a family; each is defined in the file of that name.
std::span<const Row> copyRows();
std::span<const Row> indexingRows();
std::span<const Row> scalingRows();
std::span<const Row> fp8Rows();
std::span<const Row> reduceRows();
std::span<const Row> lossRows();
std::span<const Row> windowRows();
std::span<const Row> productRows();
std::span<const Row> fp8ProductRows();
std::span<const Row> collectiveRows();
std::span<const Row> orderRows();
std::span<const Row> arithmeticRows();

/// An attribute that the compiler sets on products and convolutions: 1 where both factors come out of round_tf32.
inline constexpr std::string_view kTf32 = "recast.tf32";

/// All rows.
std::span<const Row> rows();
/// The row of an operator; null where there is none.
const Row *findRow(const StepSpec &spec);

/// What Step::library calls the program: "cublaslt" where it has a product, "cudnn" where it has a
/// convolution of that library, else "cuda".
std::string_view libraryOf(const Program &program);

/// The program of a step, or a refusal. An empty program does nothing: its outputs have no elements.
bool compile(const StepSpec &spec, Program &program, std::string &refusal);

// For compile functions ---------------------------------------------------------------------------------------------

inline bool has(std::span<const TensorType> types, size_t i) { return i < types.size() && types[i].present(); }
/// "_4" for the bytes of an element.
inline std::string sizeSuffix(DType type) { return "_" + std::to_string(byteSize(type)); }
/// "_bf16".
inline std::string typeSuffix(DType type) { return "_" + std::string(name(type)); }
inline std::string unsupported(DType type) { return std::string(name(type)) + " is not supported"; }
/// `axis` from the front, or -1.
inline int64_t normalizeAxis(int64_t axis, int64_t rank) {
  int64_t positive = axis < 0 ? axis + rank : axis;
  return positive >= 0 && positive < rank ? positive : -1;
}
/// The product of dims[begin, end).
inline int64_t product(std::span<const int64_t> dims, int64_t begin, int64_t end) {
  int64_t count = 1;
  for (int64_t d = begin; d < end; ++d)
    count *= dims[static_cast<size_t>(d)];
  return count;
}
inline std::vector<int64_t> denseStrides(std::span<const int64_t> dims) {
  std::vector<int64_t> strides(dims.size());
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0; stride *= dims[d])
    strides[d] = stride;
  return strides;
}
/// The integers of an input that is a constant; false where it is none.
bool constantInts(const StepSpec &spec, size_t i, std::vector<int64_t> &values);

/// Appends a fill with 0 of a whole output.
void fillZero(Program &program, const StepSpec &spec, size_t output);
/// Appends a copy of a whole input to an output of as many bytes, or to workspace.
void copyWhole(Program &program, Operand from, Operand to, size_t bytes);

} // namespace recast::cuda
