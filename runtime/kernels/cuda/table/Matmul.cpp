#include "runtime/kernels/cuda/table/Matmul.h"

namespace recast::cuda {
namespace {

bool isAligned(const void *address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

std::string_view describe(ScaleMode mode) {
  switch (mode) {
  case ScaleMode::Scalar:
    return "one scale a tensor";
  case ScaleMode::Vector32E8M0:
    return "one e8m0 scale for 32 elements";
  case ScaleMode::OuterVector:
    return "one scale a row";
  case ScaleMode::Vector128:
    return "one scale for 128 elements";
  case ScaleMode::Block128:
    return "one scale for 128 x 128 elements";
  }
  return "unknown scales";
}

/// cuBLAS, "Narrow Precision Data Types Usage": which scales go together, and which devices take them.
std::string brokenScaleRule(const MatmulArgs &args, int architecture) {
  ScaleMode a = args.scaleModeA, b = args.scaleModeB;
  auto isBy128 = [](ScaleMode mode) { return mode == ScaleMode::Vector128 || mode == ScaleMode::Block128; };
  if (isBy128(a) && isBy128(b) ? a == ScaleMode::Block128 && b == ScaleMode::Block128 : a != b)
    return std::string(describe(a)) + " of a does not go with " + std::string(describe(b)) + " of b";
  if (a == ScaleMode::Scalar)
    return architecture && architecture < 89 ? "8-bit products need sm_89 or later" : "";
  if (a == ScaleMode::Vector32E8M0 ? architecture && architecture < 100 : architecture && architecture / 10 != 9)
    return "8-bit products with " + std::string(describe(a)) + " need " +
           (a == ScaleMode::Vector32E8M0 ? "sm_100 or later" : "sm_90");
  // The documentation leaves open how the scales of several matrices lie.
  if (args.batch > 1)
    return "a batch of 8-bit products with " + std::string(describe(a));
  if (a == ScaleMode::Vector32E8M0 && args.k % 32)
    return "k is " + std::to_string(args.k) + ", no multiple of the 32 elements of a scale";
  for (const void *address : {args.scaleA, args.scaleB})
    if (!isAligned(address, 16))
      return "scales are aligned to 16 bytes";
  return "";
}

/// "To use FP8 kernels, the following set of requirements must be satisfied" (cuBLAS, cublasLtMatmul()): all matrix
/// pointers 16-byte aligned, A transposed and B not (the TN format, of column-major matrices: here b and a), the
/// compute type 32F, and dimensions that are multiples of 16. Two operands of e5m2 are not in its table of types.
std::string brokenFloat8Rule(const MatmulArgs &args, int architecture) {
  if (args.transA || !args.transB)
    return "8-bit products take the TN layout only: a as [m,k], b as [n,k]";
  if (args.m % 16 || args.n % 16 || args.k % 16)
    return "8-bit products take multiples of 16: m, n, k are " + std::to_string(args.m) + ", " +
           std::to_string(args.n) + ", " + std::to_string(args.k);
  if (args.pitchA % 16 || args.pitchB % 16 || args.pitchD * static_cast<int64_t>(byteSize(args.typeD)) % 16)
    return "rows of 8-bit products begin at multiples of 16 bytes";
  if (args.typeA == DType::F8E5M2 && args.typeB == DType::F8E5M2)
    return "two operands of f8e5m2";
  for (const void *address : {args.a, args.b, static_cast<const void *>(args.d)})
    if (!isAligned(address, 16))
      return "operands of 8-bit products are aligned to 16 bytes";
  return brokenScaleRule(args, architecture);
}

} // namespace

size_t scaleBytes(ScaleMode mode, int64_t rows, int64_t k) {
  auto blocksOf = [](int64_t size, int64_t edge) { return static_cast<size_t>((size + edge - 1) / edge); };
  switch (mode) {
  case ScaleMode::Scalar:
    return sizeof(float);
  case ScaleMode::Vector32E8M0: // Tiles of 128 rows and 4 blocks, 512 bytes each.
    return blocksOf(rows, 128) * blocksOf(k, 4 * 32) * 512;
  case ScaleMode::OuterVector:
    return static_cast<size_t>(rows) * sizeof(float);
  case ScaleMode::Vector128:
    return blocksOf(k, 128) * static_cast<size_t>(rows) * sizeof(float);
  case ScaleMode::Block128:
    return blocksOf(rows, 128) * blocksOf(k, 4 * 128) * 4 * sizeof(float);
  }
  return 0;
}

std::string brokenRule(const MatmulArgs &args, int architecture) {
  bool isFloat8Product = isFloat8(args.typeA) || isFloat8(args.typeB);
  if (isFloat8Product ? !isFloat8(args.typeA) || !isFloat8(args.typeB) : args.typeA != args.typeB)
    return "operands of " + std::string(name(args.typeA)) + " and " + std::string(name(args.typeB));
  if (args.tf32 && args.typeA != DType::F32)
    return "tf32 products of " + std::string(name(args.typeA));
  if (args.m < 1 || args.n < 1 || args.k < 1 || args.batch < 1)
    return "an empty product";
  if (args.batch > kMostBatch)
    return "a batch of " + std::to_string(args.batch) + " products, more than " + std::to_string(kMostBatch);
  // cublasLtMatrixLayout: the leading dimension is no less than the rows of a column-major matrix.
  auto pitch = [](std::string_view which, int64_t got, int64_t least) {
    return got < least ? "the leading dimension of " + std::string(which) + " is " + std::to_string(got) +
                             ", its rows have " + std::to_string(least) + " elements"
                       : "";
  };
  for (const std::string &rule :
       {pitch("a", args.pitchA, args.transA ? args.m : args.k), pitch("b", args.pitchB, args.transB ? args.k : args.n),
        pitch("d", args.pitchD, args.n)})
    if (!rule.empty())
      return rule;
  if (args.batch > 1 && args.strideD < (args.m - 1) * args.pitchD + args.n)
    return "the results of a batch overlap";
  if (!isAligned(args.a, byteSize(args.typeA)) || !isAligned(args.b, byteSize(args.typeB)) ||
      !isAligned(args.d, byteSize(args.typeD)))
    return "an operand is not aligned to its elements";
  if (args.workspaceBytes && !isAligned(args.workspace, 16))
    return "the workspace is not aligned to 16 bytes";
  return isFloat8Product ? brokenFloat8Rule(args, architecture) : "";
}

} // namespace recast::cuda
