// What a plan for a GPU asks of a device: memory, and commands in streams. Two implement it: CUDA's driver and libraries
// (cuda/), and the host, which checks every command (checking/).
#pragma once
#include "runtime/plan/Plan.h"

namespace recast {

/// Commands of one stream run in their order; those of two only where events order them.
enum class Stream : uint8_t { Compute, Copy };
inline constexpr size_t kStreams = 2;

/// Memory that a command touches. `owner` says whose value it is: a number that the command list gives to every buffer
/// and every step's workspace.
inline constexpr int kAnyOwner = -2; ///< Of constants, which many bodies know by numbers of their own.
struct Access {
  std::byte *data = nullptr;
  size_t bytes = 0;
  bool isRead = false, isWritten = false;
  int owner = -1;
};

/// C (m x n) = alpha op(A) (m x k) op(B) (k x n), `batches` times, all column-major as cuBLASLt has them; sums in f32, of
/// f64 in f64.
struct MatMul {
  int64_t m = 0, n = 0, k = 0, batches = 1;
  bool transposeA = false, transposeB = false;
  DType type = DType::F32; ///< Of A, B and C.
  int64_t leadingA = 0, leadingB = 0, leadingC = 0;
  int64_t strideA = 0, strideB = 0, strideC = 0; ///< Elements from batch to batch.
  double alpha = 1;
  bool rounds = false; ///< tf32: operands have 10 bits of mantissa.
  const std::byte *a = nullptr, *b = nullptr;
  std::byte *c = nullptr, *workspace = nullptr;
  size_t workspaceBytes = 0;
};

struct Command {
  enum Kind : uint8_t { Kernel, Product, Copy, Fill } kind = Kernel;
  std::string step = {}; ///< "'name' (Op)", for messages.
  std::vector<Access> accesses = {};
  // Kernel
  std::string kernel = {};
  int64_t blocks = 1;
  int threads = 0;
  std::vector<std::byte> args = {};
  // The others. Copy: accesses[0] to accesses[1]. Fill: accesses[0] with `byte`.
  MatMul product = {};
  uint8_t byte = 0;
};

/// Alignment of what allocate() gives: cuBLASLt's and cuDNN's fastest kernels ask for no more.
inline constexpr size_t kDeviceAlignment = 256;

/// All errors name the command's step, or the buffer.
class Device {
public:
  virtual ~Device() = default;
  /// Memory of the device until it is destroyed.
  virtual Result<std::byte *> allocate(size_t bytes, const std::string &what) = 0;
  /// Makes a plan's kernels known.
  virtual Status load(std::span<const CodeObject> code) = 0;
  /// Host memory must stay as it is until synchronize().
  virtual Status upload(Stream stream, const Access &to, const void *from) = 0;
  virtual Status download(Stream stream, void *to, const Access &from) = 0;
  virtual Status issue(Stream stream, const Command &command) = 0;
  /// Marks what the stream has been given so far; events are numbers from 0 and may be recorded again.
  virtual Status record(Stream stream, int event) = 0;
  virtual Status wait(Stream stream, int event) = 0;
  /// Waits for everything.
  virtual Status synchronize() = 0;
};

} // namespace recast
