// round_tf32 and DequantizeLinear against the reference evaluator.
#include "tests/unit/cuda/CudaTest.h"

namespace recast::cuda::test {
namespace {

TEST(Rounding, Tf32) {
  for (Dims dims : {Dims{}, Dims{257}, Dims{0}, Dims{3, 100}})
    compare({"round_tf32", 1, {}, "recast"}, {randomArray(DType::F32, dims, 3)}, {{DType::F32, dims}});
  float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  // Ties, both ways; the largest number, which rounds to infinity; the smallest.
  compare({"round_tf32", 1, {}, "recast"},
          {f32({9}, {0x1.002p0f, 0x1.006p0f, -0x1.002p0f, inf, -inf, nan, 0x1.fffffep127f, 0x1p-149f, -0.0f})},
          {{DType::F32, {9}}});
}

TEST(Rounding, DequantizeLinear) {
  for (DType type : {DType::F8E4M3FN, DType::F8E5M2}) {
    Array q(type, {4, 6});
    for (size_t i = 0; i < q.bytes.size(); ++i)
      q.bytes[i] = std::byte(i * 11 % 120);
    compare({"DequantizeLinear", 21}, {q, f32({}, {0.25f})}, {{DType::F32, {4, 6}}});
    compare({"DequantizeLinear", 21, attributes({{"axis", int64_t(0)}})}, {q, f32({4}, {1, 2, 3, 4})},
            {{DType::F32, {4, 6}}});
    compare({"DequantizeLinear", 21, attributes({{"axis", int64_t(1)}, {"block_size", int64_t(3)}})},
            {q, f32({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8})}, {{DType::F32, {4, 6}}});
  }
}

} // namespace
} // namespace recast::cuda::test
