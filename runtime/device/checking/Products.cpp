#include "runtime/device/checking/Products.h"
#include "runtime/kernels/Parallel.h"
#include <bit>
#include <cmath>

namespace recast::checking {

namespace {

/// What cuBLASLt's fast kernels ask of an address (cuBLAS documentation, "Tensor Core Usage").
constexpr uintptr_t kAlignment = 16;

/// Elements that a column-major matrix with this leading dimension spans.
int64_t spanOf(int64_t rows, int64_t columns, int64_t leading) { return leading * (columns - 1) + rows; }

float tf32(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if (!std::isfinite(x))
    return x;
  return std::bit_cast<float>((u + 0xfff + (u >> 13 & 1)) & ~uint32_t(0x1fff));
}

} // namespace

std::string refuse(const MatMul &p, std::span<const Access> accesses) {
  if (!isFloat(p.type))
    return "cuBLASLt multiplies no " + std::string(name(p.type));
  if (p.m < 1 || p.n < 1 || p.k < 1 || p.batches < 1)
    return "cuBLASLt takes no empty product";
  struct Operand {
    const char *name;
    int64_t rows, columns, leading, stride;
    const std::byte *data;
  };
  const Operand operands[] = {
      {"A", p.transposeA ? p.k : p.m, p.transposeA ? p.m : p.k, p.leadingA, p.strideA, p.a},
      {"B", p.transposeB ? p.n : p.k, p.transposeB ? p.k : p.n, p.leadingB, p.strideB, p.b},
      {"C", p.m, p.n, p.leadingC, p.strideC, p.c},
  };
  for (size_t i = 0; i < 3; ++i) {
    const Operand &o = operands[i];
    if (o.leading < o.rows)
      return std::string("the leading dimension of ") + o.name + ", " + std::to_string(o.leading) +
             ", is below its " + std::to_string(o.rows) + " rows";
    auto elem = static_cast<int64_t>(byteSize(p.type));
    int64_t end = (o.stride * (p.batches - 1) + spanOf(o.rows, o.columns, o.leading)) * elem;
    const Access &access = accesses[i];
    if (o.data < access.data || o.data + end > access.data + access.bytes)
      return std::string(o.name) + " goes beyond its buffer: its leading dimension is " + std::to_string(o.leading) +
             ", its batches are " + std::to_string(o.stride) + " elements apart";
    if (i == 2 && p.batches > 1 && o.stride < spanOf(o.rows, o.columns, o.leading))
      return "the batches of C overlap";
    bool isFast = p.type == DType::F32 || byteSize(p.type) == 2;
    bool wantsAlignment = isFast && o.leading * elem % static_cast<int64_t>(kAlignment) == 0;
    if (reinterpret_cast<uintptr_t>(o.data) % (wantsAlignment && p.batches == 1 ? kAlignment : byteSize(p.type)))
      return std::string(o.name) + " is at an address that is no multiple of " + std::to_string(kAlignment) + " bytes";
  }
  if (reinterpret_cast<uintptr_t>(p.workspace) % kAlignment)
    return "the workspace is at an address that is no multiple of " + std::to_string(kAlignment) + " bytes";
  return "";
}

void run(const MatMul &p) {
  dispatchFloat(p.type, [&]<typename T>() {
    const T *a = reinterpret_cast<const T *>(p.a), *b = reinterpret_cast<const T *>(p.b);
    T *c = reinterpret_cast<T *>(p.c);
    auto value = [&](T x) { return p.rounds ? static_cast<double>(tf32(static_cast<float>(x))) : static_cast<double>(x); };
    parallelFor(p.batches * p.n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        int64_t batch = at / p.n, j = at % p.n;
        const T *left = a + batch * p.strideA, *right = b + batch * p.strideB;
        for (int64_t i = 0; i < p.m; ++i) {
          double sum = 0;
          for (int64_t l = 0; l < p.k; ++l)
            sum += value(left[p.transposeA ? l + i * p.leadingA : i + l * p.leadingA]) *
                   value(right[p.transposeB ? j + l * p.leadingB : l + j * p.leadingB]);
          c[batch * p.strideC + i + j * p.leadingC] = static_cast<T>(p.alpha * sum);
        }
      }
    });
  });
}

} // namespace recast::checking
