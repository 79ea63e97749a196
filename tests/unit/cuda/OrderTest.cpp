// Operators that look along an axis in order: equal bit for bit, ties and NaN included.
#include "tests/unit/cuda/CudaTest.h"

namespace recast::cuda::test {
namespace {

constexpr DType kTypes[] = {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64};

/// Few different values, so that there are ties, and NaN where the type has one.
Array ties(DType type, Dims dims) {
  Array x(type, std::move(dims));
  for (size_t i = 0; i < static_cast<size_t>(x.type.elems()); ++i)
    x.set(i, static_cast<double>((i * 7 + i / 5) % 6) - 2);
  if (isFloat(type) && x.type.elems() > 11)
    x.set(11, std::numeric_limits<double>::quiet_NaN());
  return x;
}

TEST(CudaOrder, ArgMaxAndArgMin) {
  for (DType type : kTypes)
    for (const char *op : {"ArgMax", "ArgMin"})
      for (int64_t last : {0, 1})
        for (int64_t axis : {0, 1, -1}) {
          Dims y = {3, 70, 2};
          y[static_cast<size_t>(axis < 0 ? 2 : axis)] = 1;
          compare({op, 13, attributes({{"axis", axis}, {"select_last_index", last}})}, {ties(type, {3, 70, 2})},
                  {{DType::I64, y}});
        }
}

TEST(CudaOrder, TopK) {
  for (DType type : kTypes)
    for (int64_t largest : {0, 1})
      for (int64_t k : {1, 7, 40}) {
        Attributes attrs = attributes({{"axis", int64_t(1)}, {"largest", largest}});
        Array count = i64({1}, {static_cast<double>(k)});
        compare({"TopK", 11, attrs}, {ties(type, {2, 40, 3}), count}, {{type, {2, k, 3}}, {DType::I64, {2, k, 3}}});
        compare({"TopK", 11, attrs}, {ties(type, {2, 40, 3}), count}, {{}, {DType::I64, {2, k, 3}}});
      }
  compare({"TopK", 1, attributes({{"k", int64_t(2)}})}, {ties(DType::F32, {3, 9})},
          {{DType::F32, {3, 2}}, {DType::I64, {3, 2}}});
  compare({"TopK", 11}, {randomArray(DType::F32, {2, 1000}, 4), i64({1}, {5})},
          {{DType::F32, {2, 5}}, {DType::I64, {2, 5}}});
}

TEST(CudaOrder, Cumulative) {
  for (DType type : kTypes)
    for (int64_t exclusive : {0, 1})
      for (int64_t reverse : {0, 1}) {
        Attributes attrs = attributes({{"exclusive", exclusive}, {"reverse", reverse}});
        compare({"CumSum", 14, attrs}, {ties(type, {4, 9, 3}), i64({}, {1})}, {{type, {4, 9, 3}}}, 0, 1);
        compare({"CumProd", 26, attrs}, {ties(type, {4, 9}), i64({}, {-1})}, {{type, {4, 9}}}, 0, 1);
      }
}

} // namespace
} // namespace recast::cuda::test
