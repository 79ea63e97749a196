// A compiled graph: what runs, in which order, on which buffers. Links neither MLIR nor ONNX.
#pragma once
#include "runtime/kernels/Kernel.h"
#include <map>

namespace recast {

/// Of every place in the arena, and of all other memory that the executor allocates.
inline constexpr size_t kAlignmentBytes = 64;
inline size_t alignedBytes(size_t bytes) { return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes; }

/// Where a buffer's memory comes from.
enum class Place : uint8_t {
  Absent,   ///< An optional input or output that is not there.
  Arena,    ///< At `offset` of the arena: activations, gradients, new state, and outputs.
  Constant, ///< Read-only: initializers that are no state, folded values.
  Input,    ///< The batch: owned by the executor, filled by the caller.
  State,    ///< A state input: owned by the executor, kept from step to step.
  Outer,    ///< In a body: what its step reads from the plan around it.
  View,     ///< The memory of another buffer, which is none: another shape of it, or the new state in the old one's.
  Host,     ///< At `offset` of the plan's memory on the host: written by offload, read by fetch (isTransfer).
};

struct Buffer {
  std::string name; ///< The ONNX value's name.
  TensorType type;
  Place place = Place::Absent;
  size_t offset =
      0; ///< In the arena or on the host; for Outer, which input of the body's step it is; for View, which buffer.
};

struct Plan;

/// Reads `inputs`, writes `outputs`: indices into Plan::buffers.
struct Step {
  StepSpec spec;
  std::string origin; ///< The first output's name of the model's node that this step, maybe among others, comes from.
  std::vector<std::string> moreOrigins; ///< Of a step that does the work of several nodes: the others.
  std::string library;                  ///< The kernel list entry that was chosen.
  std::vector<std::string> refusals;
  std::vector<int> inputs, outputs;
  size_t workspaceOffset = 0, workspaceBytes = 0; ///< In the arena.
  std::vector<InPlace> inPlace; ///< What the kernel allows. Buffers of equal size at one place say what is made of it.
  /// Of If (then, else), Loop and Scan, which the executor itself runs: their inputs and outputs are those of the ONNX
  /// bodies, and their arenas lie in this step's workspace. Values that bodies capture follow the node's own operands
  /// in `inputs`.
  std::vector<Plan> bodies;
  size_t hostOffset = 0, hostBytes = 0; ///< What bodies have on the host, in the plan's own.
};

/// A copy between the arena and the host's memory: `offload` or `fetch` of the domain recast.
inline bool isTransfer(const StepSpec &spec) {
  return spec.domain == "recast" && (spec.op == "offload" || spec.op == "fetch");
}

/// A graph output; `updates` is the index of the state buffer that it becomes, or -1: it is copied there after the
/// last step, unless it is a view of that buffer.
struct Output {
  std::string name;
  int buffer = -1;
  int updates = -1;
};

/// Bytes of constants and initial state: either owned, or a view into a mapped file that the plan keeps alive.
struct Data {
  const void *bytes = nullptr;
  std::shared_ptr<const void> owner;
  const void *copyOf = nullptr; ///< Where `bytes` were copied from, if anywhere: an address, which may be gone.
};

/// Machine code of generated steps, which name their entry points.
struct CodeObject {
  enum Kind : uint8_t { SharedObject, Ptx, Cubin } kind = SharedObject;
  std::string target; ///< A level of the x86-64 ABI, "x86-64-v4"; "sm_80"; "emulated" for the checking device.
  std::string bytes;
};

struct Plan {
  std::vector<Buffer> buffers;
  std::vector<Step> steps;
  std::vector<int> inputs;                     ///< Buffers with Place::Input, in the graph's order.
  std::vector<Output> outputs;                 ///< In the graph's order.
  std::map<int, Data> data;                    ///< Constant buffers, and the initial values of state buffers.
  size_t arenaBytes = 0;                       ///< The figure that is predicted and allocated.
  size_t hostBytes = 0;                        ///< Beside it, in the host's memory.
  std::map<std::string, std::string> metadata; ///< The model's metadata_props.
  std::vector<CodeObject> code;
  std::string device = "cpu"; ///< Or "cuda": then libraries, code and workspaces are those of GPUs.
  int threads = 0;            ///< That its kernels were chosen for; 0: unknown.

  size_t bytesAt(Place place) const;
  /// The buffer whose memory it is: itself unless it is a view. Precondition: no negative index.
  int rootOf(int buffer) const {
    const Buffer &b = buffers[static_cast<size_t>(buffer)];
    return b.place == Place::View ? static_cast<int>(b.offset) : buffer;
  }
  /// True where two buffers have a byte in common. Negative indices and absent buffers have none.
  bool overlap(int a, int b) const;
};

/// The buffers that a step writes over: those of its inputs that lie where outputs do, and state that it replaces.
std::vector<int> overwritten(const Plan &plan, const Step &step);

/// The plan as text: one line a step (`--explain`).
std::string print(const Plan &plan);

} // namespace recast
