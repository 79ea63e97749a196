#include "runtime/kernels/cuda/table/Matmul.h"

namespace recast::cuda {
namespace {

bool isAligned(const void *address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

/// "To use FP8 kernels, the following set of requirements must be satisfied" (cuBLAS, cublasLtMatmul()): all matrix
/// pointers 16-byte aligned, A transposed and B not (the TN format, of column-major matrices: here b and a), the
/// compute type 32F, and dimensions that are multiples of 16. Two operands of e5m2 are not in its table of types.
std::string brokenFloat8Rule(const MatmulArgs &args) {
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
  return "";
}

} // namespace

std::string brokenRule(const MatmulArgs &args) {
  bool isFloat8Product = isFloat8(args.typeA) || isFloat8(args.typeB);
  if (isFloat8Product ? !isFloat8(args.typeA) || !isFloat8(args.typeB) : args.typeA != args.typeB)
    return "operands of " + std::string(name(args.typeA)) + " and " + std::string(name(args.typeB));
  if (args.m < 1 || args.n < 1 || args.k < 1 || args.batch < 1)
    return "an empty product";
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
  return isFloat8Product ? brokenFloat8Rule(args) : "";
}

} // namespace recast::cuda
